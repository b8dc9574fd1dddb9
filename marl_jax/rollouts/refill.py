"""Refill of uninformative groups with groups from further rollouts of the same step.

DAPO (Yu et al. 2025) calls this dynamic sampling. A group whose rewards are all equal has zero advantages and does not
contribute to the update. With `refill` the rollout is repeated, inside the same program, while the batch contains such
groups. The batch keeps its size, and groups that could not be replaced stay in it.

Groups are replaced in units of full rows, so that every group stays complete. All metrics describe the first rollout,
which is the one that a run without refill would play, because a refilled batch has few starts that are always solved or
always failed. Only `tokens` counts all rollouts.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from marl_jax.learning import groups
from marl_jax.rollouts.conversations.turns import Finished
from marl_jax.rollouts.games import GameRollout, GameRolloutState, like
from marl_jax.samples import Samples


class Units(NamedTuple):
    """Parts of a batch that are replaced as a unit.

    Row (i · count + u) · rows + j belongs to unit u.

    Attributes:
        count: Number of units, U.
        rows: Number of adjacent rows of a unit.
        groups: Difference between the number of a group and that of the same group in the next unit.
        by_policy: Whether units are single rows that are only replaced by rows of the same policy.
    """

    count: int
    rows: int
    groups: int
    by_policy: bool = False

    def any(self, answers: jax.Array) -> jax.Array:
        """Reduce bool [N, S] to bool [U]."""
        return jnp.any(jnp.any(answers, axis=1).reshape(-1, self.count, self.rows), axis=(0, 2))

    def replace(self, samples: Samples, others: Samples, source: jax.Array, taken: jax.Array) -> Samples:
        """Replace units by units of other samples.

        Args:
            samples: Samples whose units are replaced.
            others: Samples that the new units come from.
            source: int32 [U]. Unit of `others` for each unit.
            taken: bool [U]. Units to replace.
        """
        row = jnp.arange(samples.n)
        unit = row // self.rows % self.count
        distance = source[unit] - unit
        moved = jax.tree.map(lambda x: x[row + distance * self.rows], others)
        # Unused slots of a row have group 0.
        shift = jnp.where(moved.completion_lengths > 0, distance[:, None] * self.groups, 0)
        moved = moved.replace(group=moved.group - shift)
        return jax.tree.map(lambda new, old: jnp.where(like(taken[unit], old), new, old), moved, samples)


def match(
    needs: jax.Array, offers: jax.Array, kinds: jax.Array, other_kinds: jax.Array, n_kinds: int
) -> tuple[jax.Array, jax.Array]:
    """Assign offered units to units that need one, of the same kind and in order.

    Args:
        needs: bool [U]. Units to be replaced.
        offers: bool [U]. Units of another batch, each of which is assigned at most once.
        kinds: int32 [U]. Kinds of the units that need one, from 0 to `n_kinds` - 1.
        other_kinds: int32 [U]. Kinds of the offered units.
        n_kinds: Number of kinds.

    Returns:
        The assigned units int32 [U], and which units have one, bool [U].
    """
    kind = jnp.arange(n_kinds)
    needed = needs[:, None] & (kinds[:, None] == kind)  # [U, kinds]
    offered = offers[:, None] & (other_kinds[:, None] == kind)
    place = jnp.where(offered, jnp.cumsum(offered, axis=0) - 1, len(offers))
    in_order = jnp.zeros((n_kinds, len(offers)), jnp.int32)
    in_order = in_order.at[kind, place].set(jnp.arange(len(offers))[:, None], mode="drop")
    number = jnp.sum(jnp.where(needed, jnp.cumsum(needed, axis=0) - 1, 0), axis=1)
    return in_order[kinds, number], needs & (number < jnp.sum(offered, axis=0)[kinds])


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Batch:
    """The batch of a step while it is refilled.

    Attributes:
        played: int32 []. Number of rollouts so far.
        state: State of the rollout.
        samples: Samples of the batch.
        lacking: bool [U]. Units that learn and have no informative group.
        replaced: bool [U]. Units that come from a later rollout than the first.
        tokens: int32 []. Number of tokens of all rollouts.
        first: Results and metrics of the first rollout.
    """

    played: jax.Array
    state: GameRolloutState
    samples: Samples
    lacking: jax.Array
    replaced: jax.Array
    tokens: jax.Array
    first: tuple[Finished, dict[str, jax.Array]]


@dataclasses.dataclass(frozen=True, eq=False)
class RefillRollout(GameRollout):
    """A rollout of games whose samples are compared in groups.

    Attributes:
        refill: Maximum number of extra rollouts per call that replace uninformative groups.
    """

    refill: int = 0

    whole_episodes: ClassVar[bool] = False
    """Whether the members of a group are episodes, which count once they have ended, or completions."""

    @property
    def units(self) -> Units:
        """Units of a batch that can be replaced."""
        raise NotImplementedError

    def measured(
        self, params: dict, state: GameRolloutState, key: jax.Array
    ) -> tuple[Samples, GameRolloutState, Finished, dict[str, jax.Array]]:
        """Play a rollout, and further ones while groups are uninformative and the budget lasts.

        The rollout is compiled once: the first one is the first iteration of the loop.
        """
        if not self.refill:
            return super().measured(params, state, key)
        units = self.units

        def play(state: GameRolloutState, number: jax.Array) -> tuple:
            # `run` splits its key in two, which uses the numbers 0 and 1.
            own = jnp.where(number == 0, key, jax.random.fold_in(key, 1 + number))
            samples, state, finished = self.run(params, state, own)
            return samples.replace(completion_at=None), state, (finished, self.metrics(samples, finished))

        def next_rollout(batch: Batch) -> Batch:
            first = batch.played == 0
            samples, state, results = play(batch.state, batch.played)
            informative = self._informative(samples)
            source, taken = match(
                batch.lacking, informative, self._kinds(batch.samples), self._kinds(samples), len(self.learns)
            )
            source, taken = jnp.where(first, jnp.arange(units.count), source), taken | first
            return Batch(
                batch.played + 1,
                state,
                units.replace(batch.samples, samples, source, taken),
                lacking=jnp.where(first, self._learning(samples) & ~informative, batch.lacking & ~taken),
                replaced=batch.replaced | (taken & ~first),
                tokens=batch.tokens + results[1]["tokens"],
                first=jax.tree.map(lambda new, old: jnp.where(first, new, old), results, batch.first),
            )

        def needs_another(batch: Batch) -> jax.Array:
            return (batch.played == 0) | ((batch.played <= self.refill) & jnp.any(batch.lacking))

        samples, _, results = _zeros(jax.eval_shape(play, state, jnp.int32(0)))
        none = jnp.zeros((units.count,), bool)
        empty = Batch(jnp.int32(0), state, samples, none, none, results[1]["tokens"], results)
        batch = jax.lax.while_loop(needs_another, next_rollout, empty)
        finished, metrics = batch.first
        learning = jnp.maximum(jnp.sum(self._learning(batch.samples)), 1)
        refilled = {
            "tokens": batch.tokens,
            "refill/rollouts": batch.played - 1,
            "refill/replaced": jnp.sum(batch.replaced) / learning,
        }
        return batch.samples, batch.state, finished, {**metrics, **refilled}

    def _learning(self, samples: Samples) -> jax.Array:
        """Mark the units with completions that contribute to the loss, bool [U]."""
        return self.units.any(samples.loss_weights > 0)

    def _informative(self, samples: Samples) -> jax.Array:
        """Mark the units with an informative group, bool [U]."""
        return self.units.any(groups.informative_answers(samples, self.whole_episodes))

    def _kinds(self, samples: Samples) -> jax.Array:
        """Return the kind of each unit, int32 [U]; units only replace their own kind."""
        if self.units.by_policy:
            return jnp.maximum(samples.policy, 0)  # rows of other players are neither replaced nor offered
        return jnp.zeros((self.units.count,), jnp.int32)


def _zeros(tree: Any) -> Any:
    return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), tree)
