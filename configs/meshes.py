"""Meshes: how many ways each axis is split; -1 takes the devices that the others leave.

`sampling` says how the weights lie while answers are written: "same" as for learning; "replicated", whole on every
device; "tensor", heads and feed-forward split and nothing else. The last two cost one gathering of the weights a step
and save those at every token (docs/pods.md has the figures).
"""

from ml_collections import ConfigDict

from marl_jax.schema import run_fields


def automatic() -> ConfigDict:
    """Every device a copy of the model and its own part of the batch; on one device, no split at all."""
    return run_fields.group("mesh")


def sharded() -> ConfigDict:
    """Parameters and optimizer state in one part per device (FSDP); the batch is split the same way."""
    return run_fields.group("mesh", data=1, fsdp=-1)


def tensor_parallel(num_shards: int) -> ConfigDict:
    """Heads and feed-forward over `num_shards` neighbouring devices, the rest by FSDP."""
    return run_fields.group("mesh", data=1, fsdp=-1, tensor=num_shards)
