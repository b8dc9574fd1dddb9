"""The private folder of programs: checking its size and emptying it."""

import os
import stat
import struct

MAX_ENTRIES = 1024


def is_over(folder: str, megabytes: int, own_filesystem: bool) -> bool:
    """Check whether the folder contains more than allowed."""
    if own_filesystem:
        held = os.statvfs(folder)
        used, entries = (held.f_blocks - held.f_bfree) * held.f_frsize, held.f_files - held.f_ffree
        return used > megabytes << 20 or entries > MAX_ENTRIES
    used = seen = 0
    folders = [folder]
    while folders:
        try:
            with os.scandir(folders.pop()) as entries:
                for entry in entries:
                    seen += 1
                    if seen > MAX_ENTRIES:
                        return True
                    if entry.is_dir(follow_symlinks=False):
                        folders.append(entry.path)
                    else:
                        used += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError as failure:
            if isinstance(failure, FileNotFoundError):
                continue  # removed in the meantime
            return True  # no access, or nested too deeply for a path
    return used > megabytes << 20


def used_of_filesystem(folder: str) -> int:
    """Return the bytes in use of the file system that contains the folder."""
    held = os.statvfs(folder)
    return (held.f_blocks - held.f_bfree) * held.f_frsize


def unnamed(folder: str, pids: list[int], uid: int | None) -> int:
    """Return the bytes of files without a name that processes hold open or map.

    A process that hides its files counts as one that holds too many.

    Args:
        folder: Folder on the file system of the files.
        pids: The processes.
        uid: User of the processes; None if it is that of the caller.
    """
    device = os.stat(folder).st_dev
    if uid is None:
        return _unnamed(device, pids)
    reader, writer = os.pipe()
    helper = os.fork()
    if not helper:
        try:
            os.setresgid(uid, uid, uid)
            os.setresuid(uid, uid, uid)
            os.write(writer, struct.pack("Q", _unnamed(device, pids)))
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(helper, 0)
    counted = os.read(reader, 8)
    os.close(reader)
    return struct.unpack("Q", counted)[0] if len(counted) == 8 else 1 << 62


def _unnamed(device: int, pids: list[int]) -> int:
    sizes: dict[int, int] = {}
    for pid in pids:
        try:
            for task in os.listdir(f"/proc/{pid}/task"):  # a thread can have separate descriptors
                for name in os.listdir(f"/proc/{pid}/task/{task}/fd"):
                    held = os.stat(f"/proc/{pid}/task/{task}/fd/{name}")
                    if stat.S_ISREG(held.st_mode) and not held.st_nlink and held.st_dev == device:
                        sizes[held.st_ino] = held.st_blocks * 512
            with open(f"/proc/{pid}/maps") as lines:
                for line in lines:
                    span, _, _, where, inode, *path = line.split(maxsplit=5)
                    major, minor = (int(part, 16) for part in where.split(":"))
                    if path and path[0].rstrip().endswith(" (deleted)") and os.makedev(major, minor) == device:
                        low, high = (int(part, 16) for part in span.split("-"))
                        sizes.setdefault(int(inode), high - low)
        except PermissionError:
            if _has_memory(pid):
                return 1 << 62
        except OSError:  # the process or a file was closed in the meantime
            continue
    return sum(sizes.values())


def _has_memory(pid: int) -> bool:
    """Return whether a process still has memory; one that is ending cannot be looked at."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return int(file.read().rpartition(b")")[2].split()[20]) > 0
    except OSError:
        return False


def empty(folder: str) -> bool:
    """Remove the contents of the folder and return whether that succeeded.

    The working directory is changed at each level, so that nesting can have any depth. No other process may use the
    folder at the same time.
    """
    try:
        os.chdir(folder)
        stack = [("", _remove_files())]
        while stack:
            name, folders = stack[-1]
            if folders:
                inner = folders.pop()
                os.chmod(inner, 0o700)
                os.chdir(inner)
                stack.append((inner, _remove_files()))
            else:
                stack.pop()
                if stack:
                    os.chdir("..")
                    os.rmdir(name)
    except OSError:
        return False
    finally:
        os.chdir("/")
    return True


def _remove_files() -> list[str]:
    """Remove the files of the working directory and return its folders."""
    with os.scandir() as entries:
        found = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
    for name, is_folder in found:
        if not is_folder:
            os.unlink(name)
    return [name for name, is_folder in found if is_folder]
