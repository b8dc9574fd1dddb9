"""User cache folder for weights and compiled programs. Importing this does not import JAX."""

import os
from pathlib import Path


def user_cache(name: str) -> Path:
    """Return a folder in `$XDG_CACHE_HOME/marl_jax`, or in `~/.cache/marl_jax` if the variable is not set."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "marl_jax" / name
