"""Hanabi: a policy imitates the bot, then improves on it by playouts.

    python launch.py --config=experiments/hanabi_playouts.py

In every position that the policy meets in self-play, all moves are tried and the bot finishes the games. The policy
learns to choose moves with high returns given what it sees (docs/hanabi.md). The imitation is that of
`hanabi_selfplay.py`. The default is the small game with the embedded model, for two CPU cores: expect 5 of 10 points
after imitation and 6.2 to 6.6 after playouts, in about twelve minutes. `:smollm2` and the other models of
`configs/variants.py` play the full game.
"""

from configs import algorithms
from experiments import hanabi_selfplay


def get_config(model: str | None = None):
    """Configure imitation and policy improvement by playouts."""
    config = hanabi_selfplay.get_config(f"both+{model}" if model else "both")
    config.name = "hanabi_playouts"
    parts = {name: config.algo[name] for name in ("minibatches", "grad_accum_steps")}
    config.algo = algorithms.playouts(**parts)
    config.env.params.consolation = 0.0
    config.reward.update(dict(team=1.0, process=1.0))  # returns and the entropy bonus are in points
    return config
