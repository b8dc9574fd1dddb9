r"""Debates on natural language inference (ANLI): does a premise entail a hypothesis, contradict it, or neither?

    python launch.py --config=experiments/anli_debate.py                                  # the embedded model
    python launch.py --config=experiments/anli_debate.py:ppo+qwen2.5-coder-1.5b            # on a GPU
    python launch.py --config=experiments/anli_debate.py:untuned+qwen2.5-coder-1.5b --mode=eval

Forms are those of `experiments/gsm8k_debate.py`. Examples are ANLI's where its files are found in $MARL_JAX_DATA (CC
BY-NC 4.0: not for commercial use), and otherwise two dozen built-in ones.

    --config.task.params.dataset=gsm8k --mode=eval         transfer: GSM8K with what was learnt on ANLI

The embedded model has never read a word, so it learns nothing; the run shows that everything works.
"""

from configs import debate


def get_config(form: str | None = None):
    """ANLI, or the built-in examples."""
    config = debate.debate("nli", form, small="nli")
    config.name = "anli_debate"
    return config
