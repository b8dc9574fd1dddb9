"""What the rows of a run's files are: a file may have been edited or cut, and rows of another kind are left out.

Readers of `metrics.jsonl`, `eval.jsonl`, `events.jsonl`, `games.jsonl` and `evaluation.json` rely on these checks.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard


def is_number(x: Any) -> bool:
    """A finite number that fits a float."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300 and math.isfinite(x)


def _is_step(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 53


def _is_text(x: Any) -> bool:
    return x is None or isinstance(x, str)


def _are(x: Any, holds: Callable[[Any], bool]) -> TypeGuard[list[Any]]:
    return isinstance(x, list) and all(map(holds, x))


def is_metrics(row: dict[str, Any]) -> bool:
    """A step and numbers; None where a number was not finite."""
    return _is_step(row.get("step")) and all(value is None or is_number(value) for value in row.values())


def is_eval(row: dict[str, Any]) -> bool:
    """Check for a step, an opponent and metrics, where metrics with an interval are numbers.

    Failed episodes are counted, in all and by reason, together with the number of games. An evaluation whose episodes
    all failed has no metrics.
    """
    measured = [key for name in row if f"{name}_low" in row for key in (name, f"{name}_low", f"{name}_high")]
    numbers = all(row.get(key) is None or is_number(row[key]) for key in measured)
    counted = [name for name in row if name == "failed" or name.startswith("failed/")]
    counts = all(_is_step(row.get(key)) for key in [*counted, *(["games"] if counted else [])])
    return _is_step(row.get("step")) and isinstance(row.get("opponent"), str) and numbers and counts


def is_event(row: dict[str, Any]) -> bool:
    """Check for an event as `events.Events` writes it, of any kind."""
    texts = all(isinstance(row.get(key), str) for key in ("kind", "message"))
    return _is_step(row.get("step")) and texts and (row.get("time") is None or is_number(row["time"]))


def is_game(row: dict[str, Any]) -> bool:
    """A game as `conversation_logs.GameRecord` writes it."""
    players = row.get("players")
    return (
        _is_step(row.get("step"))
        and _are(players, lambda x: isinstance(x, str))
        and isinstance(row.get("outcome"), str)
        and isinstance(row.get("result"), str)
        and isinstance(row.get("winner"), int)
        and _are(row.get("scores"), is_number)
        and len(row["scores"]) == len(players)
        and all(_is_text(row.get(key)) for key in ("start_svg", "start_board"))
        and _are(row.get("moves"), _is_move)
    )


def _is_move(move: Any) -> bool:
    return (
        isinstance(move, dict)
        and isinstance(move.get("player"), int)
        and all(isinstance(move.get(key), str) for key in ("prompt", "answer"))
        and all(key in move and _is_text(move[key]) for key in ("action", "error"))
        and all(_is_text(move.get(key)) for key in ("svg", "board"))
        and _are(move.get("reward"), is_number)
        and (move.get("value") is None or is_number(move["value"]))
    )


def is_matches(found: Any) -> bool:
    """The table that `--mode=eval` writes, where there is one."""
    if not isinstance(found, dict):
        return False
    if "matrix" not in found:
        return True
    names, elo, cross = found.get("names"), found.get("elo"), found.get("cross_play")
    return (
        _are(names, lambda x: isinstance(x, str))
        and _are(found["matrix"], lambda row: _are(row, lambda x: x is None or is_number(x)) and len(row) == len(names))
        and len(found["matrix"]) == len(names)
        and "step" in found
        and (not elo or (isinstance(elo, dict) and all(is_number(elo.get(name)) for name in names)))
        and (not cross or (isinstance(cross, dict) and all(map(is_number, cross.values()))))
    )


def is_episode(row: dict[str, Any]) -> bool:
    """An episode of an evaluation, as `task_evaluation.record` writes it."""
    return (
        _is_step(row.get("step"))
        and all(_is_step(row.get(key)) for key in ("example", "sample"))
        and isinstance(row.get("id", ""), str)
        and all(is_number(row.get(key)) for key in ("success", "reward"))
        and all(_is_text(row.get(key)) for key in ("failed", "error", "reason"))
        and _are(row.get("turns"), _is_turn)
    )


def _is_turn(turn: Any) -> bool:
    verdict, rewards = (turn.get(key) for key in ("verdict", "rewards")) if isinstance(turn, dict) else (None, None)
    return (
        isinstance(turn, dict)
        and (verdict is None or isinstance(verdict, dict))
        and (rewards is None or (isinstance(rewards, dict) and all(map(is_number, rewards.values()))))
        and all(isinstance(turn.get(key), str) for key in ("role", "prompt", "text"))
        and _is_step(turn.get("turn"))
    )


KINDS: dict[str, Callable[[dict[str, Any]], bool]] = {
    "metrics.jsonl": is_metrics,
    "eval.jsonl": is_eval,
    "events.jsonl": is_event,
    "games.jsonl": is_game,
}
"""What a row of each file must be."""
