"""Limits that programs try to evade, control groups, and programs that run at the same time."""

import asyncio
import json
import time

import pytest

from envs.tasks.sandbox import Limits, Sandbox, cgroups
from envs.tasks.sandbox.inside.tree import descendants
from tests.envs.tasks.sandboxes import WAYS, any_sandbox, plan_of, sandbox_of

SOCKETS = """
import os, socket, time
def fill():
    total, held = 0, []
    try:
        while True:
            for one in socket.socketpair():
                held.append(one)
                one.setblocking(False)
                try:
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
                except OSError:
                    pass
                try:
                    while True:
                        total += one.send(bytes(1 << 16))
                except BlockingIOError:
                    pass
    except OSError:  # no more descriptors
        return total, held
reader, writer = os.pipe()
for _ in range(6):
    if not os.fork():
        total, held = fill()
        os.write(writer, b"%d\\n" % total)
        time.sleep(0.3)
        os._exit(0)
os.close(writer)
print(sum(map(int, os.fdopen(reader))) >> 20)
"""

UNNAMED = """
import os, sys, time
held, block = [], bytes(1 << 20)
for number in range(12):
    if sys.argv[0] and number % 2:
        held.append(os.open(".", os.O_TMPFILE | os.O_RDWR))
    else:
        held.append(os.open("x", os.O_RDWR | os.O_CREAT))
        os.unlink("x")
    for _ in range(15):
        os.write(held[-1], block)
    print(15 * (number + 1), flush=True)
    time.sleep(0.05)
"""

SENT = """
import os, socket, time
left, right = socket.socketpair()
for number in range(6):
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    for _ in range(15):
        os.write(file, bytes(1 << 20))
    socket.send_fds(left, [b"x"], [file])
    os.close(file)
    time.sleep(0.05)
"""

OF_THREADS = """
import ctypes, os, time
libc, stacks = ctypes.CDLL(None), []
libc.clone.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
for number in range(6):
    file = os.open("x", os.O_RDWR | os.O_CREAT)
    os.unlink("x")
    for _ in range(15):
        os.write(file, bytes(1 << 20))
    stacks.append(ctypes.create_string_buffer(1 << 16))
    top = (ctypes.addressof(stacks[-1]) + (1 << 16) - 64) & ~15
    flags = 0x100 | 0x200 | 0x800 | 0x10000  # a thread without CLONE_FILES
    assert libc.clone(ctypes.cast(libc.pause, ctypes.c_void_p), top, flags, None) > 0
    os.close(file)
    time.sleep(0.05)
os._exit(0)
"""

VANISHING = """
import os, signal, time
try:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
except OSError as refused:
    print(refused)
while True:
    child = os.fork()
    if not child:
        end = time.process_time() + SECONDS
        while time.process_time() < end:
            pass
        os._exit(0)
    try:
        os.waitpid(child, 0)
    except OSError:
        pass
"""


@pytest.mark.nightly_for("none")
@pytest.mark.parametrize("way", WAYS)
def test_buffers_of_sockets_fit_in_the_memory_limit(way):
    result = sandbox_of(way).run_sync(SOCKETS, limits=Limits(wall=10.0, memory_mb=128))
    assert result.status == "ok" and int(result.stdout) <= 128, result


@pytest.mark.parametrize("way", WAYS)
def test_open_files_without_a_name_count(way):
    result = sandbox_of(way).run_sync(UNNAMED, limits=Limits(wall=10.0, file_mb=16))
    assert result.limit == "files" and int(result.stdout.split()[-1]) <= 60, result


@pytest.mark.nightly_for("unshare")
@pytest.mark.parametrize("way", WAYS)
def test_open_files_of_threads_and_sockets_count(way):
    limits = Limits(wall=10.0, file_mb=16)
    assert sandbox_of(way).run_sync(OF_THREADS, limits=limits).limit == "files"
    sent = sandbox_of(way).run_sync(SENT, limits=limits)
    assert "Operation not permitted" in sent.stderr, sent


@pytest.mark.nightly_for("unshare")
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_hides_its_open_files_is_stopped(way):
    hidden = "import ctypes\nctypes.CDLL(None).prctl(4, 0, 0, 0, 0)\n" + UNNAMED
    assert sandbox_of(way).run_sync(hidden, limits=Limits(wall=10.0, file_mb=16)).limit == "files"


@pytest.mark.nightly_for("*-0.2", "none-*")
@pytest.mark.parametrize("seconds", [0.2, 0.01])
@pytest.mark.parametrize("way", WAYS)
def test_cpu_time_of_ignored_children_counts(way, seconds):
    program = VANISHING.replace("SECONDS", str(seconds))
    result = sandbox_of(way).run_sync(program, limits=Limits(wall=20.0, cpu=0.3))
    assert result.limit == "cpu" and result.seconds < 10, result


@pytest.mark.nightly
def test_cpu_time_of_ignored_children_counts_without_isolation():
    with Sandbox(1, mode="process") as sandbox:
        program = VANISHING.replace("SECONDS", "0.2")
        assert sandbox.run_sync(program, limits=Limits(wall=20.0, cpu=0.3)).limit == "cpu"


def test_lines_on_the_results_descriptor_cost_nothing_outside():
    program = "import os\nos.write(5, b'\\n' * (1 << 20))\ndef f(x): return x"
    began = time.process_time()
    results = any_sandbox().run_calls_sync(program, ["f(1)", "f(2)"])
    assert time.process_time() - began < 0.5 and all(result.status != "ok" for result in results)
    garbage = "import os\nos.write(5, b'[0, 1, 2]\\n' * 100)\ndef f(x): return x"
    assert [result.status for result in any_sandbox().run_calls_sync(garbage, ["f(1)"])] == ["error"]


# ---------------------------------------------------------------------------------------------------- control groups


def make_tree(root, **groups):
    """Make a folder of control groups; the values are the enabled controllers."""
    for name, controllers in groups.items():
        folder = root / name.replace("__", "/").removeprefix("top")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "cgroup.subtree_control").write_text(controllers)
        (folder / "cgroup.procs").write_text("")
    return f"cgroup2 {root} cgroup2 rw 0 0\n"


def test_the_nearest_ancestor_that_gives_limits_is_used(tmp_path):
    mounts = make_tree(tmp_path, top="cpu memory pids", user="memory pids", user__app="pids", user__app__me="")
    assert cgroups.delegated("4:memory:/x\n0::/user/app/me\n", mounts) == (str(tmp_path / "user"), "")
    assert cgroups.delegated("0::/user\n", mounts) == (str(tmp_path), "")


def test_without_a_delegated_group_the_reason_is_given(tmp_path):
    mounts = make_tree(tmp_path, top="hugetlb", me="")
    assert cgroups.delegated("0::/me\n", mounts) == (
        "",
        "no ancestor of /me gives memory and pids to new groups of this user",
    )
    assert cgroups.delegated("0::/\n", mounts)[0] == "", "a group with processes cannot limit its children"
    assert cgroups.delegated("0::/me\n", "tmpfs / tmpfs rw 0 0\n") == ("", "cgroup v2 is not mounted")


def test_a_group_that_cannot_be_entered_is_not_used(tmp_path, monkeypatch):
    make_tree(tmp_path, top="memory pids")
    monkeypatch.setattr(cgroups, "parent", lambda: str(tmp_path))
    with Sandbox(1, plan=any_sandbox().plan, layers=("known",)) as sandbox:
        assert sandbox.run_sync("print(1)").stdout == "1\n"


@pytest.mark.parametrize("way", WAYS)
def test_the_kernel_counts_all_memory_of_a_group(way):
    if not cgroups.parent():
        pytest.skip(cgroups.delegated()[1])
    sandbox = sandbox_of(way)
    assert "cgroup" in sandbox.layers
    for limits in (Limits(wall=10.0, memory_mb=64), Limits(wall=10.0, memory_mb=96)):
        spread = (
            "import os, time\nfor _ in range(6):\n    if not os.fork(): break\nx = b'x' * (25 << 20)\ntime.sleep(600)"
        )
        assert sandbox.run_sync(spread, limits=limits).limit == "memory"
    assert sandbox.run_sync("print('after')").stdout == "after\n"


# ---------------------------------------------------------------------------------------------------- neighbours

VICTIM = """
import os, signal, socket, sys, time
def surprised(*_): print("ESCAPED signal", flush=True)
for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP): signal.signal(number, surprised)
with open("secret", "w") as file: file.write("held")
left, right = socket.socketpair()
print(os.getpid(), flush=True)
until = time.monotonic() + 1.2
while time.monotonic() < until: sum(range(10000))
print(sorted(os.listdir(".")), open("secret").read())
"""

INTRUDER = """
import os, signal, socket, time
def attempt(what, function, *arguments):
    try:
        got = function(*arguments)
    except (OSError, OverflowError):
        return
    print("ESCAPED", what, repr(got)[:100])
own = {os.getpid(), os.getppid()}
print(os.listdir("."))
until = time.monotonic() + 0.8
while time.monotonic() < until:
    for pid in set(range(2, 3000)) | set(PIDS):
        if pid not in own:
            attempt(f"signal to {pid}", os.kill, pid, signal.SIGUSR1)
    for pid in PIDS:
        for name in ("fd", "cwd", "root", "task"): attempt(name, os.listdir, f"/proc/{pid}/{name}")
        for name in ("mem", "maps", "environ", "cwd/secret"): attempt(name, open, f"/proc/{pid}/{name}")
        attempt("priority", os.setpriority, os.PRIO_PROCESS, pid, 19)
        attempt("affinity", os.sched_setaffinity, pid, {0})
    for folder in FOLDERS:
        attempt(folder, os.listdir, folder)
        attempt(folder, open, folder + "/secret")
    time.sleep(0.05)
"""


@pytest.mark.nightly_for("unshare")
@pytest.mark.parametrize("way", WAYS)
def test_programs_at_the_same_time_neither_see_nor_signal_each_other(way):
    shared = sandbox_of(way)
    with Sandbox(2, plan=plan_of(way), layers=shared.layers) as sandbox:

        async def both():
            limits = Limits(wall=20.0, cpu=10.0)
            await asyncio.gather(*(sandbox.run("import time\ntime.sleep(0.2)") for _ in range(2)))  # start both workers
            victim, pids, folders = asyncio.create_task(sandbox.run(VICTIM, limits=limits)), [], []
            while not pids and not victim.done():
                await asyncio.sleep(0.1)
                pids, folders = descendants_of(sandbox)
            program = f"PIDS = {pids!r}\nFOLDERS = {folders!r}\n" + INTRUDER
            return pids, *await asyncio.gather(victim, sandbox.run(program, limits=limits))

        pids, victim, intruder = asyncio.run(both())
    assert pids and victim.status == "ok" and victim.stdout.endswith("['secret'] held\n"), victim
    assert "ESCAPED" not in victim.stdout and intruder.status == "ok", intruder
    assert intruder.stdout == "[]\n", "it shares no folder, process or descriptor"


def descendants_of(sandbox):
    """Return the process numbers of running programs outside, and the private folders."""
    workers = list(sandbox._running)
    return (
        [pid for worker in workers for pid in descendants(worker._process.pid)],
        [worker._folder for worker in workers if worker._folder is not None],
    )


@pytest.mark.nightly
@pytest.mark.parametrize("way", WAYS)
def test_a_program_that_uses_all_its_limits_does_not_fail_its_neighbour(way):
    greedy = (
        "import os\nfor _ in range(14):\n    if not os.fork(): break\n"
        "open(f'f{os.getpid()}', 'wb').write(bytes(1 << 20))\nx = b'x' * (8 << 20)\nwhile True: pass"
    )
    modest = (
        "import os, json\nchildren = []\nfor _ in range(8):\n    child = os.fork()\n"
        "    if not child: os._exit(0)\n    os.waitpid(child, 0)\nx = b'x' * (100 << 20)\n"
        "open('f', 'wb').write(bytes(8 << 20))\nprint(json.dumps([sum(range(10**6)), os.listdir('.')]))"
    )
    with Sandbox(3, plan=plan_of(way), layers=sandbox_of(way).layers) as sandbox:

        async def crowd():
            alone = [asyncio.create_task(sandbox.run(greedy, limits=Limits(wall=4.0, cpu=1.5))) for _ in range(2)]
            await asyncio.sleep(0.2)
            return await sandbox.run(modest, limits=Limits(wall=20.0)), await asyncio.gather(*alone)

        result, others = asyncio.run(crowd())
    assert result.status == "ok" and json.loads(result.stdout) == [499999500000, ["f"]], result
    assert all(other.limit in ("cpu", "wall") for other in others), others
