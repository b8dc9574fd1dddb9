r"""Debates on GSM8K: agents answer, read each other, revise, and learn together (MAPoRL).

    python launch.py --config=experiments/gsm8k_debate.py                                 # the embedded model
    python launch.py --config=experiments/gsm8k_debate.py:ppo+qwen2.5-coder-1.5b           # on a GPU
    python launch.py --config=experiments/gsm8k_debate.py:at_grpo+per_turn+qwen2.5-coder-0.5b
    python launch.py --config=experiments/gsm8k_debate.py:untuned+qwen2.5-coder-1.5b --mode=eval

A form is a list of words with + between them: an algorithm (`ppo`, `maporl` for the paper's PPO, `grpo`, `at_grpo`, or
`untuned` for `--mode=eval`), a way to share parameters (`shared`, `per_agent`, `per_turn`, `first_turn_apart`,
`per_agent_turn`, or `pair` for two base models), `single` for one agent without a debate, and a model
(`configs/debate.py`). Training has 2 agents and 3 turns, evaluation 3 agents and 3 turns.

    --config.task.params.scorer=http://127.0.0.1:8100      # reward a verifier's scores instead of correctness
    --config.task.params.preset=released                   # the credit of the code released with the paper
    --config.task.params.dataset=nli --mode=eval           # transfer: evaluate a policy trained on GSM8K on ANLI
    --config.policies.ben.frozen=true                      # `pair`, `per_agent`: Ben does not learn

Problems are GSM8K's if its files are in $MARL_JAX_DATA; the embedded model has 18 built-in ones. It is not pretrained,
so it boxes no answer and learns nothing; the run only shows that everything works. Its two steps and two evaluations,
of debates with two turns, take 25 seconds of CPU time.
"""

from configs import debate


def get_config(form: str | None = None):
    """Configure GSM8K, or the built-in problems for the embedded model."""
    config = debate.debate("gsm8k", form, small="sample")
    config.name = "gsm8k_debate"
    return config
