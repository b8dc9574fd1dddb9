"""Divisions of items between two seats, enumerated exhaustively.

A bundle is the number of items of each kind that one seat gets; the other seat gets the rest. A context has at most a
few hundred divisions, so every optimum here is exact.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

Context = dict[str, Any]
"""A row: `key`, `items` (names), `counts`, `values` (of each seat), `first` (seat) and optionally `reasons`."""
Bundle = tuple[int, ...]


def bundles(counts: Sequence[int]) -> list[Bundle]:
    """Return all bundles of one seat."""
    return list(itertools.product(*(range(count + 1) for count in counts)))


def rest(counts: Sequence[int], bundle: Bundle) -> Bundle:
    """Return the bundle of the other seat."""
    return tuple(count - taken for count, taken in zip(counts, bundle, strict=True))


def points(values: Sequence[int], bundle: Sequence[int]) -> int:
    """Return the points of a bundle."""
    return sum(value * number for value, number in zip(values, bundle, strict=True))


def most(context: Context, seat: int) -> int:
    """Return the points of a seat that gets everything."""
    return points(context["values"][seat], context["counts"])


def both_points(context: Context, bundle: Bundle) -> tuple[int, int]:
    """Return the points of both seats; `bundle` is that of seat 0."""
    first, second = context["values"]
    return points(first, bundle), points(second, rest(context["counts"], bundle))


def max_joint(context: Context) -> int:
    """Return the highest sum of the points of both seats."""
    return max(sum(both_points(context, bundle)) for bundle in bundles(context["counts"]))


def is_pareto(context: Context, bundle: Bundle) -> bool:
    """Return whether every division that is better for one seat is worse for the other."""
    own = both_points(context, bundle)
    everything = (both_points(context, other) for other in bundles(context["counts"]))
    return not any(other != own and other[0] >= own[0] and other[1] >= own[1] for other in everything)


def envy(context: Context, seat: int, bundle: Bundle) -> float:
    """Return how many points more the other's bundle has for a seat, as a share.

    Args:
        context: The context.
        seat: The seat.
        bundle: Bundle of that seat.
    """
    values = context["values"][seat]
    gap = points(values, rest(context["counts"], bundle)) - points(values, bundle)
    return max(gap, 0) / most(context, seat)
