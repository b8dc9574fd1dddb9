"""Atomic creation of folders."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def new_folder(folder: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """Yield a temporary folder that is renamed to `folder` on success and removed on failure."""
    folder = Path(folder)
    if folder.exists() and not overwrite and (not folder.is_dir() or any(folder.iterdir())):
        raise FileExistsError(f"{folder} exists and is not empty; pass overwrite=True to replace it")
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        os.chmod(temporary, 0o755)  # mkdtemp denies access to other users
        yield temporary
        old = None
        if folder.exists():
            old = Path(tempfile.mkdtemp(prefix=f".{folder.name}.old.", dir=folder.parent)) / "old"
            os.rename(folder, old)
        os.rename(temporary, folder)
        if old is not None:
            shutil.rmtree(old.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
