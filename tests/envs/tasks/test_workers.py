"""Calls in worker processes: limits, failures, and replaced processes."""

import asyncio
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from envs.tasks.replies import CallFailed, CallTimeout
from envs.tasks.workers import Workers
from tests.envs.tasks import verifiers


def with_workers(act, n=1):
    async def main():
        workers = Workers(n)
        try:
            return await act(workers)
        finally:
            await workers.close()

    return asyncio.run(main())


def test_results_come_back_whatever_is_printed():
    async def act(workers):
        return await asyncio.gather(*(workers.call(verifiers.double, i, limit=20) for i in range(9)))

    assert with_workers(act, 2) == [2 * i for i in range(9)]


def test_a_call_beyond_its_limit_is_killed_and_the_next_one_gets_a_new_process():
    async def act(workers):
        before = await workers.call(verifiers.process, limit=20)
        started = time.monotonic()
        for function in (verifiers.hang, verifiers.spin):
            with pytest.raises(CallTimeout, match=f"{function.__name__} took more than 0.2 s"):
                await workers.call(function, limit=0.2)
        assert time.monotonic() - started < 20
        return before, await workers.call(verifiers.process, limit=20)

    before, after = with_workers(act)
    assert before != after


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (verifiers.fail, "fail: KeyError: 'gone'"),
        (verifiers.leave, "leave: SystemExit: 3"),
        (verifiers.hoard, "hoard: MemoryError"),
        (verifiers.strange, "strange: TypeError: Object of type set is not JSON"),
        (verifiers.die, "the worker process ended without a response"),
        ("tests.envs.tasks.verifiers:absent", "AttributeError"),
    ],
)
def test_failures_are_reported_and_leave_the_pool_usable(function, message):
    async def act(workers):
        with pytest.raises(CallFailed, match=message):
            await workers.call(function, limit=20)
        return await workers.call(verifiers.double, 4, limit=20)

    assert with_workers(act) == 8


def test_the_loop_runs_on_while_a_verifier_computes():
    async def act(workers):
        ticks = 0

        async def tick():
            nonlocal ticks
            while True:
                await asyncio.sleep(0.01)
                ticks += 1

        ticking = asyncio.ensure_future(tick())
        with pytest.raises(CallTimeout):
            await workers.call(verifiers.spin, limit=0.5)
        ticking.cancel()
        return ticks

    assert with_workers(act) > 10


def test_calls_that_a_process_was_given_ahead_outlive_it():
    """One process gets several calls; those after one that hangs, dies or is cancelled move to the next process."""

    async def act(workers):
        bad = {3: verifiers.hang, 9: verifiers.die}
        calls = [
            asyncio.ensure_future(workers.call(bad[i], limit=0.3) if i in bad else
                                  workers.call(verifiers.double, i, limit=20))
            for i in range(24)
        ]  # fmt: skip
        await asyncio.sleep(0)
        calls[14].cancel()
        return await asyncio.gather(*calls, return_exceptions=True)

    found = with_workers(act)
    assert isinstance(found[3], CallTimeout) and isinstance(found[9], CallFailed)
    assert isinstance(found[14], asyncio.CancelledError)
    assert [x for i, x in enumerate(found) if i not in (3, 9, 14)] == [2 * i for i in range(24) if i not in (3, 9, 14)]


def test_a_call_that_takes_long_holds_up_one_other_at_most():
    async def act(workers):
        await asyncio.gather(*(workers.call(verifiers.double, 0, limit=20) for _ in range(2)))  # start both
        slow = asyncio.ensure_future(workers.call(verifiers.hang, limit=60))
        quick = [asyncio.ensure_future(workers.call(verifiers.double, i, limit=20)) for i in range(40)]
        while sum(call.done() for call in quick) < len(quick) - 1:
            await asyncio.sleep(0.01)
        assert not slow.done()
        slow.cancel()
        return await asyncio.gather(*quick)

    assert with_workers(act, 2) == [2 * i for i in range(40)]


def test_a_cancelled_call_ends_its_process_and_no_other_call(tmp_path):
    async def act(workers):
        note = tmp_path / "pid"
        spinning = asyncio.ensure_future(workers.call(verifiers.note_and_spin, str(note), limit=100))
        while not (note.exists() and note.read_text()):
            await asyncio.sleep(0.02)
        behind = asyncio.ensure_future(workers.call(verifiers.double, 4, limit=20))
        await asyncio.sleep(0)
        spinning.cancel()
        assert await behind == 8
        return int(note.read_text())

    pid = with_workers(act)
    wait_until(lambda: not alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="needs a parent-death signal")
def test_a_verifier_does_not_outlive_a_run_that_is_killed(tmp_path):
    script = (
        "import asyncio, sys\n"
        "from envs.tasks.workers import Workers\n"
        "asyncio.run(Workers(1).call('tests.envs.tasks.verifiers:note_and_spin', sys.argv[1], limit=1000))\n"
    )
    note = tmp_path / "pid"
    run = subprocess.Popen([sys.executable, "-c", script, str(note)], env={**os.environ, "PYTHONPATH": os.getcwd()})
    wait_until(lambda: note.exists() and note.read_text())
    worker = int(note.read_text())
    assert alive(worker)
    run.kill()
    run.wait()
    wait_until(lambda: not alive(worker))


def alive(pid):
    """Return whether a process runs; a zombie does not count."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def wait_until(holds, seconds=30):
    deadline = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_functions_that_another_process_cannot_find_are_refused():
    with pytest.raises(ValueError, match="use a module-level function"):
        with_workers(lambda workers: workers.call(lambda: 1, limit=1))
