"""The sandbox as a library: results, limits, workers that die, many programs at once, and complete cleanup."""

import asyncio
import json
import logging
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from benchmarks.sandbox import MIXED, held
from envs.tasks.sandbox import (
    Limits,
    Sandbox,
    SandboxResult,
    SandboxUnavailable,
    attacks,
    launch,
    pool,
    probe,
    same_sandbox,
    shared_sandbox,
    worker,
)
from envs.tasks.sandbox import __main__ as sandbox_command
from envs.tasks.sandbox.inside.tree import descendants
from tests.envs.tasks.sandboxes import any_sandbox

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def sandbox():
    """Return a separate sandbox with the plan of this machine, without repeating the attacks."""
    shared = any_sandbox()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probe, "choose", lambda plans=None: (shared.plan, shared.layers))
        made = Sandbox(2)
    with made:
        yield made


@pytest.mark.parametrize(
    ("program", "stdin", "expected"),
    [
        ("print(input()[::-1])", "abc\n", ("ok", "cba\n", 0, None)),
        ("import sys\nsys.exit(3)", "", ("error", "", 3, None)),
        ("import sys\nsys.exit()", "", ("ok", "", 0, None)),
        ("import sys\nsys.exit('text')", "", ("error", "", 1, None)),
        ("import os\nos._exit(0)", "", ("ok", "", 0, None)),
        ("import os\nos.abort()", "", ("error", "", -6, None)),
        ("import os\nos.kill(os.getpid(), 9)", "", ("error", "", -9, None)),
        ("x = 1 / 0", "", ("error", "", 1, None)),
        ("def f(:", "", ("error", "", 1, None)),
        ("print('a\\0b')\0", "", ("error", "", 1, None)),
        ("import threading\nthreading.Thread(target=lambda: print('t')).start()", "", ("ok", "t\n", 0, None)),
        ("import atexit\natexit.register(print, 'end')", "", ("ok", "end\n", 0, None)),
        ("import os, sys\nos.execv(sys.executable, ['x', '-S', '-c', 'print(5)'])", "", ("ok", "5\n", 0, None)),
        ("import asyncio\nasync def f(): print('a')\nasyncio.run(f())", "", ("ok", "a\n", 0, None)),
        ("if __name__ == '__main__':\n    print(__file__)", "", ("ok", "program.py\n", 0, None)),
        ("", "", ("ok", "", 0, None)),
    ],
)
def test_endings(program, stdin, expected):
    result = any_sandbox().run_sync(program, stdin=stdin)
    assert (result.status, result.stdout, result.exit_code, result.limit) == expected, result


def test_a_traceback_shows_the_programs_lines_only():
    result = any_sandbox().run_sync("def f():\n    return 1 / 0\nf()")
    head, first, line = result.stderr.splitlines()[:3]
    assert (first, line) == ('  File "program.py", line 3, in <module>', "    f()") and head.startswith("Traceback")
    assert result.stderr.endswith("ZeroDivisionError: division by zero\n") and "inside" not in result.stderr


def test_output_is_text_whatever_is_written():
    result = any_sandbox().run_sync("import os\nos.write(1, bytes([65, 255, 254, 66]))\nprint('\\ud800', 'ä')")
    assert result.stdout == "A\ufffd\ufffdB? ä\n"
    assert json.loads(json.dumps(result.to_json()))["stdout"] == result.stdout
    assert any_sandbox().run_sync("print(ascii(input()))", stdin="\ud800ä").stdout == "'\\ufffd\\ufffd\\ufffd\\xe4'\n"


def test_large_programs_inputs_and_outputs():
    filler = "# filler\n" * 100_000
    result = any_sandbox().run_sync(filler + "print(len(input()))", stdin="x" * 3_000_000)
    assert (result.status, result.stdout) == ("ok", "3000000\n")
    whole = any_sandbox().run_sync("print('x' * 65535)", limits=Limits(output_kb=64))
    assert (whole.status, len(whole.stdout)) == ("ok", 65536)
    cut = any_sandbox().run_sync("print('x' * 65536)", limits=Limits(output_kb=64))
    assert (cut.status, cut.limit, len(cut.stdout)) == ("limit", "output", 65536)


def test_limits_are_checked():
    for wrong in ({"wall": 0}, {"cpu": -1.0}, {"memory_mb": 1.5}, {"processes": True}, {"wall": float("nan")}):
        with pytest.raises(ValueError, match=f"Limits.{next(iter(wrong))} is"):
            Limits(**wrong)


def test_the_same_program_prints_sets_in_the_same_order_everywhere(sandbox):
    program = "print({'a', 'b', 'c', 'd', 'e', 'f'})"
    outputs = {asyncio.run(_many(sandbox, [program] * 6))[i].stdout for i in range(6)}
    assert len(outputs) == 1


async def _many(sandbox, programs, **options):
    return await asyncio.gather(*(sandbox.run(program, **options) for program in programs))


def test_many_at_once_from_any_loop_and_thread(sandbox):
    for _ in range(2):
        results = asyncio.run(_many(sandbox, [f"print({n})" for n in range(20)]))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]
    waiting = asyncio.run(_many(sandbox, ["import time\ntime.sleep(0.3)"] * 4))
    assert all(result.status == "ok" and result.seconds < 1.5 for result in waiting)  # waiting time does not count


def test_the_event_loop_is_free_while_programs_run(sandbox):
    async def main():
        task = asyncio.ensure_future(sandbox.run("import time\ntime.sleep(0.5)"))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        return ticks

    assert asyncio.run(main()) > 5


def test_a_worker_that_dies_is_replaced_and_the_program_tried_again(sandbox, caplog):
    assert sandbox.run_sync("print(1)").status == "ok"
    idle = sandbox._idle.get_nowait()
    os.killpg(idle._process.pid, signal.SIGKILL)
    idle._process.wait()
    sandbox._idle.put(idle)
    with caplog.at_level(logging.WARNING):
        assert sandbox.run_sync("print(2)").stdout == "2\n"
    assert "a worker failed" in caplog.text


def test_a_program_whose_workers_die_is_refused_with_the_reason(sandbox, monkeypatch):
    def dies(self, *_):
        raise worker.WorkerFailed("no luck")

    monkeypatch.setattr(worker.SandboxWorker, "execute", dies)
    result = sandbox.run_sync("print(1)")
    assert (result.status, result.stderr) == ("refused", "two workers failed: no luck")


def test_a_worker_that_does_not_answer_is_killed_in_time(sandbox, monkeypatch):
    assert sandbox.run_sync("print(1)").status == "ok"
    idle = sandbox._idle.get_nowait()
    for pid in (idle._process.pid, *descendants(idle._process.pid)):
        os.kill(pid, signal.SIGSTOP)
    sandbox._idle.put(idle)
    started = time.monotonic()
    result = sandbox.run_sync("print(1)", limits=Limits(wall=0.3))
    assert (result.status, result.limit) == ("limit", "wall") and time.monotonic() - started < 1.3
    assert sandbox.run_sync("print(1)").status == "ok"


def test_workers_are_replaced_after_a_violation_and_after_a_number_of_programs(sandbox, monkeypatch):
    monkeypatch.setattr(worker, "MAX_PROGRAMS", 3)

    def current():
        idle = sandbox._idle.get_nowait()
        sandbox._idle.put(idle)
        return idle

    sandbox.run_sync("1")
    first = current()
    sandbox.run_sync("1")
    assert current() is first
    sandbox.run_sync("1")
    assert current() is None
    sandbox.run_sync("1")
    second = current()
    assert sandbox.run_sync("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)").status == "refused"
    assert second is not None and current() is None


def test_closing_ends_what_is_running(sandbox):
    async def main():
        task = asyncio.ensure_future(sandbox.run("while True: pass", limits=Limits(wall=30, cpu=30)))
        while not sandbox._running:
            await asyncio.sleep(0.01)
        started = time.monotonic()
        await asyncio.to_thread(sandbox.close)
        with pytest.raises(RuntimeError, match="closed"):
            await task
        return time.monotonic() - started

    assert asyncio.run(main()) < 5
    with pytest.raises(RuntimeError):
        sandbox.run_sync("1")


def test_nothing_stays_behind(sandbox):
    """Run a few hundred programs of every kind; `benchmarks/sandbox.py --leaks` runs any number."""
    programs = [text for text, _ in MIXED if "while True: pass" not in text] * 20
    limits = Limits(wall=5, cpu=2, memory_mb=256)
    asyncio.run(_many(sandbox, programs[:20], limits=limits))
    before = held()
    asyncio.run(_many(sandbox, programs, limits=limits))
    after = held()
    for what in ("processes", "descriptors"):
        assert after[what] <= before[what] + 1, what
    assert after["memory_mb"] < before["memory_mb"] + 20
    sandbox.close()
    assert held()["processes"] < before["processes"]


def test_workers_end_with_the_process_that_started_them(tmp_path):
    if not any_sandbox().layers:
        pytest.skip("no sandbox")
    script = (
        "import os\nfrom envs.tasks.sandbox import Sandbox, launch, probe\n"
        f"probe.choose = lambda plans=None: (launch.{any_sandbox().plan!r}, ())\n"
        "sandbox = Sandbox(1)\nsandbox.run_sync('1')\n"
        "idle = sandbox._idle.get_nowait()\nprint(idle._process.pid, flush=True)\nos._exit(1)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    pid = int(done.stdout)
    until = time.monotonic() + 5
    while os.path.exists(f"/proc/{pid}") and time.monotonic() < until:
        time.sleep(0.02)
    assert not os.path.exists(f"/proc/{pid}")


def test_process_mode_has_limits_only_and_says_so(caplog):
    with caplog.at_level(logging.WARNING), Sandbox(1, mode="process") as limited:
        assert limited.layers == ("rlimits",) and "not isolated" in caplog.text
        assert limited.run_sync("import os\nprint(dict(os.environ))").stdout == "{}\n"
        assert limited.run_sync("while True: pass", limits=Limits(wall=1, cpu=0.3)).limit in ("cpu", "wall")
        assert limited.run_asserts_sync("def f(): return 1", ["assert f() == 1"])[0].passed
    with pytest.raises(ValueError, match="mode is 'none'"):
        Sandbox(mode="none")


def test_without_isolation_it_refuses_and_names_the_way_out(monkeypatch):
    monkeypatch.setattr(probe, "ways", lambda: (launch.Plan("bubblewrap"), launch.Plan(None)))
    fails = ["/bin/sh", "-c", "echo no namespaces here >&2; exit 1"]
    monkeypatch.setattr(launch, "command", lambda plan: fails if plan.namespaces else ["/does/not/exist"])
    with pytest.raises(SandboxUnavailable) as refusal:
        Sandbox(1)
    text = str(refusal.value)
    assert "bubblewrap: the worker did not start: no namespaces here" in text and "without namespaces: " in text
    assert "/does/not/exist" in text and "sandbox=process" in text


def test_no_attack_is_run_where_a_layer_does_not_hold(monkeypatch):
    monkeypatch.setattr(probe, "PROBES", None)  # fails if it is iterated
    layers, reason = probe.examine(launch.Plan(None, layers=False))
    assert "seccomp is not active" in reason and "seccomp" not in layers


def test_a_plan_under_which_an_attack_gets_out_is_not_chosen(monkeypatch):
    harmless = attacks.Attack("a test", "print('ESCAPED')", attacks.PROBES[0].check)
    monkeypatch.setattr(probe, "PROBES", (harmless,))
    with pytest.raises(SandboxUnavailable, match="a test: ESCAPED"):
        probe.choose((any_sandbox().plan,))


def test_one_shared_sandbox_per_process_and_mode(monkeypatch):
    made = []
    monkeypatch.setattr(pool, "Sandbox", lambda mode: made.append(mode) or any_sandbox())
    monkeypatch.setattr(pool.atexit, "register", lambda function: None)
    pool._shared.cache_clear()
    assert shared_sandbox() is shared_sandbox() and made == ["auto"]
    pool._shared.cache_clear()


def test_another_process_isolates_by_what_was_found_here(monkeypatch):
    shared = any_sandbox()
    monkeypatch.setattr(probe, "choose", lambda plans=None: pytest.fail("it was probed again"))
    monkeypatch.setattr(pool.atexit, "register", lambda function: None)
    settings = json.loads(json.dumps(shared.settings))
    same = same_sandbox(settings)
    try:
        assert same is same_sandbox(settings) and (same.plan, same.layers) == (shared.plan, shared.layers)
        assert same.run_sync("print(1)").stdout == "1\n"
    finally:
        same.close()
        pool._same.cache_clear()


def test_the_command_line_lists_layers_and_attacks(monkeypatch, capsys):
    shared = any_sandbox()
    gets_out = attacks.Attack("a hole", "print('ESCAPED here')", attacks.PROBES[0].check)
    monkeypatch.setattr(probe, "choose", lambda plans=None: (shared.plan, shared.layers))
    monkeypatch.setattr(sys, "argv", ["sandbox"])
    assert sandbox_command.main() == 0
    out = capsys.readouterr().out
    assert out.startswith(f"layers: {', '.join(shared.layers)}\n") and out.count(" contained ") == len(attacks.PROBES)
    monkeypatch.setattr(attacks, "PROBES", (gets_out,))
    assert sandbox_command.main() == 1 and "ESCAPED here" in capsys.readouterr().out


def test_the_example_of_the_docs_prints_what_the_page_shows(monkeypatch, capsys):
    shared = any_sandbox()
    monkeypatch.setattr(probe, "choose", lambda plans=None: (shared.plan, shared.layers))
    page = (ROOT / "docs" / "sandbox.md").read_text()
    code, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "text"))
    exec(compile(code, "docs/sandbox.md", "exec"), {"__name__": "example"})
    assert capsys.readouterr().out == shown


def test_results_are_json():
    result = SandboxResult("ok", "out", "", 0.1, 0)
    assert SandboxResult(**json.loads(json.dumps(result.to_json()))) == result
