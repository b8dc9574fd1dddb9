"""Checks of the rows of files that users may have edited or truncated.

Readers of `metrics.jsonl`, `eval.jsonl`, `events.jsonl`, `games.jsonl` and `evaluation.json` skip invalid rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeGuard


def is_number(x: Any) -> bool:
    """Check for a finite number that fits in a float."""
    return isinstance(x, int | float) and not isinstance(x, bool) and abs(x) < 1e300 and math.isfinite(x)


def _is_step(x: Any) -> bool:
    return isinstance(x, int) and not isinstance(x, bool) and 0 <= x < 1 << 53


def _is_text(x: Any) -> bool:
    return x is None or isinstance(x, str)


def _are(x: Any, holds: Callable[[Any], bool]) -> TypeGuard[list[Any]]:
    return isinstance(x, list) and all(map(holds, x))


def is_metrics(row: dict[str, Any]) -> bool:
    """Check for a step and numbers, or None for numbers that were not finite."""
    return _is_step(row.get("step")) and all(value is None or is_number(value) for value in row.values())


def is_eval(row: dict[str, Any]) -> bool:
    """Check for a step, an opponent and metrics, where metrics with an interval are numbers.

    Failed episodes are counted, in total and by reason, together with the number of games. An evaluation in which all
    episodes failed has no metrics.
    """
    measured = [key for name in row if f"{name}_low" in row for key in (name, f"{name}_low", f"{name}_high")]
    numbers = all(row.get(key) is None or is_number(row[key]) for key in measured)
    counted = [name for name in row if name == "failed" or name.startswith("failed/")]
    counts = all(_is_step(row.get(key)) for key in [*counted, *(["games"] if counted else [])])
    return _is_step(row.get("step")) and isinstance(row.get("opponent"), str) and numbers and counts


def is_event(row: dict[str, Any]) -> bool:
    """Check for an event of any kind, as written by `events.Events`."""
    texts = all(isinstance(row.get(key), str) for key in ("kind", "message"))
    return _is_step(row.get("step")) and texts and (row.get("time") is None or is_number(row["time"]))


def is_game(row: dict[str, Any]) -> bool:
    """Check for a game, as written by `conversation_logs.GameLogs`."""
    players = row.get("players")
    return (
        _is_step(row.get("step"))
        and _are(players, lambda x: isinstance(x, str))
        and isinstance(row.get("outcome"), str)
        and isinstance(row.get("result"), str)
        and isinstance(row.get("winner"), int)
        and _are(row.get("scores"), is_number)
        and len(row["scores"]) == len(players)
        and _are(row.get("roles", []), lambda x: isinstance(x, str))
        and all(_is_text(row.get(key)) for key in ("start_svg", "start_board"))
        and _are(row.get("moves"), _is_move)
    )


def _is_move(move: Any) -> bool:
    return (
        isinstance(move, dict)
        and isinstance(move.get("player"), int)
        and all(isinstance(move.get(key), str) for key in ("prompt", "answer"))
        and all(key in move and _is_text(move[key]) for key in ("action", "error"))
        and all(_is_text(move.get(key)) for key in ("svg", "board", "image"))
        and _are(move.get("reward"), is_number)
        and (move.get("value") is None or is_number(move["value"]))
    )


def is_matches(table: Any) -> bool:
    """Check for the match table that `--mode=eval` writes, if there is one."""
    if not isinstance(table, dict):
        return False
    if "matrix" not in table:
        return True
    names, elo, cross = table.get("names"), "elo" in table, table.get("cross_play")
    rated = [table.get(column) for column in ("elo", "elo_low", "elo_high", "nash_average", "nash_share")]
    return (
        _are(names, lambda x: isinstance(x, str))
        and _are(table["matrix"], lambda row: _are(row, lambda x: x is None or is_number(x)) and len(row) == len(names))
        and len(table["matrix"]) == len(names)
        and "step" in table
        and (not elo or all(isinstance(of, dict) and all(is_number(of.get(name)) for name in names) for of in rated))
        and (not cross or (isinstance(cross, dict) and all(map(is_number, cross.values()))))
    )


def is_episode(row: dict[str, Any]) -> bool:
    """Check for an episode of an evaluation, as written by `task_evaluation.record`."""
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
"""Check of the rows of each file."""
