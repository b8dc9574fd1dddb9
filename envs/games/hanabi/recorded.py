"""Files of moves that `search_games` has recorded."""

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np

from envs.games.entry import RecordedMoves
from envs.games.hanabi.rules import Hanabi, HanabiState, Moves


def rules_of(game: Hanabi) -> dict[str, Any]:
    """Return the parameters of a game that change its rules."""
    return {name: value for name, value in dataclasses.asdict(game).items() if name != "consolation"}


def read(folder: Path, game: Hanabi) -> RecordedMoves:
    """Read the moves that the command has written to a folder.

    Only those of the searching seats are returned.

    Raises:
        ValueError: If there are none, or they are of another game.
    """
    files = sorted(folder.glob("games-*.npz"))
    if not files:
        raise ValueError(
            f"{folder} has no files games-*.npz of recorded moves. Write them with envs.games.hanabi.search_games."
        )
    recorded = json.loads((folder / "search.json").read_text())["game"]
    if recorded != rules_of(game):
        raise ValueError(f"{folder} has moves of the game {recorded}, but must have moves of {rules_of(game)}")
    parts = [np.load(file, allow_pickle=False) for file in files]
    kept = [name for name in parts[0].files if name not in ("scores", "of_bot", "searched")]
    data: dict[str, Any] = {name: np.concatenate([part[name][part["searched"]] for part in parts]) for name in kept}
    last = Moves(**{name: data[f"last.{name}"] for name in Moves._fields})
    fields = {name: data[f"state.{name}"] for name in HanabiState._fields if name not in ("deck", "last")}
    deck: Any = np.zeros((len(data["action"]), 0), np.int8)
    states = HanabiState(deck=deck, last=last, **fields)
    return RecordedMoves(states, data["action"], data["gain"])


def summary(folder: Path) -> dict[str, Any]:
    """Return the mean scores in a folder, their paired difference and statistics of the search."""
    names = ("scores", "of_bot", "searched", "action", "blueprint", "gain", "lost")
    parts = [np.load(file, allow_pickle=False) for file in sorted(folder.glob("games-*.npz"))]
    data = {name: np.concatenate([part[name] for part in parts]) for name in names}
    difference = data["scores"] - data["of_bot"]
    half = 1.96 * difference.std(ddof=1) / np.sqrt(len(difference)) if len(difference) > 1 else float("inf")
    searched = data["searched"]
    return {
        "games": len(difference),
        "search": float(data["scores"].mean()),
        "bot": float(data["of_bot"].mean()),
        "difference": float(difference.mean()),
        "difference_low": float(difference.mean() - half),
        "difference_high": float(difference.mean() + half),
        "deviations": float((data["action"] != data["blueprint"])[searched].mean()),
        "gain": float(data["gain"][searched].sum() / len(difference)),
        "lost": float((data["lost"] > 0)[searched].mean()),
    }
