"""What every test shares: eight virtual CPU devices, and a way to the optional shared data."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"

import pytest

SHARED = Path(os.environ.get("MARL_JAX_SHARED_DATA", Path(__file__).resolve().parents[2] / "shared" / "data"))


def shared_data(name: str) -> Path:
    """The path of a shared data file; the test is skipped, with the path it looked for, when it is absent."""
    path = SHARED / name
    if not path.exists():
        pytest.skip(f"shared data file {path} is absent (set MARL_JAX_SHARED_DATA to the folder that has it)")
    return path
