"""What the tests of models share: tiny configs of every family, random parameters, a compiled forward pass."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from models.config import ModelConfig, RopeScaling
from models.model import Model, build

_SHAPE = dict(vocab_size=64, d_model=32, n_layers=2, n_heads=8, n_kv_heads=2, head_dim=8, d_ff=48, max_positions=64)

CONFIGS = {
    "llama": ModelConfig("llama", **_SHAPE),
    "llama3": ModelConfig("llama", **_SHAPE, rope_scaling=RopeScaling("llama3", 4.0, original_max_positions=16)),
    "mistral": ModelConfig("mistral", **_SHAPE, sliding_window=5),
    "phi3": ModelConfig("phi3", **{**_SHAPE, "n_kv_heads": 8}, sliding_window=6),
    "qwen2": ModelConfig("qwen2", **_SHAPE, qkv_bias=True, tie_embeddings=True),
    "qwen3": ModelConfig("qwen3", **{**_SHAPE, "head_dim": 12}, qk_norm=True),
    "gpt2": ModelConfig("gpt2", **{**_SHAPE, "n_kv_heads": 8, "head_dim": 4}, tie_embeddings=True),
}

FAMILIES = tuple(CONFIGS)


def random_params(model: Model, seed: int = 0) -> dict:
    """Stacked float32 parameters, none of them one or zero: matrices at 0.15, norms around one, biases around zero."""
    rng = np.random.default_rng(seed)

    def one(path, leaf):
        center = 1.0 if path[-1].key.endswith("norm") else 0.0
        return jnp.asarray(center + 0.15 * rng.standard_normal(leaf.shape), jnp.float32)

    return jax.tree.map_with_path(one, model.abstract())


@functools.cache
def make(family: str, seed: int = 0) -> tuple[Model, dict]:
    """The model of a tiny config and random parameters."""
    model = build(CONFIGS[family])
    return model, random_params(model, seed)


# Test programs run for microseconds and are compiled for seconds, so compiler optimizations are reduced.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
quick_jit = functools.partial(jax.jit, compiler_options=QUICK)


@functools.partial(quick_jit, static_argnames=("model", "dtype", "fuse"))
def unstack(model: Model, params: dict, dtype=jnp.float32, fuse: bool = True) -> dict:
    """`Model.unstack`, compiled."""
    return model.unstack(params, dtype, fuse)


@functools.partial(quick_jit, static_argnames=("model", "new_cache", "dtype", "remat"))
def _forward(model, params, tokens, dtype, **kwargs):
    return model.forward(params, tokens, dtype=dtype, **kwargs)


def forward(model: Model, params: dict, tokens: np.ndarray, dtype=jnp.float32, **kwargs):
    """`Model.forward` in float32, compiled once per model and shape; hidden states come as a NumPy array."""
    hidden, cache = _forward(model, params, tokens, dtype=dtype, **kwargs)
    return np.asarray(hidden), cache


@functools.partial(quick_jit, static_argnames="model")
def logits(model: Model, params: dict, hidden: np.ndarray) -> jax.Array:
    """`Model.logits`, compiled."""
    return model.logits(params, hidden)


def random_tokens(batch: int, time: int, seed: int = 0) -> np.ndarray:
    """int32 [B, T]."""
    return np.random.default_rng(seed).integers(0, _SHAPE["vocab_size"], (batch, time), np.int32)


def largest_difference(a, b) -> float:
    """The largest absolute difference between two trees of arrays."""

    def one(x, y):
        return float(np.max(np.abs(np.asarray(x, np.float32) - np.asarray(y, np.float32))))

    return max(jax.tree.leaves(jax.tree.map(one, a, b)))


def largest(tree) -> float:
    """The largest absolute value in a tree of arrays."""
    return max(float(np.max(np.abs(np.asarray(x, np.float32)))) for x in jax.tree.leaves(tree))
