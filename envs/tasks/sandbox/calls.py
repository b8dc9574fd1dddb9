"""Calls into a program: the sandbox's requests to a worker, and their results.

See `inside/calls.py` for the worker's side. `Submit` is a function (program, limits, items, name) that runs a program
in a worker and returns its `SandboxResult` and its records.
"""

from __future__ import annotations

import concurrent.futures
import dataclasses
import itertools
import json
import re
import secrets
from collections.abc import Callable, Sequence

from envs.tasks.sandbox.inside import calls as inside_calls
from envs.tasks.sandbox.inside import watch
from envs.tasks.sandbox.results import CallResult, Limits, SandboxResult

Item = dict
Submit = Callable[[str, Limits, bytes, str], tuple[SandboxResult, bytes]]

PATIENCE = 0.1
"""Seconds for which groups of calls run together; a program that takes longer may never end."""


def evaluate(submit: Submit, program: str, items: Sequence[Item], limits: Limits, name: str) -> list[CallResult]:
    """Return the results of items in order."""
    if not items:
        return []
    answer = _ask(submit, program, items, limits, name)
    if answer.interrupted:
        answer = _ask(submit, program, items, limits, name, forks=True)
    return answer.results


def evaluate_groups(
    submit: Submit, program: str, groups: Sequence[Sequence[Item]], limits: Limits, name: str
) -> list[list[CallResult]]:
    """Return the results of several groups of items, loading the program once if possible.

    The results are the same as those of one `evaluate` per group. The program is loaded once if its calls do not affect
    each other and no limit is reached. The first group is always evaluated. Another group is evaluated again on its own
    if its calls were not made, or if a limit may have been caused by other calls. After `PATIENCE`, the other groups
    run concurrently with the first.
    """
    if len(groups) < 2 or not all(groups):
        return [evaluate(submit, program, group, limits, name) for group in groups]
    items = [item for group in groups for item in group]
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        pending = pool.submit(_ask, submit, program, items, limits, name, alone=len(groups[0]))
        others: list[list[CallResult] | None] = [None] * (len(groups) - 1)
        try:
            answer = pending.result(PATIENCE)
        except concurrent.futures.TimeoutError:
            others = [evaluate(submit, program, group, limits, name) for group in groups[1:]]
            answer = pending.result()
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
    """The results of a request.

    Attributes:
        results: One result per item.
        answered: Indices of the items that have individual results. The other items share the result of the program.
        interrupted: Whether the process ended between calls that it made together, for another reason than a time
            limit. A call may then have failed because of an earlier one.
        failed_to_load: Whether no call was made because loading the program did not finish.
    """

    results: list[CallResult]
    answered: frozenset[int]
    interrupted: bool
    failed_to_load: bool

    def has_all(self, items: Sequence[Item], indices: range) -> bool:
        """Check whether the calls among these items were made."""
        return all(index in self.answered or items[index]["kind"] == "builds" for index in indices)


def _ask(submit, program, items, limits, name, alone=0, forks=False) -> _Answer:
    nonce = secrets.token_hex(inside_calls.NONCE // 2)
    request = {"items": list(items), "alone": alone or len(items), "forks": forks}
    result, records = submit(program, limits, nonce.encode() + json.dumps(request).encode(), name)
    return _read(result, records, len(items), nonce)


def _read(result: SandboxResult, records: bytes, count: int, nonce: str) -> _Answer:
    """Parse the records on the results pipe, which the program may have forged."""
    results: dict[int, CallResult] = {}
    load_error, made = "", None
    most = 2 * count + 2  # per item a value and the end of its fork; of the program, that it was loaded or not
    for line in itertools.islice(re.finditer(rb"[^\n]+", records), most):
        try:
            index, kind, what = json.loads(line.group())
        except (ValueError, TypeError, RecursionError):
            continue
        if index == "load" and kind == "error":
            load_error = f"the program failed to load: {what}"[:600]
        elif index == "load" and kind in ("together", "forks"):
            made = kind
        if not isinstance(index, int) or not 0 <= index < count or index in results:
            continue
        if kind == "value":
            results[index] = CallResult("ok", what)
        elif kind == "passed" and what == nonce:
            results[index] = CallResult("ok")
        elif kind == "error":
            results[index] = CallResult("error", error=str(what)[:600])
        elif kind == "ended":
            results[index] = CallResult("error", error=f"the process exited with {str(what)[:20]} before its end")
    if made == "together" and result.limit == "output" and len(records) < watch.RESULTS_KB * 1024:
        results, made = {}, None  # such calls print nothing, so the output limit was hit before the first of them
    if result.status in ("limit", "refused"):
        missing = CallResult(result.status, error=result.limit or result.stderr[-300:])
    else:
        missing = CallResult("error", error=load_error or f"the program exited with {result.exit_code}")
    return _Answer(
        [results.get(index, missing) for index in range(count)], frozenset(results),
        interrupted=made == "together" and result.status != "ok" and result.limit not in ("wall", "cpu"),
        failed_to_load=made is None and result.status != "refused",
    )  # fmt: skip
