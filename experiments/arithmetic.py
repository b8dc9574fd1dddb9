"""Arithmetic

    python launch.py --config=experiments/arithmetic.py
"""

from configs import tasks


def get_config(form: str | None = None):
    """Arithmetic with a verifier; one agent."""
    config = tasks.task("arithmetic", form, accepted=("grpo", "ppo", "at_grpo"), max_length=512)
    config.name = "arithmetic"
    return config
