"""System calls that the sandbox needs and Python lacks, made with ctypes."""

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long

PR_SET_PDEATHSIG, PR_SET_DUMPABLE, PR_SET_SECCOMP, PR_CAPBSET_DROP = 1, 4, 22, 24
PR_SET_CHILD_SUBREAPER, PR_SET_NO_NEW_PRIVS, PR_CAP_AMBIENT = 36, 38, 47

CLONE_NEWNS, CLONE_NEWCGROUP, CLONE_NEWUTS, CLONE_NEWIPC = 0x20000, 0x2000000, 0x4000000, 0x8000000
CLONE_NEWUSER, CLONE_NEWPID, CLONE_NEWNET = 0x10000000, 0x20000000, 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = (
    1, 2, 4, 8, 32, 4096, 16384, 1 << 18,
)  # fmt: skip
MNT_DETACH = 2

# Capabilities that a root worker keeps to give a program its own user, to kill it and to remove its files.
WORKER_CAPABILITIES = {
    "CAP_CHOWN": 0, "CAP_DAC_OVERRIDE": 1, "CAP_FOWNER": 3, "CAP_KILL": 5, "CAP_SETGID": 6, "CAP_SETUID": 7,
}  # fmt: skip


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(what: str, number: int, *arguments) -> int:
    """Make a raw system call; errors raise an OSError that mentions `what`."""
    return _checked(_libc.syscall(ctypes.c_long(number), *arguments), what)


def prctl(option: int, *arguments: int) -> int:
    """Call prctl(2) with arguments as unsigned longs."""
    padded = [ctypes.c_ulong(value) for value in (*arguments, 0, 0, 0, 0)[:4]]
    return _checked(_libc.prctl(ctypes.c_int(option), *padded), f"prctl {option}")


def unshare(flags: int) -> None:
    """Call unshare(2) to leave the namespaces selected by `flags`."""
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def mount(source: str, target: str, kind: str | None, flags: int, options: str | None = None) -> None:
    """Call mount(2)."""
    encoded = [None if text is None else os.fsencode(text) for text in (source, target, kind, options)]
    result = _libc.mount(encoded[0], encoded[1], encoded[2], ctypes.c_ulong(flags), encoded[3])
    _checked(result, f"mount {target}")


def pivot_root(folder: str) -> None:
    """Make `folder`, a mount point, the root and detach the old root."""
    os.chdir(folder)
    number = {"x86_64": 155, "aarch64": 41}[os.uname().machine]
    syscall("pivot_root", number, ctypes.c_char_p(b"."), ctypes.c_char_p(b"."))
    _checked(_libc.umount2(ctypes.c_char_p(b"."), ctypes.c_int(MNT_DETACH)), "umount of the old root")
    os.chdir("/")


def keep_capabilities(numbers=()) -> None:
    """Drop all capabilities except these, irrevocably."""
    for capability in range(64):
        if capability not in numbers:
            try:
                prctl(PR_CAPBSET_DROP, capability)
            except OSError:  # beyond the last capability, or not permitted; then execve cannot add any
                continue
    mask = sum(1 << number for number in numbers)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)  # version 3, this process
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _checked(_libc.capset(header, data), "capset")


def effective_capabilities() -> int:
    """Return the mask of effective capabilities of this process."""
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    data = (ctypes.c_uint32 * 6)()
    _checked(_libc.capget(header, data), "capget")
    return data[0] | data[3] << 32
