"""Runs that `test_kills.py` kills: `python launch.py --config=tests/faults/kill_runs.py:program`."""

import json
import sys
import tempfile
from pathlib import Path

from tests.marl_jax import tiny_puzzle, tiny_run, tiny_task

PROGRAM = Path(tiny_task.__file__).parent / "rollouts" / "host" / "agent_program.py"


def get_config(kind: str):
    """A run with an opponent pool, a curriculum, tool calls, or agent programs and GRPO."""
    if kind == "pool":
        return tiny_run.get_config("pool")
    if kind == "curriculum":
        config = tiny_puzzle.get_config()
        config.curriculum.update(dict(enabled=True, difficulty_levels=4, start=1, up=0.05, down=0.0, window=2))
        return config
    if kind == "tools":
        config = tiny_task.get_config("grpo+noted")
        config.plugins, config.task.params = ("tests.faults.noted_calls",), {}
        config.task.tool_format = "fenced"
        return config
    config = tiny_task.get_config("grpo+program")
    config.task.params = dict(
        program=f"{sys.executable} {PROGRAM}", roles=("solver", "verifier"), train=str(_examples()), validation="",
        test="", key="", concurrency=4, preload=False,
    )  # fmt: skip
    config.task.time_limit = 600.0
    return config


def _examples() -> Path:
    """Write the examples once; every start of a run must find the same file."""
    path = Path(tempfile.gettempdir()) / "marl_jax_kill_runs.jsonl"
    rows = [{"do": ("talk", "fresh")[i % 2], "question": f"What is {i} + {i}?", "rounds": 2} for i in range(16)]
    text = "".join(json.dumps(row) + "\n" for row in rows)
    if not path.exists() or path.read_text() != text:
        path.write_text(text)
    return path
