"""Control groups (cgroup v2) for the programs of workers, where they can be created."""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import time
from pathlib import Path

NEEDED = {"memory", "pids"}


def delegated(own: str | None = None, mounts: str | None = None) -> tuple[str, str]:
    """Find a folder in which this process may create groups that have limits.

    A group with processes cannot give limits to its children, so it is an ancestor of the group of this process.

    Args:
        own: Content of /proc/self/cgroup.
        mounts: Content of /proc/self/mounts.

    Returns:
        The folder, or "", and the reason why there is none.
    """
    try:
        own = Path("/proc/self/cgroup").read_text() if own is None else own
        mounts = Path("/proc/self/mounts").read_text() if mounts is None else mounts
    except OSError as failure:
        return "", str(failure)
    root = next((line.split()[1] for line in mounts.splitlines() if line.split()[2] == "cgroup2"), None)
    path = next((line[3:] for line in own.splitlines() if line.startswith("0::")), None)
    if root is None or path is None:
        return "", "cgroup v2 is not mounted"
    for parent in [Path(root + path).parent, *Path(root + path).parent.parents]:
        if not parent.is_relative_to(root):
            break
        with contextlib.suppress(OSError):
            enabled = set((parent / "cgroup.subtree_control").read_text().split())
            if enabled >= NEEDED and os.access(parent, os.W_OK) and os.access(parent / "cgroup.procs", os.W_OK):
                return str(parent), ""
    return "", f"no ancestor of {path} gives memory and pids to new groups of this user"


@functools.cache
def parent() -> str:
    """Return the folder in which this process creates groups, or "" if it cannot."""
    return delegated()[0]


class WorkerGroup:
    """The group of a worker's programs.

    `folder` is a descriptor of its folder, or None if groups are not available.
    """

    def __init__(self):
        self.folder, self._path = None, None
        if not parent():
            return
        path = f"{parent()}/sandbox-{secrets.token_hex(8)}"
        with contextlib.suppress(OSError):
            os.mkdir(path)
            self._path = path
            self.folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def close(self) -> None:
        """Remove the group; all its processes must have ended."""
        if self.folder is not None:
            os.close(self.folder)
            self.folder = None
        if self._path is not None:
            with contextlib.suppress(OSError):
                Path(self._path, "cgroup.kill").write_text("1")
            for _ in range(20):  # while its last processes end
                with contextlib.suppress(OSError):
                    os.rmdir(self._path)
                    break
                time.sleep(0.01)
