"""Programs as processes, and results in the last line of their output."""

import asyncio
import json
import math
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.program import process
from envs.tasks.program.task import AgentProgram, NoReward, ProgramResult, environment, read_result

ROLES = ("solver", "verifier")
NUMBERS = st.floats(-1e6, 1e6) | st.integers(-1000, 1000)


def run(code, given=b"", **variables):
    return asyncio.run(process.run([sys.executable, "-c", code], given, variables))


def runs(pid):
    """Return whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


# ------------------------------------------------------------------------------------------------------------- results


@settings(max_examples=40, deadline=None)
@given(st.text(), st.fixed_dictionaries({}, optional={
    "reward": NUMBERS, "success": st.floats(0, 1), "answer": st.text(), "metrics": st.dictionaries(st.text(), NUMBERS),
    "rewards": st.dictionaries(st.sampled_from(ROLES), NUMBERS),
}))  # fmt: skip
def test_a_result_is_the_last_line_whatever_is_before_it(before, result):
    assert read_result(f"{before}\n{json.dumps(result)}\n \n", ROLES) == ProgramResult(**result)


@settings(max_examples=40, deadline=None)
@given(st.text())
def test_any_output_is_a_result_or_refused(output):
    try:
        found = read_result(output, ROLES)
    except NoReward:
        return
    assert found.reward is None or math.isfinite(found.reward)


@pytest.mark.parametrize(("output", "reward"), [
    ("1", 1.0), ("log\n-0.5\n", -0.5), ("true", 1.0), ("", None), ("done", None), ("[1]", None), ('"1"', None),
    ("NaN", None), ("Infinity", None), ("1e999", None), ("9" * 400, None), ("9" * 5000, None), ("[" * 100_000, None),
    ("null", None), ("{}", None), ('{"reward": null}', None),
])  # fmt: skip
def test_a_number_is_the_reward_and_anything_else_is_none(output, reward):
    assert read_result(output, ROLES).reward == reward


@pytest.mark.parametrize(("result", "message"), [
    ({"rewrad": 1}, "'rewrad', but fields must be one of: reward, rewards"),
    ({"reward": "1"}, "reward '1', but must have a finite number"),
    ({"reward": math.nan}, "must have a finite number"),
    ({"rewards": {"critic": 1}}, "'critic', but roles must be one of: solver"),
    ({"rewards": [1]}, "by name"), ({"metrics": {"a": math.inf}}, "by name"), ({"success": [1]}, "finite"),
])  # fmt: skip
def test_a_result_that_makes_no_sense_is_refused(result, message):
    with pytest.raises(NoReward, match=message):
        read_result(json.dumps(result), ROLES)


# ----------------------------------------------------------------------------------------------------------- processes


def test_a_program_gets_its_input_and_its_variables():
    code = "import os, sys; print(os.environ['NAME'], sys.stdin.read()); print('oops', file=sys.stderr); sys.exit(3)"
    assert run(code, b"hello", NAME="x") == process.Ended(3, "x hello\n", "oops\n")


def test_a_program_need_not_read_its_input_and_may_write_a_lot():
    ended = run("import sys; sys.stdin.close(); print('x' * 1_000_000); print('end')", b"y" * 1_000_000)
    assert ended.code == 0 and ended.output.endswith("x\nend\n") and len(ended.output) == process.TAIL


def test_a_process_that_has_left_the_group_does_not_hold_up_the_end():
    code = "import subprocess; print(subprocess.Popen(['sleep', '30'], start_new_session=True).pid, flush=True)"
    started = time.monotonic()
    ended = run(code)
    os.kill(int(ended.output), 9)
    assert ended.code == 0 and time.monotonic() - started < 20


@pytest.mark.parametrize("starting", [False, True])
def test_where_a_run_is_cancelled_its_processes_are_gone(tmp_path, monkeypatch, starting):
    """This also holds for a cancellation during the start, when the program and its child are already running."""
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *args, **more: started.append(popen(*args, **more)) or started[0])
    code = (
        "import os, subprocess, time; p = subprocess.Popen(['sleep', '300'])\n"
        f"open({str(tmp_path / 'part')!r}, 'w').write(f'{{os.getpid()}} {{p.pid}}')\n"
        f"os.rename({str(tmp_path / 'part')!r}, {str(tmp_path / 'pids')!r})\ntime.sleep(300)"
    )

    async def cancelled():
        running = asyncio.ensure_future(process.run([sys.executable, "-c", code], b"", {}))
        while not started:
            await asyncio.sleep(0)
        while not (tmp_path / "pids").exists():
            time.sleep(0.01) if starting else await asyncio.sleep(0.01)  # with and without blocking the event loop
        running.cancel()
        _, late = await asyncio.wait({running}, timeout=20)
        assert not late and running.cancelled()

    asyncio.run(cancelled())
    # A signal takes effect when its process is next scheduled: on a busy machine, a moment after kill() returns.
    deadline = time.monotonic() + 10
    while alive := [pid for pid in (tmp_path / "pids").read_text().split() if runs(pid)]:
        assert time.monotonic() < deadline, f"still running: {alive}"
        time.sleep(0.01)


def test_the_server_is_never_asked_through_a_proxy(monkeypatch):
    monkeypatch.setenv("NO_PROXY", "example.org")
    found = environment("http://127.0.0.1:1/v1", "key", "solver", 3)
    assert found["NO_PROXY"] == found["no_proxy"] == "example.org,127.0.0.1"
    assert (found["OPENAI_MODEL"], found["MARL_JAX_CANDIDATES"]) == ("solver", "3")


# ---------------------------------------------------------------------------------------------------------------- data


def test_without_data_the_examples_are_arithmetic_and_with_a_file_its_rows(tmp_path):
    task = AgentProgram(__file__)
    parts = {part: {row["question"] for row in task.examples(part)} for part in ("train", "validation", "test")}
    assert all(parts.values()) and not parts["train"] & parts["test"] and not parts["train"] & parts["validation"]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps({"id": i}) + "\n" for i in range(30)))
    task = AgentProgram(f"{sys.executable} -c pass", train=str(file), key="id")
    assert sum(len(task.examples(part)) for part in parts) == 30 and task.command == [sys.executable, "-c", "pass"]
