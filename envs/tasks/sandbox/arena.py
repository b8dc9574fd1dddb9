"""Targets outside the sandbox that attacks try to reach."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import tempfile
from pathlib import Path


class Arena:
    """Files, sockets and a process outside the sandbox that a program must not reach."""

    def __init__(self):
        self.secret = secrets.token_hex(16)
        self.token = secrets.token_hex(5)  # names processes; short enough for the kernel's limit
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="arena-"))
        os.chmod(self.folder, 0o777)
        self.file = os.path.join(self.folder, "secret")
        with open(self.file, "w") as file:
            file.write(self.secret)
        os.chmod(self.file, 0o666)
        self.before = self._state()
        self.sockets = [self._listen(*where) for where in self._addresses()]
        self.victim = self._stack.enter_context(
            subprocess.Popen([sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"])
        )
        self.reach = {
            "file": self.file, "folder": self.folder, "token": self.token,
            "victim": self.victim.pid, "host": os.getpid(),
            "tcp": [held.getsockname()[:2] for held in self.sockets if held and held.family == socket.AF_INET],
            "tcp6": [held.getsockname()[:2] for held in self.sockets if held and held.family == socket.AF_INET6],
            "unix": [_text(held.getsockname()) for held in self.sockets if held and held.family == socket.AF_UNIX],
        }  # fmt: skip

    def _addresses(self):
        stream, datagram = socket.SOCK_STREAM, socket.SOCK_DGRAM
        for kind in (stream, datagram):
            yield socket.AF_INET, kind, ("127.0.0.1", 0)
            yield socket.AF_INET6, kind, ("::1", 0)
            yield socket.AF_UNIX, kind, f"{self.folder}/socket{kind}"
            yield socket.AF_UNIX, kind, f"\0arena-{self.token}-{kind}"

    def _listen(self, family, kind, address):
        try:
            held = self._stack.enter_context(socket.socket(family, kind))
            held.bind(address)
        except OSError:  # no IPv6 on this machine: nothing to reach
            return None
        if kind == socket.SOCK_STREAM:
            held.listen()
        elif family == socket.AF_UNIX and isinstance(address, str) and not address.startswith("\0"):
            os.chmod(address, 0o777)
        held.setblocking(False)
        return held

    def _state(self):
        info = os.stat(self.file)
        names = sorted(name for name in os.listdir(self.folder) if not name.startswith("socket"))
        return info.st_mode, info.st_uid, info.st_gid, info.st_size, info.st_mtime_ns, names

    def changed(self) -> str:
        """Describe how the file or folder changed; return "" if it did not."""
        try:
            now = self._state()
        except OSError as failure:
            return f"the file is gone: {failure}"
        return "" if now == self.before else f"{self.before} became {now}"

    def received(self) -> str:
        """Return a description of the first listener that was reached, or ""."""
        for held in self.sockets:
            if held is None:
                continue
            with contextlib.suppress(BlockingIOError):
                if held.type == socket.SOCK_STREAM:
                    held.accept()[0].close()
                else:
                    held.recv(100)
                return f"{held.family.name} {_text(held.getsockname())} was reached"
        return ""

    def processes(self) -> int:
        """Return the number of processes on the machine that are named after the token."""
        count = 0
        for name in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if name.isdigit() and self.token in Path(f"/proc/{name}/comm").read_text():
                    count += 1
        return count

    def close(self) -> None:
        """Remove all targets and anything that an attack created."""
        self.victim.kill()
        for folder in ("/var/tmp", "/dev/shm"):
            with contextlib.suppress(FileNotFoundError):
                os.unlink(f"{folder}/{self.token}")
            with contextlib.suppress(FileNotFoundError):
                os.rmdir(f"{folder}/{self.token}-folder")
        self._stack.close()


def _text(address):
    return address.decode() if isinstance(address, bytes) else address
