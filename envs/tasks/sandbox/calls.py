"""Calls into a program as the sandbox sees them: what is asked of a worker, and what is believed of its answer.

How the calls are made is said in `inside/calls.py`. A submission is a function (program, limits, items, name) that has
a worker run a program and returns its `SandboxResult` and its records.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import json
import secrets
from collections.abc import Callable, Sequence

from envs.tasks.sandbox.inside import calls as inside_calls
from envs.tasks.sandbox.inside import watch
from envs.tasks.sandbox.results import CallResult, Limits, SandboxResult

Item = dict
Submit = Callable[[str, Limits, bytes, str], tuple[SandboxResult, bytes]]

PATIENCE = 0.1
"""Seconds for which groups of calls are made together; a program that takes longer may never end."""


def evaluate(submit: Submit, program: str, items: Sequence[Item], limits: Limits, name: str) -> list[CallResult]:
    """The results of items, in order."""
    if not items:
        return []
    answer = _ask(submit, program, items, limits, name)
    if answer.interrupted:
        answer = _ask(submit, program, items, limits, name, forks=True)
    return answer.results


def evaluate_groups(
    submit: Submit, program: str, groups: Sequence[Sequence[Item]], limits: Limits, name: str
) -> list[list[CallResult]]:
    """The results of several groups of items, each as `evaluate` has them, but loading the program once if possible.

    It is possible where calls do not affect each other and their limits are not reached. The first group is made in
    any case; others are made again by themselves where they were not made, or where a limit may not have been theirs.
    After `PATIENCE` they are made beside the first one.
    """
    if len(groups) < 2 or not all(groups):
        return [evaluate(submit, program, group, limits, name) for group in groups]
    items = [item for group in groups for item in group]
    with concurrent.futures.ThreadPoolExecutor(1) as beside:
        asked = beside.submit(_ask, submit, program, items, limits, name, alone=len(groups[0]))
        others: list[list[CallResult] | None] = [None] * (len(groups) - 1)
        try:
            answer = asked.result(PATIENCE)
        except concurrent.futures.TimeoutError:
            others = [evaluate(submit, program, group, limits, name) for group in groups[1:]]
            answer = asked.result()
    first, start = answer.results[: len(groups[0])], len(groups[0])
    if answer.interrupted and not answer.has_all(items, range(start)):
        first = _ask(submit, program, groups[0], limits, name, forks=True).results
    for n, group in enumerate(groups[1:]):
        here = range(start, start + len(group))
        start += len(group)
        if others[n] is not None:
            continue
        if answer.failed_to_load or answer.has_all(items, here):
            others[n] = [answer.results[index] for index in here]
        else:
            others[n] = evaluate(submit, program, group, limits, name)
    return [first, *(other for other in others if other is not None)]


@dataclasses.dataclass(frozen=True)
class _Answer:
    """`found` are the items that have results of their own, the others have that of the program.

    interrupted     the program's process ended between calls that it made together, and not because their time was up:
                    a call may have failed by what another one left behind
    failed_to_load  no call was made, since the program did not come to its end
    """

    results: list[CallResult]
    found: frozenset[int]
    interrupted: bool
    failed_to_load: bool

    def has_all(self, items: Sequence[Item], indices: range) -> bool:
        """Whether the calls among these items were made."""
        return all(index in self.found or items[index]["kind"] == "builds" for index in indices)


def _ask(submit, program, items, limits, name, alone=0, forks=False) -> _Answer:
    nonce = secrets.token_hex(inside_calls.NONCE // 2)
    request = {"items": list(items), "alone": alone or len(items), "forks": forks}
    result, records = submit(program, limits, nonce.encode() + json.dumps(request).encode(), name)
    return _read(result, records, len(items), nonce)


def _read(result: SandboxResult, records: bytes, count: int, nonce: str) -> _Answer:
    """Results by call from the lines on the pipe, which the program may have written itself."""
    found: dict[int, CallResult] = {}
    load_error, made = "", None
    for line in records.split(b"\n"):
        try:
            index, kind, what = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            continue
        if index == "load" and kind == "error":
            load_error = f"the program failed to load: {what}"[:600]
        elif index == "load" and kind in ("together", "forks"):
            made = kind
        if not isinstance(index, int) or not 0 <= index < count or index in found:
            continue
        if kind == "value":
            found[index] = CallResult("ok", what)
        elif kind == "passed" and what == nonce:
            found[index] = CallResult("ok")
        elif kind == "error":
            found[index] = CallResult("error", error=str(what)[:600])
        elif kind == "ended":
            found[index] = CallResult("error", error=f"the process exited with {str(what)[:20]} before its end")
    if made == "together" and result.limit == "output" and len(records) < watch.RESULTS_KB * 1024:
        found, made = {}, None  # such calls print nothing: it was too much before the first of them
    if result.status in ("limit", "refused"):
        missing = CallResult(result.status, error=result.limit or result.stderr[-300:])
    else:
        missing = CallResult("error", error=load_error or f"the program exited with {result.exit_code}")
    return _Answer(
        [found.get(index, missing) for index in range(count)], frozenset(found),
        interrupted=made == "together" and result.status != "ok" and result.limit not in ("wall", "cpu"),
        failed_to_load=made is None and result.status != "refused",
    )  # fmt: skip
