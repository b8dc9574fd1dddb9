"""Mount, PID, network, IPC and UTS namespaces by unshare(2), without bubblewrap.

As root this needs no user namespace. Otherwise it needs unprivileged user namespaces, which some systems forbid.
"""

import os
import stat

from . import kernel

# Mount flags that only the mount's owner may clear; a remount in a user namespace has to repeat them.
_LOCKED = {os.ST_NOSUID: kernel.MS_NOSUID, os.ST_NODEV: kernel.MS_NODEV, os.ST_NOEXEC: kernel.MS_NOEXEC}
_LOCKED |= {os.ST_NOATIME: 1024, os.ST_NODIRATIME: 2048, os.ST_RELATIME: 1 << 21}


def enter(spec: dict) -> None:
    """Move this process to new namespaces with a new root, as process 1.

    The calling process remains in its PID namespace and waits for its child, which continues.

    Args:
        spec: Specification of the worker. `root` is the folder to build the root on. `readable`, `devices` and `links`
            are its contents, and `hidden` are folders in it to cover. `/tmp` is an in-memory file system of at most
            `scratch_mb`.
    """
    privileged = bool(kernel.effective_capabilities() & 1 << 21)  # CAP_SYS_ADMIN
    flags = kernel.CLONE_NEWNS | kernel.CLONE_NEWPID | kernel.CLONE_NEWNET | kernel.CLONE_NEWIPC | kernel.CLONE_NEWUTS
    uid, gid = os.geteuid(), os.getegid()
    kernel.unshare(flags | (0 if privileged else kernel.CLONE_NEWUSER))
    if not privileged:
        _write("/proc/self/setgroups", "deny")
        _write("/proc/self/uid_map", f"{uid} {uid} 1")
        _write("/proc/self/gid_map", f"{gid} {gid} 1")
    kernel.mount("none", "/", None, kernel.MS_REC | kernel.MS_PRIVATE)
    child = os.fork()
    if child:
        os.close(0)  # the worker's end of the connection
        _, status = os.waitpid(child, 0)
        os._exit(os.waitstatus_to_exitcode(status) & 0xFF)
    _build_root(spec)
    kernel.pivot_root(spec["root"])
    plain = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("none", "/", None, kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | plain)


def _write(path, text):
    with open(path, "w") as file:
        file.write(text)


def _build_root(spec):
    root = spec["root"]
    plain = kernel.MS_NOSUID | kernel.MS_NODEV
    kernel.mount("tmpfs", root, "tmpfs", plain, "size=1m,mode=755")
    for path in spec["readable"]:
        _bind(path, root + path, kernel.MS_RDONLY | plain)
    for path in spec["devices"]:
        _bind(path, root + path, kernel.MS_NOSUID | kernel.MS_NOEXEC)
    for path, target in spec["links"]:
        os.symlink(target, root + path)
    for path in spec["hidden"]:
        kernel.mount("tmpfs", root + path, "tmpfs", plain | kernel.MS_RDONLY, "size=4k,mode=755")
    os.makedirs(root + "/tmp", exist_ok=True)
    kernel.mount("tmpfs", root + "/tmp", "tmpfs", plain, f"size={spec['scratch_mb']}m,mode=700,nr_inodes=16384")
    os.makedirs(root + "/proc", exist_ok=True)
    try:
        kernel.mount("proc", root + "/proc", "proc", plain | kernel.MS_NOEXEC)
    except PermissionError:  # not allowed if parts of /proc are covered, as in containers
        os.rmdir(root + "/proc")


def _bind(source, target, flags):
    try:
        is_folder = stat.S_ISDIR(os.stat(source).st_mode)
    except FileNotFoundError:
        return
    if is_folder:
        os.makedirs(target, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(target), exist_ok=True)
        os.close(os.open(target, os.O_CREAT | os.O_WRONLY, 0o444))
    kernel.mount(source, target, None, kernel.MS_BIND | kernel.MS_REC)
    now = os.statvfs(target).f_flag
    locked = sum(flag for held, flag in _LOCKED.items() if now & held)
    kernel.mount("none", target, None, kernel.MS_REMOUNT | kernel.MS_BIND | flags | locked)
