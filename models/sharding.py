"""Where arrays live on a mesh: one table from axis letters to mesh axes.

Every parameter carries its axis letters as NNX metadata (`axes=("D", "N", "H")`) and every large activation is
passed through `constrain(x, "BTD")`. Both are resolved here, so a mesh is chosen in a config and nowhere else.
"""

from __future__ import annotations

import math

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

MESH_AXES = ("data", "fsdp", "tensor")

PARAM_RULES = {"V": ("tensor",), "D": ("fsdp",), "N": ("tensor",), "K": ("tensor",), "F": ("tensor",)}
ACTIVATION_RULES = {"B": ("data", "fsdp"), "V": ("tensor",), "N": ("tensor",), "K": ("tensor",), "F": ("tensor",)}


def partition_spec(axes, shape, mesh_sizes: dict[str, int], rules: dict[str, tuple[str, ...]]) -> PartitionSpec:
    """The spec of one array; a mesh axis that does not divide its axis is left out (two KV heads on four chips)."""
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
    """The platform of the mesh in scope, which may be that of a machine elsewhere; without a mesh: the default."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.abstract_device is None:
        return jax.default_backend()
    return mesh.abstract_device.platform


def num_shards(letter: str, size: int) -> int:
    """Into how many parts the mesh in scope splits an activation axis of this size."""
    sizes = dict(jax.sharding.get_abstract_mesh().shape)
    (names,) = partition_spec(letter, (size,), sizes, ACTIVATION_RULES)
    return math.prod(sizes[name] for name in ((names,) if isinstance(names, str) else names or ()))


def param_shardings(mesh: Mesh, axes_tree, abstract_tree):
    """A `NamedSharding` for every parameter, from its axis letters and shape."""
    sizes = dict(mesh.shape)

    def one(axes, leaf):
        return NamedSharding(mesh, partition_spec(axes, leaf.shape, sizes, PARAM_RULES))

    return jax.tree.map(one, axes_tree, abstract_tree, is_leaf=lambda x: isinstance(x, tuple))


def constrain_params(axes_tree, tree):
    """Pins parameters to the mesh in scope, by their axis letters; without a mesh it does nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    sizes = dict(mesh.shape)

    def one(axes, x):
        return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, sizes, PARAM_RULES))

    return jax.tree.map(one, axes_tree, tree, is_leaf=lambda x: isinstance(x, tuple) and not any(map(_is_tree, x)))


def whole(tree):
    """Pins arrays to be whole on every device of the mesh in scope, so that any process can read them."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return tree
    return jax.tree.map(lambda x: jax.lax.with_sharding_constraint(x, PartitionSpec()), tree)


def _is_tree(x) -> bool:
    return isinstance(x, dict | tuple)


def constrain(x: jax.Array, axes: str) -> jax.Array:
    """Pins an activation to the mesh in scope (`jax.set_mesh`); without a mesh it does nothing."""
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty or mesh.size == 1:
        return x
    return jax.lax.with_sharding_constraint(x, partition_spec(axes, x.shape, dict(mesh.shape), ACTIVATION_RULES))
