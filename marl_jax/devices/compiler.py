"""What the compiler is told about the programs of a run."""

from __future__ import annotations

import jax

# Triton's matrix products were slower than cuBLAS at every decoding shape tried; in the update it makes little
# difference (docs/performance.md).
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}


def options() -> dict | None:
    """Options for `jax.jit` on this machine."""
    return options_for(jax.default_backend())


def options_for(platform: str) -> dict | None:
    """Options for programs of a platform, which may be another machine's."""
    return GPU_OPTIONS if platform == "gpu" else None
