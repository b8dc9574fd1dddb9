"""Sharding rules: one table from axis letters to mesh axes.

Every parameter carries its axis letters as NNX metadata (`axes=("D", "N", "H")`), and every large activation passes
through `constrain(x, "BTD")`. Both are resolved here, so the mesh is chosen only in the config.
"""

from __future__ import annotations

import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")

PARAM_RULES = {"V": ("tensor",), "D": ("fsdp",), "N": ("tensor",), "K": ("tensor",), "F": ("tensor",)}
ACTIVATION_RULES = {"B": ("data", "fsdp"), "V": ("tensor",), "N": ("tensor",), "K": ("tensor",), "F": ("tensor",)}


def partition_spec(axes, shape, mesh_sizes: dict[str, int], rules: dict[str, tuple[str, ...]]) -> PartitionSpec:
    """Return the partition spec of one array.

    A mesh axis that does not divide its array axis is skipped, for example for two KV heads on four chips.
    """
    entries = []
    for letter, size in zip(axes, shape, strict=True):
        names = []
        for name in rules.get(letter, ()):
            parts = mesh_sizes.get(name, 1)
            if parts > 1 and size % parts == 0:
                names.append(name)
                size //= parts
        entries.append(tuple(names) if len(names) > 1 else names[0] if names else None)
    return PartitionSpec(*entries)


def platform() -> str:
    """Return the platform of the mesh in scope, or the default platform without a mesh.

    The mesh may belong to a machine for which programs are compiled ahead of time.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.abstract_device is None:
        return jax.default_backend()
    return mesh.abstract_device.platform


def num_shards(letter: str, size: int) -> int:
    """Return the number of shards of an activation axis on the mesh in scope."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    (names,) = partition_spec(letter, (size,), sizes, ACTIVATION_RULES)
    return math.prod(sizes[name] for name in ((names,) if isinstance(names, str) else names or ()))


def param_shardings(mesh: Mesh, axes_tree, abstract_tree):
    """Return a `NamedSharding` for every parameter, from its axis letters and shape."""
    sizes = dict(mesh.shape)

    def one(axes, leaf):
        return NamedSharding(mesh, partition_spec(axes, leaf.shape, sizes, PARAM_RULES))

    return jax.tree.map(one, axes_tree, abstract_tree, is_leaf=lambda x: isinstance(x, tuple))


def constrain_params(axes_tree, tree):
    """Constrain parameters to the mesh in scope by their axis letters, if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    sizes = dict(mesh.shape)

    def one(axes, x):
        return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, sizes, PARAM_RULES))

    return jax.tree.map(one, axes_tree, tree, is_leaf=lambda x: isinstance(x, tuple) and not any(map(_is_tree, x)))


def whole(tree):
    """Replicate arrays on every device of the mesh in scope, if there is one.

    Any process can then read them.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree)


def _is_tree(x) -> bool:
    return isinstance(x, dict | tuple)


def constrain(x: jax.Array, axes: str) -> jax.Array:
    """Constrain an activation to the mesh in scope (`jax.set_mesh`), if there is one."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, dict(mesh.shape), ACTIVATION_RULES))
