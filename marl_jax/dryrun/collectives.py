"""Collectives of a compiled program, parsed from its HLO text.

HLO text lists computations and their instructions. A loop names the computation of its body and, if known, its trip
count. A collective is counted as often as it runs, and once in a loop of unknown length.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence

import numpy as np

KINDS = ("all-gather", "reduce-scatter", "all-reduce", "all-to-all", "collective-permute")

_BITS = {"pred": 8, "s4": 4, "u4": 4, "bf16": 16, "token": 0}
_HEADER = re.compile(r"^(ENTRY )?%?([\w.\-]+) .*\{\s*$")
_ARRAY = re.compile(r"\b(pred|token|bf16|[sufc]\d+\w*)\[([\d,]*)\]")
_CALLS = re.compile(r"(calls|to_apply|body|condition|branch_computations)=(\{[^}]*\}|%?[\w.\-]+)")
_LATER = ("async-update", "async-done")  # they repeat the computation of `async-start`


@dataclasses.dataclass(frozen=True)
class Collective:
    """A collective instruction.

    Attributes:
        kind: One of `KINDS`.
        size: Number of bytes of the full array on a chip, before scattering or after gathering.
        num_shards: Number of chips in a group.
        axes: Mesh axes along which the chips of a group differ, such as ("fsdp",).
        times: Number of times that the instruction runs.
    """

    kind: str
    size: float
    num_shards: int
    axes: tuple[str, ...]
    times: int

    @property
    def sent(self) -> float:
        """Total number of bytes sent by a chip with the ring algorithm."""
        if self.kind == "collective-permute":
            return self.size * self.times
        share = (self.num_shards - 1) / self.num_shards
        return self.size * self.times * share * (2 if self.kind == "all-reduce" else 1)


def read(text: str, mesh: Mapping[str, int]) -> list[Collective]:
    """Return the collectives of a program between two or more chips.

    Args:
        text: HLO text of the program.
        mesh: Size of every mesh axis.
    """
    computations, entry = _computations(text)
    collectives = []
    for name, times in _runs(computations, entry).items():
        for kind, shape, line in computations[name]:
            base = kind.removesuffix("-start")
            if base not in KINDS:
                continue
            group = _group(line, math.prod(mesh.values()))
            if len(group) > 1:
                size = _whole(base, shape, len(group), started=kind.endswith("-start"))
                if base == "all-reduce" and "all-reduce-scatter" in name:
                    base = "reduce-scatter"  # the TPU compiler fuses the sum with a slice
                collectives.append(Collective(base, size, len(group), _axes(group, mesh), times))
    return collectives


@dataclasses.dataclass(frozen=True)
class Total:
    """Sum of all collectives of one kind along the same axes, for one chip.

    Attributes:
        kind: One of `KINDS`.
        axes: Mesh axes.
        num_shards: Number of chips in a group.
        count: Number of runs.
        size: Number of bytes of the full arrays.
        sent: Number of bytes sent.
    """

    kind: str
    axes: tuple[str, ...]
    num_shards: int
    count: int
    size: float
    sent: float


def totals(collectives: Sequence[Collective]) -> list[Total]:
    """Sum collectives by kind and axes."""
    table: dict[tuple, list[Collective]] = {}
    for c in collectives:
        table.setdefault((KINDS.index(c.kind), c.axes, c.num_shards), []).append(c)
    return [
        Total(
            KINDS[kind], axes, num_shards,
            count=sum(c.times for c in members),
            size=sum(c.size * c.times for c in members),
            sent=sum(c.sent for c in members),
        )
        for (kind, axes, num_shards), members in sorted(table.items())
    ]  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- the text


def _computations(text: str) -> tuple[dict[str, list[tuple[str, str, str]]], str]:
    """Return the instructions (operation, type, line) of every computation and the entry point."""
    computations, entry, current = {}, "", None
    for line in text.splitlines():
        if current is None:
            if (header := _HEADER.match(line)) and not line.startswith("HloModule"):
                current = computations.setdefault(header[2], [])
                entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif " = " in line:
            shape, rest = _split_type(line.split(" = ", 1)[1])
            current.append((rest.split("(", 1)[0].strip(), shape, line))
    return computations, entry


def _split_type(text: str) -> tuple[str, str]:
    """Split an instruction into its type, which may be a nested tuple, and the rest."""
    if not text.startswith("("):
        shape, _, rest = text.partition(" ")
        return shape, rest
    depth = 0
    for i, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[: i + 1], text[i + 1 :].lstrip()
    raise ValueError(f"unbalanced parentheses in the type of {text[:80]!r}")


def _runs(computations, entry: str) -> dict[str, int]:
    """Return how often each computation runs."""
    runs: dict[str, int] = {}

    def visit(name: str, times: int) -> None:
        runs[name] = runs.get(name, 0) + times
        for operation, _, line in computations[name]:
            if operation not in _LATER:
                for what, called in _called(line):
                    if called in computations:
                        visit(called, times * (_trips(line, computations) if what == "body" else 1))

    visit(entry, 1)
    return runs


def _called(line: str) -> Iterator[tuple[str, str]]:
    """Yield (attribute, name) of every computation that an instruction calls."""
    for how, names in _CALLS.findall(line):
        for name in re.findall(r"[\w.\-]+", names):
            yield how, name


def _trips(line: str, computations) -> int:
    """Return the trip count of a loop.

    It is read from the annotation of the compiler, or from a condition `counter < constant`, because XLA's loops count
    up from 0 by one.
    """
    if noted := re.search(r'"known_trip_count":\{"n":"(\d+)"\}', line):
        return int(noted[1])
    condition = next((name for how, name in _called(line) if how == "condition"), None)
    lines = [text for _, _, text in computations.get(condition, [])]
    last = next((text for text in lines if text.lstrip().startswith("ROOT")), "")
    compared = re.search(r"compare\(%?[\w.\-]+, %?([\w.\-]+)\), direction=LT", last)
    bounds = [re.search(r"%?([\w.\-]+) = \S+ constant\((\d+)\)", text) for text in lines]
    return next((int(bound[2]) for bound in bounds if bound and compared and bound[1] == compared[1]), 1)


def _bytes(shape: str) -> float:
    """Return the number of bytes of all arrays in a type."""
    total = 0.0
    for kind, sizes in _ARRAY.findall(shape):
        bits = _BITS[kind] if kind in _BITS else int("".join(re.findall(r"\d+", kind)[:1]))
        total += math.prod(int(n) for n in sizes.split(",") if n) * bits / 8
    return total


def _whole(kind: str, shape: str, num_shards: int, started: bool) -> float:
    """Return the number of bytes of the full array, after gathering or before scattering."""
    if kind == "collective-permute" and started:  # its type has the input, the output and two counters
        return _bytes(shape.replace("u32[]", "")) / 2
    total = _bytes(shape)
    if kind == "reduce-scatter":
        return total * num_shards / (num_shards + 1) if started else total * num_shards
    if kind == "all-gather" and started:  # its type has the input shards and the output
        return total * num_shards / (num_shards + 1)
    return total


# --------------------------------------------------------------------------------------------------- groups of chips


def _group(line: str, n: int) -> list[int]:
    """Return the positions on the mesh of the first group of chips."""
    if pairs := re.search(r"source_target_pairs=\{(\{[^=]*\})\}", line):
        moves = re.findall(r"\{(\d+),(\d+)\}", pairs[1])
        return next(([int(a), int(b)] for a, b in moves if a != b), [0])
    if listed := re.search(r"replica_groups=\{\{([\d,]+)\}", line):
        return [int(i) for i in listed[1].split(",")]
    if counted := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", line):
        groups, sizes, order = ([int(i) for i in part.split(",")] if part else [] for part in counted.groups())
        places = np.arange(math.prod(sizes)).reshape(sizes)
        return (places.transpose(order) if order else places).reshape(groups)[0].tolist()
    if named := re.search(r"replica_groups=@?mesh\[([^\]]*)\][^{]*\{([^}]*)\}", line):
        return _along(named[1], named[2])
    return list(range(n))


def _along(mesh: str, axes: str) -> list[int]:
    """Return the group of position 0 along some axes or parts of axes.

    For example, `mesh` is `'a'=4,'b'=2`, and `axes` is `'a'` or `'a':(1)2`.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", mesh)}
    strides, stride = {}, 1
    for name in reversed(sizes):
        strides[name] = stride
        stride *= sizes[name]
    places = [0]
    for name, before, part in re.findall(r"'([^']+)'(?::\((\d+)\)(\d+))?", axes):
        num_shards = int(part) if part else sizes[name]
        step = strides[name] * (sizes[name] // (int(before) * num_shards) if part else 1)
        places = [place + i * step for place in places for i in range(num_shards)]
    return places


def _axes(group: Sequence[int], mesh: Mapping[str, int]) -> tuple[str, ...]:
    """Return the mesh axes along which the chips of a group differ."""
    coordinates = np.unravel_index(np.asarray(group), tuple(mesh.values()))
    return tuple(name for name, where in zip(mesh, coordinates, strict=True) if len(set(where.tolist())) > 1)
