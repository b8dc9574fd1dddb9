"""The `verilog` task: write a hardware module for a description.

The module is the last ```verilog block of a completion. It is compiled in the sandbox and simulated next to a reference
module (`bench.py`). The messages of the compiler are shown to the next completion (`envs/tasks/revising.py`), and with
`feedback="mismatches"` the number of samples that differ. It is right if all samples agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

from envs.tasks.data import Dataset
from envs.tasks.revising import Revising, Trial, fenced
from envs.tasks.sandbox import Limits, same_sandbox, shared_sandbox
from envs.tasks.task import check_params
from envs.tasks.verilog import bench, sources

SANDBOXES = ("auto", "process")
FEEDBACK = ("compile", "mismatches")
MAX_ANSWER = 50_000
START_LIMIT = 30.0
"""Extra seconds beyond the limits of two simulations, for starting a sandbox."""
_RULES = "a ```verilog block, without directives, hierarchical names and system tasks"
CODER = f"You write a hardware module in Verilog, in {_RULES}."
REVIEWER = f"You check a Verilog module that another agent wrote, and write the final module in {_RULES}."


@dataclasses.dataclass(frozen=True)
class Verilog(Revising):
    """Hardware modules for a coder and a reviewer, or for one agent.

    Attributes:
        dataset: "verilogeval", "sample", or a .jsonl file with prompt, ref and test.
        feedback: "compile" to show messages of the compiler, "mismatches" to show the simulation's result as well.
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Time limit of compiler and simulation together, in seconds.
    """

    dataset: str = sources.EVAL
    feedback: str = "compile"
    sandbox: str = "auto"
    wall: float = 10.0

    seats: ClassVar[tuple[str, str]] = ("coder", "reviewer")
    systems: ClassVar[tuple[str, str]] = (CODER, REVIEWER)
    kinds: ClassVar[tuple[str, ...]] = ("right", "wrong", "error", "refused", "no_module", "failed")

    def __post_init__(self):
        super().__post_init__()
        check_params(self, dict(feedback=FEEDBACK, sandbox=SANDBOXES), dict(wall=(0.1, 600)))
        sources.check_name(self.dataset)

    def splits(self) -> dict[str, Dataset]:
        """Return the problems by split."""
        return sources.load(self.dataset)

    def prepare(self) -> None:
        """Start the sandbox.

        Raises:
            RuntimeError: Icarus Verilog is not installed.
            SandboxUnavailable: This machine does not allow isolation.
        """
        shared_sandbox(self.sandbox, self._tools().programs)

    def opening(self, example: dict[str, Any]) -> str:
        """Return the description."""
        return example["prompt"].strip()

    def trial(self, text: str, example: dict[str, Any]):
        """Return the call that compiles and simulates the module of a completion."""
        tools = self._tools()
        settings = shared_sandbox(self.sandbox, tools.programs).settings
        args = (settings, dataclasses.asdict(tools), text, example["ref"], example["test"], self.wall, self.feedback)
        return tried, args, 2 * self.wall + START_LIMIT

    def gold_reply(self, example: dict[str, Any]) -> str:
        """Return the reference module in a block."""
        return f"```verilog\n{bench.as_answer(example['ref']).strip()}\n```"

    def _tools(self) -> bench.Tools:
        tools = bench.find_tools()
        if tools is None:
            raise RuntimeError(bench.MISSING)
        return tools


def tried(
    sandbox: Mapping, tools: Mapping, text: str, ref: str, test: str, wall: float, feedback: str = "compile"
) -> Trial:
    """Compile and simulate the module of a completion."""
    answer = fenced(text, ("verilog", "systemverilog", "sv", "v"))
    if answer is None or len(answer) > MAX_ANSWER:
        return Trial(right=0.0, answer=None, kind="no_module", shown="There was no ```verilog block.")
    limits = Limits(wall=wall, cpu=wall)
    verdict = bench.judge(same_sandbox(sandbox), bench.Tools(**tools), answer, ref, test, limits)
    return Trial(
        right=float(verdict.kind == "right"), answer=answer, kind=verdict.kind, shown=_shown(verdict, feedback)
    )


def _shown(verdict: bench.Verdict, feedback: str) -> str:
    if verdict.kind == "refused":
        return f"The module was refused: {verdict.message}."
    if verdict.kind == "error":
        return f"The module does not compile or run:\n{verdict.message}"
    if feedback == "compile":
        return "The module compiles."
    if verdict.samples == 0 or verdict.message:
        return "The module compiles, but the simulation did not end as it should."
    return f"The module compiles. In the simulation, {verdict.mismatches} of {verdict.samples} samples differ."
