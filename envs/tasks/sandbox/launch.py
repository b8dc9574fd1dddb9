"""Starting a worker: its interpreter, its view of the file system and its command line."""

from __future__ import annotations

import dataclasses
import functools
import glob
import json
import os
import pwd
import random
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from envs.tasks.sandbox.inside import kernel

INSIDE = Path(__file__).parent / "inside"
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
STREAMS = (
    ("/dev/fd", "/proc/self/fd"), ("/dev/stdin", "/proc/self/fd/0"), ("/dev/stdout", "/proc/self/fd/1"),
    ("/dev/stderr", "/proc/self/fd/2"),
)  # fmt: skip
SCRATCH_MB = 256  # size of the private folder if it is an in-memory file system
UIDS = range(20000, 60000)

_ASK = (
    "import json, os, sys, sysconfig\n"
    "print(json.dumps([os.path.realpath(sys._base_executable), sysconfig.get_path('stdlib'), sys.base_prefix]))"
)


@dataclasses.dataclass(frozen=True)
class Plan:
    """A way to isolate programs.

    Attributes:
        namespaces: "bubblewrap", "unshare" or None.
        layers: Whether isolation layers are applied; False for resource limits only.
        python: Interpreter of the worker; None for the current one.
        programs: Native programs that may run, and folders of files that they read.
    """

    namespaces: str | None
    layers: bool = True
    python: str | None = None
    programs: tuple[str, ...] = ()

    def __post_init__(self):
        object.__setattr__(self, "programs", tuple(self.programs))  # settings from JSON have lists


@dataclasses.dataclass(frozen=True)
class Files:
    """The parts of the file system that a worker needs.

    Attributes:
        executable: Path of the interpreter.
        readable: Paths that programs may read.
        listable: Folders whose entries may be listed.
        hidden: Folders below `listable` that are hidden.
        links: Symbolic links to create, such as /lib -> usr/lib, as (path, target).
    """

    executable: str
    readable: tuple[str, ...]
    listable: tuple[str, ...]
    hidden: tuple[str, ...]
    links: tuple[tuple[str, str], ...]


@functools.cache
def files(python: str | None = None, programs: tuple[str, ...] = ()) -> Files:
    """Return the files of an interpreter, without installed packages, and of native programs.

    They include the interpreter, its standard library and shared libraries.
    """
    if python is None:
        base = sys._base_executable  # pyright: ignore[reportAttributeAccessIssue]  not in the stubs
        executable, prefix = os.path.realpath(base), sys.base_prefix
        stdlib = sysconfig.get_path("stdlib")
    else:
        completed = subprocess.run([python, "-I", "-c", _ASK], capture_output=True, text=True, check=True)
        executable, stdlib, prefix = json.loads(completed.stdout)
    arch = f"{os.uname().machine}-linux-gnu"
    wanted = [stdlib, executable, f"/lib/{arch}", f"/usr/lib/{arch}", "/lib64", "/usr/lib64", "/usr/share/zoneinfo"]
    wanted += programs
    for folder in (f"{prefix}/lib", f"{prefix}/lib64", "/lib", "/usr/lib"):
        wanted += glob.glob(f"{folder}/*.so*")
    wanted.append("/etc/ld.so.cache")
    exist = dict.fromkeys(os.path.realpath(path) for path in wanted if os.path.exists(path))
    readable = tuple(path for path in exist if not any(path.startswith(other + "/") for other in exist))
    stdlib = os.path.realpath(stdlib)
    hidden = (f"{stdlib}/{name}" for name in ("site-packages", "dist-packages", "test"))
    return Files(
        executable, readable, (stdlib,), tuple(path for path in hidden if os.path.isdir(path)), _links(readable)
    )


def _links(readable: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the symbolic links that are not inside a readable folder.

    These are links at the root, the dynamic loader, which on ARM is a link in /usr/lib, and the standard streams.
    """
    loaders = (f"{os.path.realpath('/lib')}/{os.path.basename(path)}" for path in glob.glob("/lib/ld-linux*.so*"))
    links = [path for path in ("/lib", "/lib64", *loaders) if os.path.islink(path)]
    links = [p for p in links if not any(p.startswith(folder + "/") for folder in readable)]
    return tuple((p, os.readlink(p)) for p in links) + STREAMS


def command(plan: Plan) -> list[str]:
    """Return the command line of a worker."""
    visible = files(plan.python, plan.programs)
    python = [visible.executable, "-s", "-S", "-P", "-B", "-X", "utf8"]
    if plan.namespaces != "bubblewrap":
        return [*python, str(INSIDE / "main.py")]
    line = [shutil.which("bwrap") or "bwrap", "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts"]
    line += ["--unshare-cgroup-try", "--as-pid-1", "--cap-drop", "ALL"]
    if os.geteuid():
        line += ["--unshare-user", "--disable-userns"]
    else:
        line += [part for name in kernel.WORKER_CAPABILITIES for part in ("--cap-add", name)]
        line += ["--cap-add", "CAP_SETPCAP"]
    # Parent folders get open permissions: bubblewrap would copy those of the originals, and /root is private.
    above = {str(folder) for path in visible.readable for folder in Path(path).parents}
    for path in sorted(above - {"/", "/lib", "/lib64"}):
        line += ["--perms", "0755", "--dir", path]
    for path in visible.readable:
        line += ["--ro-bind", path, path]
    for path, target in visible.links:
        line += ["--symlink", target, path]
    for path in visible.hidden:
        line += ["--perms", "0755", "--size", "4096", "--tmpfs", path, "--remount-ro", path]
    for path in DEVICES:
        line += ["--dev-bind-try", path, path]
    line += ["--ro-bind", str(INSIDE), "/.sandbox/inside", "--proc", "/proc"]
    line += ["--perms", "0700", "--size", str(SCRATCH_MB << 20), "--tmpfs", "/tmp", "--remount-ro", "/", "--chdir", "/"]
    return [*line, "--", *python, "/.sandbox/inside/main.py"]


def own_user() -> int | None:
    """Return an unused user id for a worker's programs, or None if not permitted."""
    if os.geteuid() or not kernel.effective_capabilities() >> kernel.WORKER_CAPABILITIES["CAP_SETUID"] & 1:
        return None
    taken = {entry.pw_uid for entry in pwd.getpwall()}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                taken.add(os.stat(f"/proc/{name}").st_uid)
            except FileNotFoundError:
                continue
    return random.SystemRandom().choice([uid for uid in UIDS if uid not in taken])


def scratch() -> str:
    """Return the parent of private folders that are not separate file systems.

    It is in memory if there is enough space, because every program creates and removes files.
    """
    shared = "/dev/shm"
    if os.access(shared, os.W_OK) and (held := os.statvfs(shared)).f_bavail * held.f_frsize > 1 << 30:
        return shared
    return tempfile.gettempdir()


def mount_point(readable) -> str | None:
    """Return an existing folder to mount a new root on that contains no readable path."""
    for folder in ("/mnt", "/media", "/srv"):
        if os.path.isdir(folder) and not any(path.startswith(folder + "/") for path in readable):
            return folder
    return None
