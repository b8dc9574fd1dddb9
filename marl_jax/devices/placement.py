"""Where the state of a run lies on its mesh: rows by the batch, what belongs to parameters as they do, the rest whole.

Weights get their places from their axis letters (`models/sharding.py`); everything here follows from theirs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from marl_jax.devices.aot import compiler_options_once

ROWS = ("data", "fsdp")  # the mesh axes over which a batch is split


def rows(mesh: Mesh, tree: Any) -> Any:
    """Shardings of arrays [B, …], split by their rows."""
    by_row = NamedSharding(mesh, PartitionSpec(ROWS))
    return jax.tree.map(lambda _: by_row, tree)


def replicated(mesh: Mesh) -> NamedSharding:
    """The sharding of what every device has all of."""
    return NamedSharding(mesh, PartitionSpec())


def like_parameters(mesh: Mesh, tree: Any, parameters: Any) -> Any:
    """Shardings of a tree whose arrays belong to parameters (moments, past selves), each placed as its parameter is.

    An array belongs to the parameter whose path its own contains. It may have an axis in front (several copies) or one
    number for each row instead of the row (the scales of 8-bit moments); what belongs to no parameter is whole.

    parameters  arrays or `jax.ShapeDtypeStruct` with shardings
    """
    known = {_names(path): leaf for path, leaf in jax.tree.leaves_with_path(parameters)}

    def one(path, leaf) -> NamedSharding:
        names = _names(path)
        ends = [(i, j) for i in range(len(names)) for j in range(len(names), i, -1)]
        parameter = next((known[names[i:j]] for i, j in ends if names[i:j] in known), None)
        return NamedSharding(mesh, PartitionSpec(*_entries(leaf.shape, parameter)))

    return jax.tree.map_with_path(one, tree)


def init_sharded(make: Callable[..., Any], shardings: Callable[[Any], Any], *given: Any) -> Any:
    """`make(*given)`, computed in its place, once: every device makes its own part."""
    places = shardings(jax.eval_shape(make, *given))
    return jax.jit(make, out_shardings=places, compiler_options=compiler_options_once())(*given)


def shardings_of(tree: Any) -> Any:
    """The shardings of arrays."""
    return jax.tree.map(lambda x: x.sharding, tree)


def _entries(shape: tuple[int, ...], parameter: Any) -> tuple:
    """The entries of the spec of an array of some shape that belongs to a parameter (None: to no one)."""
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
    """The words of a path, whether they name entries of dictionaries, fields or places."""
    return tuple(str(getattr(key, "key", getattr(key, "name", getattr(key, "idx", key)))) for key in path)
