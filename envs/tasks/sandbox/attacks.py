"""Programs that try to escape from the sandbox, and checks for their success.

A check looks for changes to the arena, for messages received outside and for the program's output; a program that
reaches something prints it. The arena provides the targets: a file, listeners and a process of the same user.

A successful attack must do no harm, because it runs before isolation is known to work. It changes and kills only what
the arena created for it. Everything else is only read, or sent signal 0.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable

from envs.tasks.sandbox.arena import Arena
from envs.tasks.sandbox.results import Limits, SandboxResult


@dataclasses.dataclass(frozen=True)
class Attack:
    """A program that attacks the targets in `REACH`, and a check of the result.

    The check returns a description of what escaped, or "" if the attack was contained.
    """

    name: str
    program: str
    check: Callable[[Arena, SandboxResult], str]
    limits: Limits = Limits(wall=3.0, cpu=3.0)

    def source(self, arena: Arena) -> str:
        """Return the source of the program with the targets of an arena."""
        return f"REACH = {arena.reach!r}\n{_TRY}{self.program}"


# `attempt` prints ESCAPED if a forbidden operation succeeds.
_TRY = """
import ctypes, os, signal, socket, sys, time
libc = ctypes.CDLL(None, use_errno=True)
def attempt(what, function, *arguments):
    try:
        got = function(*arguments)
    except BaseException as failure:
        print(what, type(failure).__name__, failure)
    else:
        print("ESCAPED", what, repr(got)[:200])
def read(path):
    with open(path, "rb") as file:
        return file.read(200)
"""


def printed(arena: Arena, result: SandboxResult) -> str:
    """Return output that shows an escape: a line marked ESCAPED or the secret."""
    for line in result.stdout.splitlines():
        if line.startswith("ESCAPED") or arena.secret in line:
            return line
    return arena.secret if arena.secret in result.stderr else ""


def _environment(arena, result):
    held = [name for name, value in os.environ.items() if len(value) > 7 and value in result.stdout]
    return f"the variables {held}" if held else printed(arena, result)


def _files(arena, result):
    return printed(arena, result) or arena.changed()


def _network(arena, result):
    return printed(arena, result) or arena.received()


def _processes(arena, result):
    if arena.victim.poll() is not None:
        return "another process was killed"
    return printed(arena, result)


def ended(limit=None):
    """Return a check that no process is left and an expected limit was hit.

    Args:
        limit: Names of the expected limits; None for any ending.
    """

    def check(arena, result):
        time.sleep(0.05)
        left = arena.processes()
        if left:
            return f"{left} processes are still running"
        if limit is not None and result.limit not in limit:
            return f"ended with {result.status} {result.limit}, but must hit one of the limits {limit}"
        return printed(arena, result)

    return check


def refused(arena, result):
    """Check that a system call was rejected."""
    return "" if result.status == "refused" else f"ended with {result.status}: {result.stdout[-200:]}"


PROBES = (
    Attack(
        "environment variables",
        """
print(dict(os.environ))
for process in ("self", 1, os.getppid(), REACH["host"]):
    attempt(process, read, f"/proc/{process}/environ")
""",
        _environment,
    ),
    Attack(
        "reading files of the trainer",
        """
host = REACH["host"]
for path in (REACH["file"], "/etc/passwd", "/proc/self/maps", f"/proc/{host}/maps", f"/proc/{host}/mem", "/dev/mem",
             f"/proc/{host}/cwd/README.md", f"/proc/{host}/root/etc/passwd", f"/proc/{host}/cmdline"):
    attempt(path, read, path)
for path in (REACH["folder"], "/", "/root", "/home", "/tmp/..", f"/proc/{host}/fd", "/dev"):
    attempt(path, os.listdir, path)
for descriptor in range(3, 300):
    try:
        os.fstat(descriptor)
    except OSError:
        continue
    print("ESCAPED descriptor", descriptor)
""",
        _files,
    ),
    Attack(
        "writing and removing outside",
        """
def write(path):
    with open(path, "w") as file:
        file.write("x")
for folder in (REACH["folder"], "/var/tmp", "/dev/shm"):
    attempt(folder, write, f"{folder}/{REACH['token']}")
    attempt(folder, os.mkdir, f"{folder}/{REACH['token']}-folder")
attempt("a file without a name", os.open, "/etc", os.O_TMPFILE | os.O_RDWR)
attempt("write", write, REACH["file"])
attempt("append", os.open, REACH["file"], os.O_WRONLY | os.O_APPEND)
attempt("truncate", os.truncate, REACH["file"], 0)
attempt("unlink", os.unlink, REACH["file"])
attempt("rename", os.rename, REACH["file"], REACH["file"] + "2")
attempt("take", os.rename, REACH["file"], "mine")
attempt("link", os.link, REACH["file"], "mine")
os.symlink(REACH["file"], "link")
attempt("through a link", read, "link")
""",
        _files,
    ),
    Attack(
        "modes, owners and times outside",
        """
attempt("chmod", os.chmod, REACH["file"], 0o600)
attempt("chown", os.chown, REACH["file"], os.getuid(), os.getgid())
attempt("utime", os.utime, REACH["file"], (1, 1))
attempt("setxattr", os.setxattr, REACH["file"], "user.mark", b"x")
attempt("nice", os.setpriority, os.PRIO_PROCESS, REACH["victim"], 19)
attempt("chroot", os.chroot, "/")
attempt("setuid", os.setuid, 0)
""",
        _files,
    ),
    Attack(
        "network over IPv4",
        """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for address in REACH["tcp"]:
        def send():
            with socket.socket(socket.AF_INET, kind) as held:
                held.settimeout(1); held.connect(tuple(address)); held.send(b"x")
        attempt(address, send)
attempt("raw", socket.socket, socket.AF_INET, socket.SOCK_RAW, 1)
attempt("packet", socket.socket, 17, socket.SOCK_RAW)
attempt("netlink", socket.socket, 16, socket.SOCK_RAW)
attempt("vsock", socket.socket, 40, socket.SOCK_STREAM)
""",
        _network,
    ),
    Attack(
        "network over IPv6",
        """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for address in REACH["tcp6"] or [("::1", 9)]:
        def send():
            with socket.socket(socket.AF_INET6, kind) as held:
                held.settimeout(1); held.connect(tuple(address)); held.send(b"x")
        attempt(address, send)
""",
        _network,
    ),
    Attack(
        "unix sockets",
        """
for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
    for address in REACH["unix"]:
        def send():
            with socket.socket(socket.AF_UNIX, kind) as held:
                held.connect(address); held.send(b"x")
        attempt(address, send)
def through_pair():
    held, _ = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    for address in REACH["unix"]:
        held.sendto(b"x", address)
attempt("a pair of datagram sockets", through_pair)
""",
        _network,
    ),
    Attack(
        "signals to other processes",
        """
attempt("kill", os.kill, REACH["victim"], signal.SIGKILL)
attempt("pidfd", lambda: signal.pidfd_send_signal(os.pidfd_open(REACH["victim"]), signal.SIGKILL))
for pid in {REACH["host"], os.getppid()} - {1}:  # whether it could; process 1 of a namespace ignores signals
    attempt(pid, os.kill, pid, 0)
""",
        _processes,
    ),
    Attack(
        "a child that outlives its parent",
        """
for _ in range(3):
    if not os.fork():
        os.setsid()
        libc.prctl(15, REACH["token"].encode(), 0, 0, 0)
        if not os.fork():
            for number in range(1, 32):
                try:
                    signal.signal(number, signal.SIG_IGN)
                except (OSError, ValueError):
                    pass
            time.sleep(600)
        os._exit(0)
""",
        ended(),
    ),
    Attack("tracing another process", "libc.ptrace(16, REACH['victim'], 0, 0)\n", refused),
)
