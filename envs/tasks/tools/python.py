"""Python programs in the sandbox as a tool."""

from __future__ import annotations

from typing import Any

from envs.tasks.sandbox import Limits, shared_sandbox
from envs.tasks.tools.tools import ToolError, Tools, ToolTimeout

MAX_PROGRAM = 20_000
"""Maximum number of characters of a program."""


class Python(Tools):
    """The tool `python`, which runs programs in the sandbox of this process.

    Every program starts anew, so the tool has no state.

    Args:
        mode: Mode of the sandbox.
    """

    schemas = (
        {
            "type": "function",
            "function": {
                "name": "python",
                "description": "Run a Python program and return what it prints.",
                "parameters": {
                    "type": "object",
                    "properties": {
                        "program": {"type": "string", "description": "Source of the program. It must print its result."}
                    },
                    "required": ["program"],
                },
            },
        },
    )

    def __init__(self, mode: str = "auto"):
        self.mode = mode

    async def call(self, name: str, arguments: dict[str, Any], seconds: float = 5.0) -> str:
        """Run a program and return its output."""
        program = arguments["program"]
        if len(program) > MAX_PROGRAM:
            raise ToolError(f"the program has {len(program)} characters, but must have at most {MAX_PROGRAM}")
        result = await shared_sandbox(self.mode).run(program, limits=Limits(wall=seconds, cpu=seconds))
        if result.limit in ("wall", "cpu"):
            raise ToolTimeout(f"the program took more than {seconds:g} s")
        if result.limit is not None:
            raise ToolError(f"the program exceeded the limit {result.limit!r}")
        if result.status != "ok":
            last = result.stderr.strip().splitlines()[-1:]
            raise ToolError(last[0] if last else f"the program ended with exit code {result.exit_code}")
        return result.stdout.strip() or "The program printed nothing."
