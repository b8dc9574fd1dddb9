r"""Hanabi: a policy imitates recorded moves of a search, then learns by self-play.

    python -m envs.games.hanabi.search_games --out=runs/search_small --preset=small --seats=all --games=1408 \
        --batch=128 --hands=256 --screening=16 --rollouts=64
    python launch.py --config=experiments/hanabi_search.py

The first command records the moves and compares the scores of search and bot in about six minutes (docs/hanabi.md). The
second is `hanabi_selfplay.py` with these moves in half of the imitation, the bot's in the rest, for the small game with
the embedded model. `:smollm2` and the other models play the full game with the moves in `runs/search`.
`:other_play` (or `:other_play+MODEL`) permutes the colours for each seat and game in both stages, and `:sft` stops
after imitation.
"""

from configs import variants
from experiments import hanabi_selfplay

FORMS = ("both", "sft", "other_play")


def get_config(form: str | None = None):
    """Configure imitation of recorded moves and self-play PPO with a KL to the imitated policy."""
    chosen, model = variants.split_form(form, FORMS, "both")
    config = hanabi_selfplay.get_config("both" if model is None else f"both+{model}")
    config.name = "hanabi_search"
    config.env.symmetry = chosen == "other_play"
    config.first_stage.algo.update(dict(data="runs/search" if model else "runs/search_small", data_frac=0.5))
    return variants.only_first_stage(config) if chosen == "sft" else config
