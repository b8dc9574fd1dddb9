"""Seating: which policy answers for a seat at a turn, and which seats belong to bots.

One policy for all seats, one for each, one for each turn, frozen ones, bots: whoever asks gets the number of a policy,
or -1 where none of them answers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp

from envs.games.game import Bot

BOT = "bot:"  # in front of a bot's name where the name of a policy could stand


@dataclasses.dataclass(frozen=True, eq=False)
class Seating:
    """Who sits where.

    table  for each seat, the numbers of the policies that answer at its first, second, … turn; the last one stays. -1
           where a bot has the seat
    bots   for each seat, the bot to whom it belongs for good, or None
    """

    table: tuple[tuple[int, ...], ...]
    bots: tuple[Bot | None, ...] = ()

    @property
    def n_seats(self) -> int:
        """P."""
        return len(self.table)

    def policy(self, seat: jax.Array, turn: jax.Array | int = 0) -> jax.Array:
        """int32 [...]: the policy that answers for a seat at its own turn of this number, -1 for nobody."""
        longest = max(map(len, self.table))
        padded = [(*row, *row[-1:] * (longest - len(row))) for row in self.table]
        return jnp.asarray(padded, jnp.int32)[seat, jnp.minimum(turn, longest - 1)]

    def policy_at(self, seat: int, turn: int) -> int:
        """The same for one seat and turn, on the host."""
        return self.table[seat][min(turn, len(self.table[seat]) - 1)]

    def policies(self, seat: int) -> tuple[int, ...]:
        """All policies that ever answer for a seat."""
        return tuple(dict.fromkeys(policy for policy in self.table[seat] if policy >= 0))

    def open_seats(self) -> tuple[int, ...]:
        """The seats that belong to no bot."""
        return tuple(seat for seat in range(self.n_seats) if self.policies(seat))

    def has_bot(self, seat: int) -> bool:
        """Whether a bot has the seat."""
        return bool(self.bots) and self.bots[seat] is not None

    def bot_actions(self, state, seat: jax.Array, keys: jax.Array, action: jax.Array) -> jax.Array:
        """int32 [B]: `action`, or what the bot plays to whom the seat that moves belongs."""
        for number, bot in enumerate(self.bots):
            if bot is not None:
                action = jnp.where(seat == number, jax.vmap(bot.act)(state, keys), action)
        return action

    def resized(self, n_seats: int) -> Seating:
        """So many seats; further ones have whoever sits in the first, in turn."""
        table, bots = self.table, self.bots
        return Seating(
            tuple(table[seat % len(table)] for seat in range(n_seats)),
            tuple(bots[seat % len(bots)] for seat in range(n_seats)) if bots else (),
        )

    def swapped(self) -> Seating:
        """Every seat with whoever has the one after it."""
        turn = lambda seats: (*seats[1:], *seats[:1])  # noqa: E731
        return Seating(turn(self.table), turn(self.bots))


def seat_names(agents: Mapping[str, str], roles: Sequence[str]) -> list[tuple[str, ...]]:
    """For each seat, who answers at its first, second, … turn: names of policies, or bot:NAME.

    agents  from "all", a role or "seat_N", with @TURN behind it or not, to a name: {"all": "main"},
            {"planner": "a", "executor": "bot:solver"}, {"all": "first", "all@1": "later"}. A seat's own entries come
            before those of its role, and these before "all"
    """
    names = []
    for number, role in enumerate(roles):
        turns: dict[int, str] = {}
        for key in ("all", role, f"seat_{number}"):
            own = {_turn(agent): name for agent, name in agents.items() if _who(agent) == key}
            turns = own if 0 in own else turns | own  # one that begins later begins with who was there before
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
