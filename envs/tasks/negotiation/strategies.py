"""Scripted negotiators, and the exact best response to each of them.

A negotiator knows its values, the number of messages and the other's last offer. It accepts an offer that gives it the
share of its points that it demands, which may decrease during the negotiation. Otherwise it offers the division that
meets its demand and is closest to the other's offer. The deceptive negotiator states false values. The random one
accepts half of all offers and makes random ones.

Since a negotiator reacts only to the last offer, the best response can be computed by an exhaustive search over all
offers, backwards from the last message (`best_response`).
"""

from __future__ import annotations

import dataclasses
import functools
import random
from collections.abc import Sequence

from envs.tasks.negotiation.deals import Bundle, bundles, points, rest

CHANCE = 0.5
"""Probability with which the random negotiator accepts an offer."""


@dataclasses.dataclass(frozen=True)
class Strategy:
    """A scripted negotiator.

    Attributes:
        first: Share of all its points that it demands in its first message.
        last: Share that it demands in its last message.
        honest: Whether it states its true values; otherwise the values in reverse.
        is_random: Whether it accepts and offers at random.
        prompt: Instruction for a language model that plays this strategy.
    """

    first: float
    last: float
    honest: bool = True
    is_random: bool = False
    prompt: str = ""

    def demand(self, turn: int, turns: int) -> float:
        """Return the demanded share in a message, counted from 0."""
        return self.first + (self.last - self.first) * (turn / (turns - 1) if turns > 1 else 1.0)

    def chance(self, values: Sequence[int], counts: Sequence[int], turn: int, turns: int, bundle: Bundle) -> float:
        """Return the probability of accepting an offer that gives this negotiator a bundle."""
        if self.is_random:
            return CHANCE
        return float(points(values, bundle) >= self.demand(turn, turns) * points(values, counts) - 1e-9)

    def offers(
        self, values: Sequence[int], counts: Sequence[int], turn: int, turns: int, offered: Bundle | None
    ) -> list[Bundle]:
        """Return the bundles for itself that it may ask for, all equally likely.

        Args:
            values: Its values.
            counts: Numbers of items.
            turn: Its number of earlier messages.
            turns: Its number of messages.
            offered: Bundle that the other seat has just offered to it, or None.
        """
        if self.is_random:
            return bundles(counts)
        wanted = [own for own in bundles(counts) if self.chance(values, counts, turn, turns, own)]
        near = offered or (0,) * len(counts)

        def cost(own: Bundle) -> tuple:
            return sum(abs(a - b) for a, b in zip(own, near, strict=True)), -points(values, own), own

        return [min(wanted, key=cost)]

    def stated(self, values: Sequence[int]) -> list[int]:
        """Return the stated values: true ones, or in reverse order of size."""
        if self.honest:
            return list(values)
        order = sorted(range(len(values)), key=lambda i: (values[i], i))
        false = dict(zip(order, (values[i] for i in reversed(order)), strict=True))
        return [false[i] for i in range(len(values))]


STRATEGIES = {
    "fair": Strategy(
        0.5, 0.5, prompt="You want a fair deal: about half of the points for each side. Say honestly what you need.",
    ),
    "greedy": Strategy(
        0.9, 0.7, prompt="You want as many points as possible. Ask for almost everything and give in very slowly.",
    ),
    "deceptive": Strategy(
        0.8, 0.6, honest=False,
        prompt="You want as many points as possible. Pretend that you need the items that are worth least to you, so "
        "that you can give them up in exchange for those that you want.",
    ),
    "random": Strategy(
        0.0, 0.0, is_random=True, prompt="You do not care about points. Make any offers, and accept at random.",
    ),
}  # fmt: skip


@functools.lru_cache(maxsize=4096)
def best_response(
    counts: tuple[int, ...], values: tuple[tuple[int, ...], tuple[int, ...]], name: str, turns: int, first: int
) -> float:
    """Return the highest expected points of seat 0 against a scripted negotiator in seat 1.

    All offers of seat 0 are tried at each of its messages, also none. Offers are binding until the next message.

    Args:
        counts: Numbers of items.
        values: Values of both seats.
        name: Name of the strategy.
        turns: Number of messages of each seat.
        first: Seat that speaks first.
    """
    strategy, everything = STRATEGIES[name], bundles(counts)

    @functools.cache
    def offering(ply: int) -> float:
        """Return the value of the best offer of seat 0, or of none."""
        return max(answered(ply + 1, offer) for offer in (None, *everything))

    def answered(ply: int, offer: Bundle | None) -> float:
        """Return the value after seat 0 has asked for a bundle and seat 1 answers."""
        if ply == 2 * turns:
            return 0.0
        turn, given = ply // 2, None if offer is None else rest(counts, offer)
        chance = 0.0 if given is None else strategy.chance(values[1], counts, turn, turns, given)
        deal = chance * points(values[0], offer) if offer is not None else 0.0
        if chance == 1 or ply + 1 == 2 * turns:
            return deal
        wanted = strategy.offers(values[1], counts, turn, turns, given)
        later = [max(points(values[0], rest(counts, own)), offering(ply + 1)) for own in wanted]
        return deal + (1 - chance) * sum(later) / len(later)

    return offering(0) if first == 0 else answered(0, None)


def decide(
    strategy: Strategy, rng: random.Random, values: Sequence[int], counts: Sequence[int], turn: int, turns: int,
    offered: Bundle | None,
) -> Bundle | None:  # fmt: skip
    """Return the bundle that a negotiator asks for, or None if it accepts; see `Strategy.offers`."""
    if offered is not None and rng.random() < strategy.chance(values, counts, turn, turns, offered):
        return None
    return rng.choice(strategy.offers(values, counts, turn, turns, offered))
