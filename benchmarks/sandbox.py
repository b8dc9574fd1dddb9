"""Programs per second, wall limits and leaks of the sandbox, as JSON lines.

    python -m benchmarks.sandbox                                # programs per second, and accuracy of wall limits
    python -m benchmarks.sandbox --leaks=10000                  # processes, files and memory before and after

Every line has the active isolation layers, the number of CPUs and the load of the machine at the start: a busy machine
halves the rate. `--namespaces` selects an isolation method instead of the strongest one: bubblewrap, unshare or none.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import resource
import time
from pathlib import Path

from envs.tasks.sandbox import Limits, Sandbox, launch
from envs.tasks.sandbox.inside.tree import descendants

SMALL = "def f(n):\n    return sum(i * i for i in range(n))\n\nprint(f(int(input())))\n"

BAD = {
    "spins": "while True: pass",
    "spins in many processes": "import os\nfor _ in range(4): os.fork()\nwhile True: pass",
    "ignores signals": "import signal, time\n"
    "for n in (1, 2, 3, 13, 14, 15): signal.signal(n, signal.SIG_IGN)\ntime.sleep(99)",
    "prints": "import os\nwhile True: os.write(1, b'x' * 65536)",
    "forks": "import os\nwhile True:\n    try: os.fork()\n    except OSError: pass",
}


def report(sandbox, load, **what):
    """Print a JSON line."""
    where = {"layers": sandbox.layers, "workers": sandbox.workers, "cpus": os.cpu_count(), "load": load}
    print(json.dumps({**what, **where}), flush=True)


async def speed(sandbox, count):
    """Measure programs per second, with standard input and with three tests."""
    for what in ("run", "run_asserts"):
        load = os.getloadavg()[0]
        started, cpu = time.monotonic(), _cpu()
        if what == "run":
            jobs = (sandbox.run(SMALL, stdin=str(index)) for index in range(count))
        else:
            tests = [f"assert f({n}) == {sum(i * i for i in range(n))}" for n in (1, 5, 9)]
            jobs = (sandbox.run_asserts(SMALL.rpartition("\n\n")[0], tests) for _ in range(count))
        results = await asyncio.gather(*jobs)
        seconds = time.monotonic() - started
        right = sum(r.status == "ok" if what == "run" else all(test.passed for test in r) for r in results)
        rate = round(count / seconds, 1)
        host = round((_cpu() - cpu) / count * 1000, 2)
        report(sandbox, load, measure=what, programs=count, right=right, per_second=rate, host_cpu_ms=host)
    await overshoot(sandbox)


async def overshoot(sandbox, rounds=5):
    """Measure by how much malicious programs exceed their wall limit for the caller."""
    load = os.getloadavg()[0]
    limits = Limits(wall=0.5, cpu=60.0, processes=32)

    async def one(program):
        """Return the overshoot in seconds and the limit that ended the program."""
        started = time.monotonic()
        result = await sandbox.run(program, limits=limits)
        return time.monotonic() - started - limits.wall, result.limit

    worst = {}
    for name, program in BAD.items():
        for _ in range(rounds):
            for seconds, limit in await asyncio.gather(*(one(program) for _ in range(sandbox.workers))):
                worst[name] = max(worst.get(name, (-1.0, "")), (round(seconds, 3), limit))
    report(sandbox, load, measure="overshoot", worst=worst)


def _cpu():
    """Return the CPU seconds of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


MIXED = (  # programs and their weights in the mix
    ("print(sum(range(100)))", 60),
    ("1 / 0", 10),
    ("import os\nos._exit(3)", 5),
    ("open('file', 'w').write('x' * 10000)", 5),
    ("import os\nif not os.fork():\n    os.setsid()\n    import time\n    time.sleep(60)", 5),
    ("while True:\n    print('x' * 1000)", 5),
    ("import threading, time\nthreading.Thread(target=time.sleep, args=(60,), daemon=True).start()", 3),
    ("import os\nfor i in range(30):\n    os.makedirs(f'a/{i}/b')", 3),
    ("x = bytearray(1 << 30)", 3),
    ("import ctypes\nctypes.CDLL(None).ptrace(0, 0, 0, 0)", 0.5),
    ("while True: pass", 0.5),
)


def _user(pid):
    """Return the user id of a process, or -1."""
    try:
        return os.stat(f"/proc/{pid}").st_uid
    except OSError:
        return -1


def held():
    """Return the numbers of processes, descriptors, folders and mounts, and the memory."""
    memory = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / (1 << 20)
    return {
        "processes": len(descendants(os.getpid())),
        "of_program_users": sum(_user(name) in launch.UIDS for name in os.listdir("/proc") if name.isdigit()),
        "descriptors": len(os.listdir("/proc/self/fd")),
        "memory_mb": round(memory, 1),
        "folders": sum(name.startswith("sandbox-") for name in os.listdir(launch.scratch())),
        "mounts": len(Path("/proc/self/mounts").read_text().splitlines()),
    }


async def leaks(sandbox, count):
    """Run a mix of good and bad programs and report resources before and after.

    The first measurement follows the first batch of programs.
    """
    chance = random.Random(0)
    texts, weights = zip(*MIXED, strict=True)
    limits = Limits(wall=2.0, cpu=0.3, memory_mb=256)
    endings: dict[str, int] = {}
    before, load, started = {}, os.getloadavg()[0], time.monotonic()
    batch = min(500, count)
    for number in range(0, count, batch):
        programs = chance.choices(texts, weights, k=min(batch, count - number))
        for result in await asyncio.gather(*(sandbox.run(text, limits=limits) for text in programs)):
            ending = result.limit or result.status
            endings[ending] = endings.get(ending, 0) + 1
        before = before or held()
    seconds, after = round(time.monotonic() - started, 1), held()
    report(sandbox, load, measure="leaks", programs=count, seconds=seconds, endings=endings, before=before, after=after)


def main():
    """Parse the options and measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=500)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--namespaces", choices=("bubblewrap", "unshare", "none"))
    parser.add_argument("--python", help="Interpreter for the programs")
    parser.add_argument("--leaks", type=int, metavar="PROGRAMS")
    options = parser.parse_args()
    plan = None
    if options.namespaces or options.python:
        plan = launch.Plan(None if options.namespaces == "none" else options.namespaces, python=options.python)
    with Sandbox(options.workers, plan=plan) as sandbox:
        if options.leaks:
            asyncio.run(leaks(sandbox, options.leaks))
        else:
            asyncio.run(speed(sandbox, options.programs))


if __name__ == "__main__":
    main()
