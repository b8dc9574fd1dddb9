"""The processes of a program: all its descendants, in any session."""

import os
import re
import signal
import time

_MEMORY = re.compile(rb"(?:RssAnon|RssShmem):\s+(\d+) kB")  # without mapped files, which are shared


class ProcessTree:
    """The descendants of the worker.

    The worker is process 1 of its namespace, or else the subreaper of orphans among its descendants.
    """

    def __init__(self, apart: bool, uid: int | None):
        self.apart, self.uid = apart, uid
        self.own = os.getpid()
        self.visible = os.path.isdir(f"/proc/{self.own}")
        self._lists_children = os.path.exists(f"/proc/{self.own}/task/{self.own}/children")
        self._tick = os.sysconf("SC_CLK_TCK")
        self._seen: dict[tuple, float] = {}

    def usage(self) -> tuple[int, int, float]:
        """Return the number of tasks, bytes of memory and CPU seconds of all descendants.

        The CPU time counts processes that have ended in one of two ways, whichever gives more: as their parents report
        it, or as it was at the last call. Parents that ignore their children report nothing.
        """
        tasks, memory, reported = 0, 0, 0.0
        for pid in self.pids():
            try:
                with open(f"/proc/{pid}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
                with open(f"/proc/{pid}/status", "rb") as file:
                    memory += sum(int(size) for size in _MEMORY.findall(file.read())) << 10
            except OSError:
                continue
            if fields[0] != b"Z":
                tasks += int(fields[17])
            own, waited = (sum(map(int, fields[at : at + 2])) / self._tick for at in (11, 13))
            reported += own + waited
            self._seen[pid, fields[19]] = own  # with the start time, as numbers are used again
        return tasks, memory, max(reported, sum(self._seen.values()))

    def pids(self) -> list[int]:
        """Return all descendants, or an empty list without /proc."""
        if not self.visible:
            return []
        if self.apart:
            return [int(name) for name in os.listdir("/proc") if name.isdigit() and int(name) != self.own]
        if not self._lists_children:
            return descendants(self.own)
        found, todo = [], [self.own]
        while todo:
            below = _children(todo.pop())
            found += below
            todo += below
        return found

    def end(self, first: int | None, limit: float = 2.0) -> bool:
        """Kill and reap all descendants, beginning with `first`, and return whether that succeeded.

        Args:
            first: Process to kill first, if any.
            limit: Seconds after which to give up.
        """
        until = time.monotonic() + limit
        self._seen.clear()
        if first is not None:
            _kill(first)
        while True:
            if not self._reap():
                return True
            self._kill_all()
            if not self._reap():
                return True
            if time.monotonic() > until:
                return False
            time.sleep(0.001)

    def _reap(self) -> bool:
        """Reap processes that have ended and return whether a child is left.

        Orphans become children of the worker, so none is missed.
        """
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return False
        return True

    def _kill_all(self):
        if self.apart:
            if os.getpid() != 1:
                raise RuntimeError("only process 1 of a namespace may signal everything")
            try:
                os.kill(-1, signal.SIGKILL)  # from process 1: everything in the namespace except itself
            except ProcessLookupError:
                return
        elif self.uid is not None:
            helper = os.fork()
            if not helper:
                try:
                    os.setresgid(self.uid, self.uid, self.uid)
                    os.setresuid(self.uid, self.uid, self.uid)
                    if 0 not in os.getresuid() and set(os.getresuid()) == {self.uid}:
                        os.kill(-1, signal.SIGKILL)  # all processes of the program's user except this one
                finally:
                    os._exit(0)
            os.waitpid(helper, 0)
        else:
            for pid in self.pids():
                _kill(pid)


def _children(pid: int) -> list[int]:
    """Return the children of a process as listed by the kernel.

    This is fast even if there are thousands of other processes.
    """
    found = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            with open(f"/proc/{pid}/task/{task}/children") as file:
                found += [int(child) for child in file.read().split()]
    except OSError:  # the process has ended
        pass
    return found


def descendants(root: int) -> list[int]:
    """Return all descendants of `root`, computed from the parents of all processes."""
    children: dict[int, list[int]] = {}
    for pid in os.listdir("/proc"):
        if not pid.isdigit():
            continue
        try:
            with open(f"/proc/{pid}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(pid))
    found, todo = [], [root]
    while todo:
        below = children.get(todo.pop(), [])
        found += below
        todo += below
    return found


def _kill(pid):
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return
