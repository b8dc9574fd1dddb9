"""Files with the text of conversations, which only their owner can read."""

from __future__ import annotations

import contextlib
from pathlib import Path


def make_private(path: Path) -> Path:
    """Restrict a file to its owner, create it if necessary, and return its path."""
    path.touch(mode=0o600)
    with contextlib.suppress(OSError):  # an existing file of another user
        path.chmod(0o600)
    return path


def make_private_folder(path: Path) -> None:
    """Create a folder for its owner only; the permissions of an existing one stay."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.mkdir(mode=0o700, exist_ok=True)
