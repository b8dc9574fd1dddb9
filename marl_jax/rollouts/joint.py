"""Rollouts for joint actions: every round has a row for every seat.

In a simultaneous game, these are the turns themselves. In other games one seat moves and the others pass: the rollout
also records what the others see, with the action "pass", whose number is that of the actions of the game.
"""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from marl_jax.rollouts.conversations.turns import Finished, Turn
from marl_jax.rollouts.games import GameRollout, Games, Seen, like, look
from marl_jax.samples import Samples


@dataclasses.dataclass(frozen=True, eq=False)
class JointRollout(GameRollout):
    """A rollout whose samples contain rounds; see `learning/rounds.py`."""

    @property
    def lookahead(self) -> int:
        """Number of extra turns: those of one more round."""
        return self.game.n_players if self.game.simultaneous else 1

    def play(
        self, params: dict, games: Games, key: jax.Array, snapshot: dict | None = None
    ) -> tuple[Samples, Finished, Games]:
        """Play the turns of a rollout; see `GameRollout.play`."""
        samples, finished, games = super().play(params, games, key, snapshot)
        if not self.game.simultaneous:
            assert samples.completion_at is not None
            samples = samples.replace(
                completion_at=samples.completion_at.reshape(-1, self.rows), lookahead=self.game.n_players
            )
        return samples, finished, games

    def _record(self, games: Games, seen: Seen, decision, policy, paid, ended, central=None, counts=None) -> Turn:
        turn = super()._record(games, seen, decision, policy, paid, ended, central, counts)
        if self.game.simultaneous:
            return turn
        rows = [self._seen_by(seat, games, turn) for seat in range(self.game.n_players)]
        return jax.tree.map(lambda *x: jnp.concatenate(x), *rows)

    def _seen_by(self, number: int, games: Games, turn: Turn) -> Turn:
        """Return the rows of one seat, with a pass where another seat moves.

        Rewards and the end of the game belong to the rows of the last seat, so that they count once.
        """
        seat = jnp.full_like(turn.seat, number)
        policy = self.seating.policy(seat, games.turn // self.game.n_players)
        seen = look(self.game, self.team, games.state, seat, policy)
        moves, last = turn.seat == number, number == self.game.n_players - 1
        passed = jax.tree.map(jnp.zeros_like, turn.decision)
        passed = passed._replace(action=jnp.full_like(turn.decision.action, self.game.n_actions))
        decision = jax.tree.map(lambda own, none: jnp.where(like(moves, own), own, none), turn.decision, passed)
        return dataclasses.replace(
            turn,
            prompts=seen.prompts,
            lengths=seen.lengths,
            skip=seen.skip,
            seat=seat,
            policy=policy,
            decision=decision,
            media=seen.media,
            legal=turn.legal & moves[:, None],
            rewards=turn.rewards * last,
            ends=turn.ends & last,
            counts=self._counts(policy),
        )
