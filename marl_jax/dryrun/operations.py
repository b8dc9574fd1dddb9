"""The arithmetic of a program, counted in what JAX traced: the same for every machine."""

from __future__ import annotations

import math
from typing import Any

from jax.extend import core


def matrix_flops(jaxpr: core.ClosedJaxpr | core.Jaxpr) -> float:
    """Operations of all matrix products, on all chips together.

    A scan counts as often as it runs, a loop of unknown length once, the dearer branch of a choice. What is computed
    again in the backward pass counts again. Kernels that are not made of matrix products in the trace (fused attention
    on GPUs) are not seen.
    """
    total = 0.0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "dot_general":
            total += _product(equation)
            continue
        inner = [matrix_flops(found) for found in _jaxprs(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner, default=0.0)
        else:
            total += sum(inner) * equation.params.get("length", 1)  # only a scan has a length
    return total


def _product(equation) -> float:
    """2 · rows · columns · depth, for every member of the batch."""
    (left, _), ((contracted, _), _) = equation.invars, equation.params["dimension_numbers"]
    depth = math.prod(left.aval.shape[axis] for axis in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth


def _jaxprs(params: dict[str, Any]):
    """The programs inside an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item
