"""Meshes: how many ways each axis is split; -1 takes the devices that the others leave."""

from ml_collections import ConfigDict


def _mesh(data: int, fsdp: int, tensor: int) -> ConfigDict:
    return ConfigDict(dict(data=data, fsdp=fsdp, tensor=tensor))


def automatic() -> ConfigDict:
    """Every device a copy of the model and its own part of the batch; on one device, no split at all."""
    return _mesh(data=-1, fsdp=1, tensor=1)


def sharded() -> ConfigDict:
    """Parameters and optimiser state in one part per device (FSDP); the batch is split the same way."""
    return _mesh(data=1, fsdp=-1, tensor=1)


def tensor_parallel(ways: int) -> ConfigDict:
    """Heads and feed-forward over `ways` neighbouring devices, the rest by FSDP."""
    return _mesh(data=1, fsdp=-1, tensor=ways)
