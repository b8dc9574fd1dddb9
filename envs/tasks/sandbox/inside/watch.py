"""The supervision of one program, from fork to answer.

The worker reads the program's output, enforces its limits, kills all its processes, cleans up and reports the result.
"""

import mmap
import os
import select
import signal
import time

from . import folder, wire

RESULTS_KB = 1024  # maximum size of the values of all calls together
STREAMS = ("stdout", "stderr", "results")
_SAMPLE_EVERY = 0.03


class _Stream:
    """A pipe that is read into memory of a fixed size.

    The memory is unmapped at the end, so that later forks of the worker cannot see its contents.
    """

    def __init__(self, size):
        self.reader, self.writer = os.pipe()
        os.set_blocking(self.reader, False)
        self.held = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.used = 0
        self.full = False

    def read(self) -> bool:
        """Read all available data and return False at the end of the stream."""
        while True:
            if self.used == len(self.held):
                spare = bytearray(1)
                target = memoryview(spare)
            else:
                target = memoryview(self.held)[self.used :]
            try:
                got = os.readv(self.reader, [target])
            except BlockingIOError:
                return True
            if not got:
                return False
            if self.used == len(self.held):
                self.full = True
                return True
            self.used += got

    def close(self):
        """Close the pipe and release the memory."""
        os.close(self.reader)
        self.held.close()


def run(worker, request: dict, descriptors: list[int], main) -> bool:
    """Run a program, send the answer and return whether the worker can run another one.

    Args:
        worker: The worker.
        request: Request of the sandbox.
        descriptors: Files with the program, its standard input and, if the request has calls, the calls.
        main: Function that turns the forked process into the program.
    """
    limits = request["limits"]
    size = limits["output_kb"] * 1024
    streams = dict(zip(STREAMS, (_Stream(size), _Stream(size), _Stream(RESULTS_KB * 1024)), strict=True))
    if worker.uid is not None:
        for stream in streams.values():
            os.fchown(stream.writer, worker.uid, worker.uid)  # so that the program can open /dev/stdout
    if worker.group is not None:
        worker.group.start(limits)
    ready, wrote_ready = os.pipe()
    started = time.monotonic()
    pid = os.fork()
    if not pid:
        writers = [stream.writer for stream in streams.values()]
        main(worker, request, descriptors, writers, wrote_ready)  # never returns
    for descriptor in (wrote_ready, *descriptors, *(stream.writer for stream in streams.values())):
        os.close(descriptor)
    watched = _Watch(worker, limits, streams, pid, started)
    hit = watched.until_end()
    status = watched.status
    seconds = time.monotonic() - started
    gone = worker.tree.end(pid if status is None else None)
    for stream in streams.values():
        stream.read()
    setup = os.read(ready, 4096)
    os.close(ready)
    if hit is None and any(stream.full for stream in streams.values()):
        hit = "output"
    if hit is None and worker.group is not None and worker.group.ran_out_of_memory():
        hit = "memory"
    clean = gone and folder.empty(worker.folder)
    answer = {
        "limit": hit,
        "exit_code": None if status is None else os.waitstatus_to_exitcode(status),
        "cpu": watched.used.ru_utime + watched.used.ru_stime if watched.used else 0.0,
        "memory_mb": watched.used.ru_maxrss >> 10 if watched.used else 0,
        "seconds": seconds,
        "setup": setup.decode("utf-8", "replace"),
        "clean": clean,
    }
    answer["sizes"] = [stream.used for stream in streams.values()]
    try:
        wire.send(worker.connection, answer)
        for stream in streams.values():
            worker.connection.sendall(memoryview(stream.held)[: stream.used])
    except OSError:  # the sandbox is gone
        return False
    finally:
        for stream in streams.values():
            stream.close()
    return clean and answer["exit_code"] != -signal.SIGSYS


class _Watch:
    """A loop that waits for the first process to end or for a limit."""

    def __init__(self, worker, limits, streams, pid, started):
        self.worker, self.limits, self.streams, self.pid = worker, limits, streams, pid
        self.deadline = started + limits["wall"]
        self.status = self.used = None
        self.stored = folder.used_of_filesystem(worker.folder)
        self.poll = select.poll()
        for stream in streams.values():
            self.poll.register(stream.reader, select.POLLIN)
        self.poll.register(worker.connection, select.POLLHUP)
        try:
            self.ended = os.pidfd_open(pid)
            self.poll.register(self.ended, select.POLLIN)
        except OSError:  # forbidden in some containers: poll every few milliseconds instead
            self.ended = None

    def until_end(self) -> str | None:
        """Wait and return the limit that was hit, or None if the program ended.

        In the latter case `status` is set.
        """
        try:
            return self._until_end()
        finally:
            if self.ended is not None:
                os.close(self.ended)

    def _until_end(self):
        by_reader = {stream.reader: stream for stream in self.streams.values()}
        next_sample = time.monotonic() + _SAMPLE_EVERY
        while True:
            now = time.monotonic()
            if now >= self.deadline:
                return "wall"
            if now >= next_sample:
                over = self._sample()
                if over:
                    return over
                next_sample = time.monotonic() + _SAMPLE_EVERY
            wait = min(next_sample, self.deadline) - now
            if self.ended is None:
                wait = min(wait, 0.004)
            for descriptor, _ in self.poll.poll(max(wait, 0) * 1000 + 0.5):
                if descriptor == self.worker.connection.fileno():
                    return "wall"  # the sandbox has closed the connection
                if descriptor in by_reader and not by_reader[descriptor].read():
                    self.poll.unregister(descriptor)
                if descriptor in by_reader and by_reader[descriptor].full:
                    return "output"
            done, status, used = os.wait4(self.pid, os.WNOHANG)
            if done:
                self.status, self.used = status, used
                return None

    def _sample(self):
        """Return the first exceeded limit of those that apply to all processes together."""
        tasks, memory, cpu = self.worker.tree.usage()
        if tasks > self.limits["processes"]:
            return "processes"
        if memory > self.limits["memory_mb"] << 20:
            return "memory"
        if (cpu if self.worker.group is None else self.worker.group.cpu()) > self.limits["cpu"]:
            return "cpu"
        over = folder.is_over(self.worker.folder, self.limits["file_mb"], self.worker.apart)
        return "files" if over or self._hides_files() else None

    def _hides_files(self):
        """Return whether open files without a name are larger than allowed.

        A separate file system counts them by itself. Elsewhere they are looked for only if the file system is so much
        fuller than at the start of the program, which may be due to other programs.
        """
        most = self.limits["file_mb"] << 20
        if self.worker.apart or folder.used_of_filesystem(self.worker.folder) - self.stored <= most:
            return False
        return folder.unnamed(self.worker.folder, self.worker.tree.pids(), self.worker.uid) > most
