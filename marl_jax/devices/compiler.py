"""What the compiler is told about the programs of a run."""

from __future__ import annotations

import jax

# Triton's matrix products were slower than cuBLAS at every decoding shape tried; in the update it makes little
# difference (docs/performance.md).
GPU_OPTIONS = {"xla_gpu_enable_triton_gemm": False}

# Half the time to compile, for programs that run once. Values are the same, which they are not at level 0.
CPU_OPTIONS_ONCE = {"xla_backend_optimization_level": 1}


def options() -> dict | None:
    """Options for `jax.jit` on this machine."""
    return options_for(jax.default_backend())


def options_for(platform: str) -> dict | None:
    """Options for programs of a platform, which may be another machine's."""
    return GPU_OPTIONS if platform == "gpu" else None


def options_once() -> dict | None:
    """Options for `jax.jit` on this machine, for programs that run once."""
    return CPU_OPTIONS_ONCE if jax.default_backend() == "cpu" else None
