"""The control group of a worker's programs (cgroup v2).

The sandbox creates the group and passes a descriptor of its folder, because the worker does not see the file system of
control groups. The kernel then bounds what rlimits do not count, such as the buffers of sockets and pipes.
"""

import os

EXTRA_MB = 32  # memory of the kernel for the processes, and of pages that the program shares with the worker


class ControlGroup:
    """A group that every program of a worker enters; the worker itself stays outside."""

    def __init__(self, folder: int):
        self.folder = folder
        self._cpu = self._kills = 0

    @classmethod
    def usable(cls, folder):
        """Return the group, or None if there is none or a process cannot enter it.

        Args:
            folder: Descriptor of the folder of the group, or None.
        """
        if folder is None:
            return None
        group = cls(folder)
        try:
            group.start({"memory_mb": 64, "file_mb": 1, "processes": 2})
            pid = os.fork()
            if not pid:
                try:
                    group.enter()
                    os._exit(0)
                finally:
                    os._exit(1)
            if not os.waitpid(pid, 0)[1] and not group.ran_out_of_memory():
                return group
        except (OSError, ValueError, KeyError):  # not permitted, or files that this kernel lacks
            pass
        os.close(folder)
        return None

    def start(self, limits: dict) -> None:
        """Set the limits of the next program."""
        self._write("memory.max", (limits["memory_mb"] + limits["file_mb"] + EXTRA_MB) << 20)
        if "memory.swap.max" in os.listdir(self.folder):
            self._write("memory.swap.max", 0)
        self._write("pids.max", limits["processes"] + 1)
        self._cpu, self._kills = self._cpu_total(), self._numbers("memory.events")["oom_kill"]

    def enter(self) -> None:
        """Move the calling process to the group."""
        self._write("cgroup.procs", 0)

    def cpu(self) -> float:
        """Return the CPU seconds of the program so far, including processes that have ended."""
        return (self._cpu_total() - self._cpu) / 1e6

    def ran_out_of_memory(self) -> bool:
        """Return whether the kernel killed a process of the program for its memory."""
        return self._numbers("memory.events")["oom_kill"] > self._kills

    def _cpu_total(self) -> int:
        return self._numbers("cpu.stat")["usage_usec"]

    def _numbers(self, name: str) -> dict[str, int]:
        descriptor = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=self.folder)
        try:
            lines = os.read(descriptor, 1 << 16).decode().splitlines()
        finally:
            os.close(descriptor)
        return {key: int(value) for key, value in (line.split() for line in lines)}

    def _write(self, name: str, value: int) -> None:
        descriptor = os.open(name, os.O_WRONLY | os.O_CLOEXEC, dir_fd=self.folder)
        try:
            os.write(descriptor, str(value).encode())
        finally:
            os.close(descriptor)
