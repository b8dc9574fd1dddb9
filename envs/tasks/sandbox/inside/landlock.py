"""Landlock rules for the files that a program may access.

Paths that are not listed cannot be read, written, created or removed.
"""

import ctypes
import fcntl
import os

from . import kernel

_CREATE, _ADD, _RESTRICT = 444, 445, 446  # the same on x86-64 and aarch64

EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1, 2, 4, 8
TRUNCATE, IOCTL_DEV = 1 << 14, 1 << 15
_ON_FILES = EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL_DEV
_ACCESS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # ABI version: all rights it defines
SCOPE_SIGNALS_ABI, NETWORK_ABI = 6, 4


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Rule(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("access", ctypes.c_uint64), ("folder", ctypes.c_int32))


def abi() -> int:
    """Return the Landlock ABI version of this kernel, or 0 without Landlock."""
    try:
        return kernel.syscall("landlock", _CREATE, None, ctypes.c_size_t(0), ctypes.c_uint32(1))
    except OSError:
        return 0


class Rules:
    """Rules that are created once in the worker and applied to every program."""

    def __init__(self, readable, writable, devices, first_descriptor: int = 3):
        version = abi()
        if not version:
            raise OSError("this kernel has no Landlock, or it is not enabled")
        self.version = version
        access = _ACCESS[max(known for known in _ACCESS if known <= version)]
        rules = _Ruleset(access, 3 if version >= NETWORK_ABI else 0, 3 if version >= SCOPE_SIGNALS_ABI else 0)
        size = 8 if version < NETWORK_ABI else 16 if version < SCOPE_SIGNALS_ABI else 24
        made = kernel.syscall(
            "landlock_create_ruleset", _CREATE, ctypes.byref(rules), ctypes.c_size_t(size), ctypes.c_uint32(0)
        )
        self._rules = fcntl.fcntl(made, fcntl.F_DUPFD_CLOEXEC, first_descriptor)
        os.close(made)
        for path in readable:
            self._allow(path, (EXECUTE | READ_FILE | READ_DIR) & access)
        for path in writable:
            self._allow(path, access & ~IOCTL_DEV)
        for path in devices:
            self._allow(path, (READ_FILE | WRITE_FILE | TRUNCATE) & access)

    def allow_listing(self, path: str) -> None:
        """Allow listing the entries of a folder without access to the files."""
        self._allow(path, READ_DIR)

    def _allow(self, path, access):
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except FileNotFoundError:
            return
        try:
            if not os.path.isdir(path):
                access &= _ON_FILES
            rule = _Rule(access, descriptor)
            kernel.syscall(
                f"landlock rule for {path}", _ADD,
                ctypes.c_int(self._rules), ctypes.c_int(1), ctypes.byref(rule), ctypes.c_uint32(0),
            )  # fmt: skip
        finally:
            os.close(descriptor)

    def apply(self) -> None:
        """Restrict this process and its descendants; requires no-new-privileges."""
        kernel.syscall("landlock_restrict_self", _RESTRICT, ctypes.c_int(self._rules), ctypes.c_uint32(0))
