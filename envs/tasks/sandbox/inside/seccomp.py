"""The seccomp-BPF filter of system calls, assembled from the tables of `syscalls.py`."""

import ctypes
import errno
import struct

from . import kernel, syscalls

ALLOW, KILL, ERROR = 0x7FFF0000, 0x80000000, 0x00050000
_NUMBER, _ARCHITECTURE = 0, 4  # offsets in struct seccomp_data
_NAMESPACES = 0x7E020000  # CLONE_NEW*
_LOAD, _AND, _RETURN = 0x20, 0x54, 0x06
_EQUAL, _GREATER, _ANY_BIT = 0x15, 0x25, 0x45


def _argument(index: int) -> int:
    return 16 + 8 * index  # the low half, on little-endian machines


def _fails(number: int) -> int:
    return ERROR | number


def _statement(code, value):
    return (code, 0, 0, value)


def _jump(code, value, yes, no):
    return (code, yes, no, value)


def _one_of(index, values, then, otherwise):
    """Return instructions that answer `then` if the argument is one of the values, else `otherwise`."""
    block = [_statement(_LOAD, _argument(index))]
    for value in values:
        block += [_jump(_EQUAL, value, 0, 1), _statement(_RETURN, then)]
    return [*block, _statement(_RETURN, otherwise)]


def _by_arguments(own_pid):
    """Return filters for system calls that depend on their arguments.

    With `own_pid`, a process may send signals only to itself.
    """
    denied = _fails(errno.EPERM)
    special = {
        "clone": [
            _statement(_LOAD, _argument(0)),
            _jump(_ANY_BIT, _NAMESPACES, 0, 1),
            _statement(_RETURN, KILL),
            _statement(_RETURN, ALLOW),
        ],
        # Stream pairs only: a datagram socket could still send to any address.
        "socketpair": [
            _statement(_LOAD, _argument(0)),
            _jump(_EQUAL, 1, 0, 3),  # AF_UNIX
            _statement(_LOAD, _argument(1)),
            _statement(_AND, 0xF),
            _jump(_EQUAL, 1, 1, 0),  # SOCK_STREAM
            _statement(_RETURN, denied),
            _statement(_RETURN, ALLOW),
        ],
        # Terminal input, and signals sent by the kernel on a file's behalf.
        "ioctl": _one_of(1, (0x5412, 0x541C, 0x8901, 0x8902), denied, ALLOW),
        "fcntl": _one_of(1, (8, 10, 15, 1031), denied, ALLOW),  # F_SETOWN, F_SETSIG, F_SETOWN_EX, F_SETPIPE_SZ
        "setsockopt": _one_of(2, (7, 8, 32, 33), denied, ALLOW),  # SO_SNDBUF, SO_RCVBUF, and the same by force
        # Children of a process that ignores SIGCHLD vanish with their CPU time. Reading the handler is allowed.
        "rt_sigaction": [
            _statement(_LOAD, _argument(0)),
            _jump(_EQUAL, 17, 0, 5),
            _statement(_LOAD, _argument(1)),
            _jump(_EQUAL, 0, 0, 2),
            _statement(_LOAD, _argument(1) + 4),
            _jump(_EQUAL, 0, 1, 0),
            _statement(_RETURN, denied),
            _statement(_RETURN, ALLOW),
        ],
        "prlimit64": _one_of(0, (0,), ALLOW, denied),
        "sendto": [  # only without an address, a pointer that is checked in two halves
            _statement(_LOAD, _argument(4)),
            _jump(_EQUAL, 0, 0, 3),
            _statement(_LOAD, _argument(4) + 4),
            _jump(_EQUAL, 0, 0, 1),
            _statement(_RETURN, ALLOW),
            _statement(_RETURN, denied),
        ],
    }
    if own_pid is not None:
        for name in ("kill", "tgkill"):
            special[name] = _one_of(0, (own_pid, 0) if name == "kill" else (own_pid,), ALLOW, denied)
        special["tkill"] = [_statement(_RETURN, denied)]
    return special


def program(column: int, architecture: int, own_pid: int | None = None) -> bytes:
    """Return the filter for the call numbers in a column of the tables."""
    actions = dict.fromkeys(syscalls.numbers(syscalls.ALLOWED, column).values(), ALLOW)
    actions |= {number: _fails(errno.EPERM) for number in syscalls.numbers(syscalls.DENIED, column).values()}
    actions |= dict.fromkeys(syscalls.numbers(syscalls.FATAL, column).values(), KILL)
    names = syscalls.numbers(syscalls.ALLOWED, column)
    lines = [
        _statement(_LOAD, _ARCHITECTURE),
        _jump(_EQUAL, architecture, 1, 0),
        _statement(_RETURN, KILL),
        _statement(_LOAD, _NUMBER),
    ]
    for name, block in _by_arguments(own_pid).items():
        if name in names:
            lines += [_jump(_EQUAL, names[name], 0, len(block)), *block]
    # One comparison per run of equal answers, in ascending order of the call numbers.
    unknown = _fails(errno.ENOSYS)
    last = max(actions)
    for number in range(last + 1):
        if number == last or actions.get(number, unknown) != actions.get(number + 1, unknown):
            lines += [_jump(_GREATER, number, 1, 0), _statement(_RETURN, actions.get(number, unknown))]
    lines.append(_statement(_RETURN, unknown))
    return b"".join(struct.pack("HBBI", *line) for line in lines)


def apply(filter_: bytes) -> None:
    """Restrict this process and its descendants; requires no-new-privileges."""
    instructions = ctypes.create_string_buffer(filter_, len(filter_))
    header = struct.pack("HxxxxxxP", len(filter_) // 8, ctypes.addressof(instructions))
    held = ctypes.create_string_buffer(header, len(header))
    kernel.prctl(kernel.PR_SET_SECCOMP, 2, ctypes.addressof(held))
