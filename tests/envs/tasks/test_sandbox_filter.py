"""The system call filter, run by a small BPF interpreter for both architectures, and its number tables."""

import errno
import re
import struct
from pathlib import Path

import pytest

from envs.tasks.sandbox.inside import seccomp, syscalls

MACHINES = syscalls.MACHINES.items()
EPERM, ENOSYS = (seccomp.ERROR | number for number in (errno.EPERM, errno.ENOSYS))


def answer(program, architecture, number, *arguments):
    """Return the action of the kernel for a system call."""
    data = struct.pack("<IIQ6Q", number, architecture, 0, *(*arguments, 0, 0, 0, 0, 0, 0)[:6])
    lines = [struct.unpack_from("HBBI", program, at) for at in range(0, len(program), 8)]
    at = held = 0
    while True:
        code, yes, no, value = lines[at]
        if code == 0x20:
            (held,) = struct.unpack_from("<I", data, value)
        elif code == 0x54:
            held &= value
        elif code == 0x06:
            return value
        else:
            true = {0x15: held == value, 0x25: held > value, 0x45: bool(held & value)}[code]
            at += yes if true else no
        at += 1


@pytest.mark.parametrize(("machine", "where"), MACHINES)
def test_every_call_of_the_tables_gets_its_answer(machine, where):
    column, architecture = where
    program = seccomp.program(column, architecture)
    assert len(program) // 8 < 4096
    conditional = {"clone", "socketpair", "ioctl", "fcntl", "prlimit64", "sendto", "setsockopt", "rt_sigaction"}
    for table, expected in (
        (syscalls.ALLOWED, seccomp.ALLOW), (syscalls.DENIED, EPERM), (syscalls.FATAL, seccomp.KILL),
    ):  # fmt: skip
        for name, number in syscalls.numbers(table, column).items():
            if name not in conditional:
                assert answer(program, architecture, number) == expected, name
    assert answer(program, architecture, 435) == ENOSYS  # clone3: programs fall back to clone
    assert answer(program, architecture, 5000) == ENOSYS
    assert answer(program, architecture, 0x40000000) == ENOSYS  # x32
    other = next(held[1] for name, held in MACHINES if name != machine)
    assert answer(program, other, 0) == seccomp.KILL


@pytest.mark.parametrize(("machine", "where"), MACHINES)
def test_answers_that_depend_on_arguments(machine, where):
    column, architecture = where
    number = syscalls.numbers(syscalls.ALLOWED, column)
    program = seccomp.program(column, architecture, own_pid=77)

    def does(name, *arguments):
        return answer(program, architecture, number[name], *arguments)

    assert does("clone", 0x1200011) == seccomp.ALLOW
    assert does("clone", 0x10000011) == seccomp.KILL
    assert does("socketpair", 1, 1 | 0o2000000) == seccomp.ALLOW
    assert does("socketpair", 1, 2) == does("socketpair", 2, 1) == EPERM
    assert does("sendto", 3, 0, 0, 0, 0) == seccomp.ALLOW
    assert does("sendto", 3, 0, 0, 0, 5) == does("sendto", 3, 0, 0, 0, 1 << 32) == EPERM
    assert does("fcntl", 3, 1) == seccomp.ALLOW
    assert does("fcntl", 3, 8) == does("ioctl", 0, 0x5412) == does("prlimit64", 1) == EPERM
    assert does("fcntl", 3, 1031) == does("setsockopt", 3, 1, 7) == does("setsockopt", 3, 1, 33) == EPERM
    assert does("setsockopt", 3, 1, 2) == does("rt_sigaction", 17, 0) == does("rt_sigaction", 15, 9) == seccomp.ALLOW
    assert does("rt_sigaction", 17, 9) == does("rt_sigaction", 17, 1 << 32) == EPERM
    assert does("kill", 77) == does("kill", 0) == does("tgkill", 77, 1) == seccomp.ALLOW
    assert does("kill", 1) == does("kill", (1 << 64) - 1) == does("tgkill", 1, 1) == does("tkill", 77) == EPERM


@pytest.mark.parametrize(
    ("column", "header", "pattern"),
    [
        (0, "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+) (\d+)"),
        (1, "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
)
def test_numbers_are_those_of_the_kernel(column, header, pattern):
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    known = {name: int(number) for name, number in re.findall(pattern, Path(header).read_text())}
    known.setdefault("newfstatat", known.get("fstatat"))
    for table in (syscalls.ALLOWED, syscalls.DENIED, syscalls.FATAL):
        for name, number in syscalls.numbers(table, column).items():
            if known.get(name) is not None:
                assert known[name] == number, name


def test_no_call_is_in_two_tables():
    tables = [set(syscalls.numbers(table, 0).values()) for table in (syscalls.ALLOWED, syscalls.DENIED, syscalls.FATAL)]
    assert sum(map(len, tables)) == len(set.union(*tables))
