"""A debate on arithmetic: two agents answer at once, read each other's answer and answer again.

    python launch.py --config=experiments/arithmetic_debate.py                     # GRPO, the embedded model
    python launch.py --config=experiments/arithmetic_debate.py:ppo
    python launch.py --config=experiments/arithmetic_debate.py:grpo+qwen2.5-0.5b   # on a GPU

Forms: `grpo` (the default) or `ppo`, a model of `configs/variants.py`, or both with + between them.

On two CPU cores a step of the embedded model takes about five seconds. It has never read a word and answers with two
bytes, so it cannot learn to compute; in the first steps, which are all that was tried, a number is rare in its answers.
"""

from configs import tasks


def get_config(form: str | None = None):
    """A debate of two agents that share a policy."""
    config = tasks.task(
        "arithmetic_debate", form, ("grpo", "ppo"), max_length=2048, small_episodes=32, agents=2, turns=2
    )
    config.name = "arithmetic_debate"
    if config.algo.name == "ppo":
        config.algo.gamma = 0.0  # an answer's reward already contains what it leads to
    return config
