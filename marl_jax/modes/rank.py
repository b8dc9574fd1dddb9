"""`--mode=rank`: play a round robin between runs and rate them.

    python launch.py --mode=rank --workdir=runs/league              # all runs in a folder, such as a sweep
    python launch.py --mode=rank --workdir=runs/first,runs/second   # several runs

The bots of the first run's `eval.opponents` take part, too, and its `eval` settings apply. `ranking.md`, `ranking.svg`
and `ranking.json` contain the points of all pairs, Elo ratings with intervals and the Nash average. In a cooperative
game they contain the cross-play matrix: the mean score of every pair in mixed seats, with intervals.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from pathlib import Path

import jax

from envs.games.bots import bot_names
from marl_jax import setup as setups
from marl_jax.errors import RunError
from marl_jax.evaluation.contestants import find_contestants
from marl_jax.evaluation.round_robin import everyone
from marl_jax.modes import report
from marl_jax.running.metrics import replace_text
from marl_jax.schema import saved, stages
from marl_jax.setup import GameSetup
from marl_jax.web import ranking

log = logging.getLogger(__name__)


def main(workdir: Path) -> Path:
    """Rate the runs of one or more folders and return the path of the table.

    Args:
        workdir: Folder of runs, or folders of runs separated by commas.
    """
    folders = runs_to_rank(str(workdir))
    config = stages.started(saved.read(folders[0]), folders[0])
    setup = setups.make(config, workdir=folders[0])
    if not isinstance(setup, GameSetup) or setup.game.n_players == 1:
        raise RunError(f"{folders[0]} is not a run of a game of several players, which a ranking requires")
    bots = [name for name in config.eval.opponents if name in bot_names(setup.game.name)]
    with contextlib.closing(setup), jax.set_mesh(setup.mesh):
        result = everyone(setup, find_contestants([*map(str, folders), *bots], setup))
    parent = Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
    replace_text(parent / "ranking.json", json.dumps(result, indent=2) + "\n")
    replace_text(parent / "ranking.svg", ranking.svg(result))
    table = ranking.markdown(result)
    replace_text(parent / "ranking.md", table)
    log.info("%s\nranking: %s", table, parent / "ranking.md")
    return parent / "ranking.md"


def runs_to_rank(places: str) -> list[Path]:
    """Return the folders of runs in `places`, separated by commas.

    Raises:
        RunError: If a place has no run, or a sweep lacks one of its members.
    """
    for place in filter(None, places.split(",")):
        folder = Path(place).expanduser()
        for member in report.read_sweep(folder):
            if not (folder / member["name"] / "config.json").is_file():
                raise RunError(
                    f"{folder / member['name']} is missing, but the sweep in {folder} lists it. Train it, or pass the "
                    "folders of the other runs, separated by commas."
                )
        if not (folder / "config.json").is_file() and not saved.runs_in(place):
            raise RunError(f"{folder} is neither the folder of a run nor a folder that contains runs")
    folders = saved.runs_in(places) or [Path(places).expanduser()]
    if len(folders) < 2:
        raise RunError(f"{places} has {len(folders)} run, but a ranking requires at least 2")
    return folders
