"""Seating: the policy or bot that acts for each seat at each turn.

All seats may share one policy, or seats and turns may have different ones, some of them frozen or bots. Policies are
referred to by index, and -1 means that no policy acts.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from envs.games.game import Bot

BOT = "bot:"  # marks the name of a bot in place of a policy


@dataclasses.dataclass(frozen=True, eq=False)
class Seating:
    """Assignment of policies and bots to seats.

    Attributes:
        table: For each seat, the policy indices at its first, second, … turn. The last one applies to all later turns.
            -1 marks a bot.
        bots: For each seat, the bot that always plays it, or None.
    """

    table: tuple[tuple[int, ...], ...]
    bots: tuple[Bot | None, ...] = ()

    @property
    def n_seats(self) -> int:
        """Number of seats P."""
        return len(self.table)

    def policy(self, seat: jax.Array, turn: jax.Array | int = 0) -> jax.Array:
        """Return the policy of a seat at its n-th turn, int32 [...], -1 for none.

        Args:
            seat: int32 [...].
            turn: int32 [...], counted per seat.
        """
        longest = max(map(len, self.table))
        padded = [(*row, *row[-1:] * (longest - len(row))) for row in self.table]
        return jnp.asarray(padded, jnp.int32)[seat, jnp.minimum(turn, longest - 1)]

    def policy_at(self, seat: int, turn: int) -> int:
        """Return `policy` of one seat and turn on the host."""
        return self.table[seat][min(turn, len(self.table[seat]) - 1)]

    def policies(self, seat: int) -> tuple[int, ...]:
        """Return all policies that act for a seat at some turn."""
        return tuple(dict.fromkeys(policy for policy in self.table[seat] if policy >= 0))

    def open_seats(self) -> tuple[int, ...]:
        """Return the seats that are not played by a bot."""
        return tuple(seat for seat in range(self.n_seats) if self.policies(seat))

    def has_bot(self, seat: int) -> bool:
        """Return whether a bot plays the seat."""
        return bool(self.bots) and self.bots[seat] is not None

    def bot_actions(self, state, seat: jax.Array, keys: jax.Array, action: jax.Array) -> jax.Array:
        """Replace the actions int32 [B] of rows in which a bot moves."""
        for number, bot in enumerate(self.bots):
            if bot is not None:
                action = jnp.where(seat == number, jax.vmap(bot.act)(state, keys), action)
        return action

    def resized(self, n_seats: int) -> Seating:
        """Return a seating of `n_seats` seats, which repeats the present seats in order."""
        table, bots = self.table, self.bots
        return Seating(
            tuple(table[seat % len(table)] for seat in range(n_seats)),
            tuple(bots[seat % len(bots)] for seat in range(n_seats)) if bots else (),
        )

    def swapped(self) -> Seating:
        """Return a seating in which every seat takes the next seat's player."""
        turn = lambda seats: (*seats[1:], *seats[:1])  # noqa: E731
        return Seating(turn(self.table), turn(self.bots))


def seat_names(agents: Mapping[str, str], roles: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the policy names, or bot:NAME, of each seat at its first, second, … turn.

    Args:
        agents: Maps "all", a role or "seat_N", optionally followed by @TURN, to a name: {"all": "main"}, {"planner":
            "a", "executor": "bot:solver"}, {"all": "first", "all@1": "later"}. Entries of a seat override those of its
            role, which override "all".
        roles: The role of each seat.
    """
    names = []
    for number, role in enumerate(roles):
        turns: dict[int, str] = {}
        for key in ("all", role, f"seat_{number}"):
            own = {_turn(agent): name for agent, name in agents.items() if _who(agent) == key}
            turns = own if 0 in own else turns | own  # before its first entry, the more general ones apply
        now, row = "", []
        for turn in range(max(turns, default=0) + 1):
            now = turns.get(turn, now)
            row.append(now)
        names.append(tuple(row))
    return names


def _who(agent: str) -> str:
    return agent.partition("@")[0]


def _turn(agent: str) -> int:
    return int(agent.partition("@")[2] or 0)
