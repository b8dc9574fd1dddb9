"""The private folder of programs: checking its size and emptying it."""

import os

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
