"""Sharding of a run's state: batches by rows, optimizer state like parameters, the rest replicated.

The sharding of weights follows from their axis letters (`models/sharding.py`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marl_jax.devices.aot import compiler_options_once

ROWS = ("data", "fsdp")  # the mesh axes over which a batch is sharded


def rows(mesh: Mesh, tree: Any) -> Any:
    """Return shardings of arrays [B, …] that are sharded by rows."""
    by_row = NamedSharding(mesh, PartitionSpec(ROWS))
    return jax.tree.map(lambda _: by_row, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """Return the sharding of replicated arrays."""
    return NamedSharding(mesh, PartitionSpec())


def like_parameters(mesh: Mesh, tree: Any, parameters: Any) -> Any:
    """Return shardings of a tree of moments or past weights, like those of the parameters.

    An array belongs to the parameter whose path is contained in the path of the array. It may have an additional
    leading axis (several copies), or one number per row (the scales of 8-bit moments). Arrays that belong to no
    parameter are replicated.

    Args:
        mesh: The mesh.
        tree: The arrays, or `jax.ShapeDtypeStruct`.
        parameters: Arrays or `jax.ShapeDtypeStruct`, with shardings.
    """
    known = {_names(path): leaf for path, leaf in jax.tree.leaves_with_path(parameters)}

    def one(path, leaf) -> NamedSharding:
        names = _names(path)
        ends = [(i, j) for i in range(len(names)) for j in range(len(names), i, -1)]
        parameter = next((known[names[i:j]] for i, j in ends if names[i:j] in known), None)
        return NamedSharding(mesh, PartitionSpec(*_entries(leaf.shape, parameter)))

    return jax.tree.map_with_path(one, tree)


def init_sharded(
    make: Callable[..., Any],
    shardings: Callable[[Any], Any],
    *given: Any,
    kept: Callable[[Callable[[], Any]], Any] = lambda jitted: jitted(),
) -> Any:
    """Compute `make(*given)` once, each device computing its own shard.

    Args:
        make: The function.
        shardings: Maps its result, as shapes, to shardings.
        *given: Its arguments.
        kept: Returns the program of an earlier run if there is one, and otherwise that of the function it receives.
    """

    def jitted():
        places = shardings(jax.eval_shape(make, *given))
        return jax.jit(make, out_shardings=places, compiler_options=compiler_options_once())

    return kept(jitted)(*given)


def shardings_of(tree: Any) -> Any:
    """Return the shardings of arrays."""
    return jax.tree.map(lambda x: x.sharding, tree)


def _entries(shape: tuple[int, ...], parameter: Any) -> tuple:
    """Return the partition spec of an array of some shape that belongs to a parameter."""
    if parameter is None:
        return ()
    spec = (*parameter.sharding.spec, *(None,) * (len(parameter.shape) - len(parameter.sharding.spec)))
    if shape == parameter.shape:
        return spec
    if shape[1:] == parameter.shape:
        return (None, *spec)
    if shape[:-1] == parameter.shape[:-1]:
        return (*spec[:-1], None)
    return ()


def _names(path: tuple) -> tuple[str, ...]:
    """Return the elements of a tree path as strings."""
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
