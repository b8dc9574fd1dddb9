r"""Debates on natural language inference (ANLI).

    python launch.py --config=experiments/anli_debate.py                                  # the embedded model
    python launch.py --config=experiments/anli_debate.py:ppo+qwen2.5-coder-1.5b            # on a GPU
    python launch.py --config=experiments/anli_debate.py:untuned+qwen2.5-coder-1.5b --mode=eval

Agents debate whether a premise entails a hypothesis, contradicts it, or neither. Forms are those of
`experiments/gsm8k_debate.py`. Examples are ANLI's if its files are in $MARL_JAX_DATA (CC BY-NC 4.0: not for commercial
use), and otherwise two dozen built-in ones.

    --config.task.params.dataset=gsm8k --mode=eval         # transfer: evaluate a policy trained on ANLI on GSM8K

The embedded model is not pretrained, so it learns nothing; the run only shows that everything works.
"""

from configs import debate


def get_config(form: str | None = None):
    """Configure ANLI, or the built-in examples for the embedded model."""
    config = debate.debate("nli", form, small="nli")
    config.name = "anli_debate"
    return config
