"""A paper model of larger machines: how a training step that was compiled for some chips would do on more of them.

Everything starts from what the compiler said about the programs for n chips, and follows from these assumptions:

- Weak scaling: every chip keeps its games, so operations and temporaries of a chip stay as compiled.
- The `fsdp` axis grows with the chips, up to a slice (`Chip.slice`); `tensor` stays. What is gathered or scattered
  along it has the same size, of which a chip sends (m − 1)/m on m chips, by rings.
- Beyond a slice, `data` grows: slices hold copies and add up their gradients once an update, over the network outside
  the slice (`Chip.outside`). Each chip adds up its own part: 2 (s − 1)/s of it for s slices.
- Matrix products run at `mfu` of the peak. A ring goes both ways round, over `links` links of a chip.
- A share `overlap` of the traffic hides behind arithmetic, as far as there is arithmetic to hide behind.
- Chips wait for nobody: games have equal lengths, hosts and checkpoints cost nothing.
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
    """What cannot be compiled.

    mfu      of matrix products: what the update is tuned to reach; rollouts that mostly read prompts are like it
    links    that a ring uses at once
    overlap  share of the traffic that may run behind arithmetic
    """

    mfu: float = 0.4
    links: int = 2
    overlap: float = 0.5


ASSUMED = Assumptions()


@dataclasses.dataclass(frozen=True)
class Step:
    """Seconds of one training step on some chips.

    compute  matrix products
    inside   traffic inside the slice
    outside  traffic between slices
    seconds  the step, with what overlaps taken off
    """

    chips: int
    compute: float
    inside: float
    outside: float
    seconds: float


def step(result: Mapping, chips: int, assumed: Assumptions = ASSUMED) -> Step:
    """One training step of a compiled result (`render.as_json`) on so many chips of its kind."""
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
    """Bytes that a chip of a slice of `within` chips sends in one step."""
    mesh, totals = result["mesh"], (total for p in result["programs"].values() for total in p["traffic"])
    return sum(total["sent"] * growth(total, mesh, within) for total in totals)


def growth(total: Mapping, mesh: Mapping[str, int], within: int) -> float:
    """How much more of a collective's bytes a chip sends once the fsdp axis fills a slice of `within` chips."""
    if "fsdp" not in total["axes"]:
        return 1.0
    share = lambda num_shards: (num_shards - 1) / num_shards  # noqa: E731
    # A product that passes weights around a ring is made of permutations between two chips, but the ring is the axis.
    num_shards = mesh["fsdp"] if total["kind"] == "collective-permute" else total["num_shards"]
    if num_shards < mesh["fsdp"]:  # within a part of the axis, which stays as large as it is
        return 1.0
    return share(num_shards // mesh["fsdp"] * fsdp_shards(mesh, within)) / share(num_shards)


def fsdp_shards(mesh: Mapping[str, int], within: int) -> int:
    """The fsdp axis once it fills a slice of `within` chips."""
    return within // (mesh["data"] * mesh["tensor"])


def speed(chip: Chip, assumed: Assumptions) -> float:
    """Bytes a second that a chip sends in a ring."""
    return chip.link * min(assumed.links, chip.links)


def table(results: Sequence[Mapping], sizes: Sequence[int], assumed: Assumptions = ASSUMED) -> str:
    """Markdown: every result on every number of chips."""
    head = ("case", "chips", "games", "arithmetic, s", "traffic in the slice, s", "between slices, s", "step, s",
            "games × turns a second", "of linear")  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for result in results:
        base = step(result, result["chips"], assumed)
        for chips in sizes:
            found = step(result, chips, assumed)
            games = result["games"] * chips // result["chips"]
            share = base.seconds / found.seconds
            cells = (
                f"{result['algorithm'].upper().replace('_', '-')}, {result['model']}, compiled for "
                f"{result['topology']}",
                f"{chips:,}", f"{games:,}", f"{found.compute:.2f}", f"{found.inside:.2f}", f"{found.outside:.2f}",
                f"{found.seconds:.2f}", f"{games * result['turns'] / found.seconds:,.0f}", f"{share:.0%}",
            )  # fmt: skip
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def check_table(results: Sequence[Mapping]) -> str:
    """Markdown: traffic by this model against traffic as compiled, where one case was compiled for two sizes of slice.

    Pairs are results that agree in everything but the number of chips, with as many games on each.
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
