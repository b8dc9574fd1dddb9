"""Analytical cost model of a training step on more chips than it was compiled for.

It extrapolates the compiler's numbers for n chips under these assumptions:

- Weak scaling: the number of games per chip is constant, and so are the operations and temporaries of a chip.
- The `fsdp` axis grows with the number of chips, up to a slice (`Chip.slice`), and `tensor` is constant. Gathered and
  scattered arrays keep their size, of which a chip sends (m − 1)/m on m chips with the ring algorithm.
- Beyond a slice, the `data` axis grows. Slices are replicas that all-reduce their gradients once per update over the
  network (`Chip.outside`). Each chip reduces its shard and sends 2 (s − 1)/s of it for s slices.
- Matrix products run at `mfu` of the peak. A ring uses `links` links of a chip, one in each direction.
- A fraction `overlap` of the traffic overlaps with computation, up to the time of the computation.
- Chips never wait: games have equal lengths, and hosts and checkpoints take no time.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Any

from jax.extend import core

from marl_jax.devices.hardware import CHIPS, Chip


@dataclasses.dataclass(frozen=True)
class Assumptions:
    """Parameters of the model that the compiler does not know.

    Attributes:
        mfu: Fraction of the peak that matrix products reach. It is the target of the update; rollouts that mostly
            prefill are similar.
        links: Number of links that a ring uses at once.
        overlap: Fraction of the traffic that overlaps with computation.
    """

    mfu: float = 0.4
    links: int = 2
    overlap: float = 0.5


ASSUMED = Assumptions()


@dataclasses.dataclass(frozen=True)
class Step:
    """Time of a training step in seconds.

    Attributes:
        chips: Number of chips.
        compute: Time of matrix products.
        inside: Time of traffic within a slice.
        outside: Time of traffic between slices.
        seconds: Time of the step, with overlap.
    """

    chips: int
    compute: float
    inside: float
    outside: float
    seconds: float


def step(result: Mapping, chips: int, assumed: Assumptions = ASSUMED) -> Step:
    """Estimate a training step of a compiled result (`render.as_json`) on `chips` chips."""
    chip = CHIPS[result["topology"].partition(":")[0]]
    compute = sum(p["flops"] for p in result["programs"].values()) / result["chips"] / (assumed.mfu * chip.bf16)
    slices = -(-chips // chip.slice)
    within = chips // slices
    inside = traffic(result, within) / speed(chip, assumed)
    updates = result["epochs"] * result["minibatches"]
    mesh = result["mesh"]
    gradients = result["programs"]["learn"]["given"]["parameters"] * mesh["fsdp"] / fsdp_shards(mesh, within)
    outside = updates * 2 * (slices - 1) / slices * gradients / chip.outside
    hidden = min(assumed.overlap * (inside + outside), compute)
    return Step(chips, compute, inside, outside, compute + inside + outside - hidden)


def traffic(result: Mapping, within: int) -> float:
    """Return the bytes sent per step by a chip of a slice of `within` chips."""
    mesh, totals = result["mesh"], (total for p in result["programs"].values() for total in p["traffic"])
    return sum(total["sent"] * growth(total, mesh, within) for total in totals)


def growth(total: Mapping, mesh: Mapping[str, int], within: int) -> float:
    """Return the growth of a collective's traffic if `fsdp` fills a slice of `within` chips."""
    if "fsdp" not in total["axes"]:
        return 1.0
    share = lambda num_shards: (num_shards - 1) / num_shards  # noqa: E731
    # A matrix product that passes weights around a ring permutes them between two chips, but the ring is the axis.
    num_shards = mesh["fsdp"] if total["kind"] == "collective-permute" else total["num_shards"]
    if num_shards < mesh["fsdp"]:  # within a part of the axis, which has a constant size
        return 1.0
    return share(num_shards // mesh["fsdp"] * fsdp_shards(mesh, within)) / share(num_shards)


def fsdp_shards(mesh: Mapping[str, int], within: int) -> int:
    """Return the size of the `fsdp` axis if it fills a slice of `within` chips."""
    return within // (mesh["data"] * mesh["tensor"])


def speed(chip: Chip, assumed: Assumptions) -> float:
    """Return the bandwidth of a ring in bytes per second and chip."""
    return chip.link * min(assumed.links, chip.links)


def table(results: Sequence[Mapping], sizes: Sequence[int], assumed: Assumptions = ASSUMED) -> str:
    """Return a Markdown table with every result on every number of chips."""
    head = ("case", "chips", "games", "arithmetic, s", "traffic in the slice, s", "between slices, s", "step, s",
            "games × turns a second", "of linear")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for result in results:
        base = step(result, result["chips"], assumed)
        for chips in sizes:
            estimate = step(result, chips, assumed)
            games = result["games"] * chips // result["chips"]
            share = base.seconds / estimate.seconds
            cells = (
                f"{result['algorithm'].upper().replace('_', '-')}, {result['model']}, compiled for "
                f"{result['topology']}",
                f"{chips:,}", f"{games:,}", f"{estimate.compute:.2f}", f"{estimate.inside:.2f}",
                f"{estimate.outside:.2f}", f"{estimate.seconds:.2f}",
                f"{games * result['turns'] / estimate.seconds:,.0f}", f"{share:.0%}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def check_table(results: Sequence[Mapping]) -> str:
    """Return a Markdown table that compares the modeled traffic with the compiled one.

    It has the pairs of results that differ only in the number of chips, with the same number of games per chip.
    """
    lines = ["| case | from | to | sent by a chip, model, GiB | compiled, GiB |", "| --- | --- | --- | --- | --- |"]

    def same(r: Mapping) -> tuple:
        fields = ("experiment", "model", "lora", "algorithm", "turns", "epochs", "minibatches", "grad_accum_steps")
        tensor = r["mesh"]["tensor"]
        return (*(r[field] for field in fields), tensor, r["topology"].partition(":")[0], r["games"] / r["chips"])

    for small in results:
        for large in results:
            if same(small) == same(large) and small["chips"] < large["chips"]:
                model, compiled = traffic(small, large["chips"]), traffic(large, large["chips"])
                case = f"{small['algorithm'].upper().replace('_', '-')}, {small['model']}"
                sizes = f"{model / 2**30:.2f} | {compiled / 2**30:.2f}"
                lines.append(f"| {case} | {small['topology']} | {large['topology']} | {sizes} |")
    return "\n".join(lines) + "\n"


def matrix_flops(jaxpr: core.ClosedJaxpr | core.Jaxpr) -> float:
    """Return the number of operations of all matrix products, on all chips together.

    A scan counts as often as it runs, a loop of unknown length once, and the most expensive branch of a conditional.
    Rematerialized operations count again. Kernels without matrix products in the trace, such as fused attention on
    GPUs, are not counted.
    """
    total = 0.0
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        if equation.primitive.name == "dot_general":
            total += _product(equation)
            continue
        inner = [matrix_flops(inside) for inside in _jaxprs(equation.params)]
        if equation.primitive.name == "cond":
            total += max(inner, default=0.0)
        else:
            total += sum(inner) * equation.params.get("length", 1)  # only a scan has a length
    return total


def _product(equation) -> float:
    """Return 2 · rows · columns · depth, summed over the batch."""
    (left, _), ((contracted, _), _) = equation.invars, equation.params["dimension_numbers"]
    depth = math.prod(left.aval.shape[axis] for axis in contracted)
    return 2.0 * math.prod(equation.outvars[0].aval.shape) * depth


def _jaxprs(params: dict[str, Any]):
    """Yield the jaxprs inside an equation."""
    for value in params.values():
        for item in value if isinstance(value, tuple | list) else (value,):
            if isinstance(item, core.ClosedJaxpr | core.Jaxpr):
                yield item
