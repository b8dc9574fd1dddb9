"""Meshes: the number of shards per axis; -1 uses all remaining devices.

`sampling` sets the layout of the weights while completions are sampled: "same" as for learning, "replicated" for a full
copy on every device, or "tensor" to split heads and feed-forward layers only. The last two gather the weights once per
step, which avoids gathering them at every token (docs/pods.md has the figures).
"""

from ml_collections import ConfigDict

from marl_jax.schema import run_fields


def automatic() -> ConfigDict:
    """Replicate the model and split the batch over all devices."""
    return run_fields.group("mesh")


def sharded() -> ConfigDict:
    """Shard parameters, optimizer state and batch over all devices (FSDP)."""
    return run_fields.group("mesh", data=1, fsdp=-1)


def tensor_parallel(num_shards: int) -> ConfigDict:
    """Split heads and feed-forward layers over `num_shards` neighbouring devices, the rest by FSDP."""
    return run_fields.group("mesh", data=1, fsdp=-1, tensor=num_shards)
