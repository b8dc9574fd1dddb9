"""Refill by hand: which units of which rollouts a batch ends with, found with loops over answers."""

import collections
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.rollouts.games import GameRolloutState


def unit_of_rows(rollout, n):
    """int [N]: the unit of every row: a group of games, a game with all its seats, or a single row."""
    row, seats, k = np.arange(n), rollout.game.n_players, rollout.candidates
    if rollout.whole_episodes:
        return row // seats // k if rollout.history_turns else row % rollout.rows // k
    return row // seats if rollout.history_turns else row


def informative_units(rollout, samples):
    """(units with answers to learn from, those of them with a group whose returns differ), as sets."""
    returns = collections.defaultdict(lambda: collections.defaultdict(float))
    members, learners = collections.defaultdict(set), collections.defaultdict(set)
    unit = unit_of_rows(rollout, samples.n)
    for n, s in np.argwhere(samples.completion_lengths > 0):
        group, member = int(samples.group[n, s]), int(samples.member[n, s])
        if samples.ends[n, s] or not rollout.whole_episodes:
            members[group].add(member)
        for seat, reward in enumerate(samples.rewards[n, s]):
            returns[group, seat][member] += float(reward)
        if samples.loss_weights[n, s] > 0:
            learners[group, int(samples.seat[n, s])].add(int(unit[n]))
    learning = set().union(*learners.values())
    informative = set()
    for (group, seat), units in learners.items():
        values = [returns[group, seat][member] for member in members[group]]
        if len(values) > 1 and np.ptp(values) > 1e-4:
            informative |= units
    return learning, informative


def by_hand(rollout, rollouts):
    """([(rollout, unit) for each unit of the batch], rollouts played), where `rollouts` are those to be played."""
    samples = rollouts[0]
    unit = unit_of_rows(rollout, samples.n)
    by_policy = not rollout.whole_episodes and not rollout.history_turns
    origins = [(0, u) for u in range(unit.max() + 1)]
    learning, informative = informative_units(rollout, samples)
    lacking, played = sorted(learning - informative), 1
    while lacking and played <= rollout.refill:
        offers = sorted(informative_units(rollout, rollouts[played])[1])
        for u in list(lacking):
            mine = lambda v, u=u: not by_policy or rollouts[played].policy[v] == samples.policy[u]  # noqa: E731, B023
            offer = next((v for v in offers if mine(v)), None)
            if offer is not None:
                origins[u] = (played, offer)
                offers.remove(offer)
                lacking.remove(u)
        played += 1
    return origins, played


def check(rollout, batch, metrics, rollouts):
    """The batch is made of the units that it should be, and all its groups are whole and distinct."""
    origins, played = by_hand(rollout, rollouts)
    unit = unit_of_rows(rollout, batch.n)
    assert batch.completion_at is None and batch.n_groups == rollouts[0].n_groups
    owner = {}
    for u, (number, v) in enumerate(origins):
        other = rollouts[number].replace(completion_at=None)
        here, there = np.flatnonzero(unit == u), np.flatnonzero(unit == v)
        for field in dataclasses.fields(batch):
            x, y = getattr(batch, field.name), getattr(other, field.name)
            if isinstance(x, np.ndarray) and field.name != "group":
                np.testing.assert_array_equal(x[here], y[there], err_msg=field.name)
        real = batch.completion_lengths[here] > 0
        renumbered = set(zip(other.group[there][real].tolist(), batch.group[here][real].tolist(), strict=True))
        old, new = ({pair[i] for pair in renumbered} for i in (0, 1))
        assert len(old) == len(new) == len(renumbered), "a group stays one group"
        assert all(owner.setdefault(group, u) == u for group in new), "groups of two units are two groups"
    assert min(owner) >= 0 and max(owner) < batch.n_groups
    learning = informative_units(rollout, rollouts[0])[0]
    replaced = sum(number > 0 for number, _ in origins)
    assert int(metrics["refill/rollouts"]) == played - 1
    assert float(metrics["refill/replaced"]) == np.float32(replaced / len(learning))
    return played, replaced


def recorded(rollout):
    """The rollout with recorded samples in place of play.

    Called as itself, but that its parameters are the samples of all rollouts, stacked, and the state is the number of
    the next one.
    """

    class Recorded(type(rollout)):
        def run(self, params, state, key):
            return jax.tree.map(lambda x: x[state.games], params), GameRolloutState(state.games + 1), state.games

        def metrics(self, samples, finished):
            return {"tokens": jnp.sum(samples.completion_lengths), "number": finished}

    return Recorded(**{field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout)})


class Refilled:
    """A rollout with refill over recorded samples, compiled once for rewards of any kind."""

    def __init__(self, rollout, rollouts):
        self.rollout, self.rollouts = rollout, [samples.replace(completion_at=None) for samples in rollouts]
        self._measured = jax.jit(recorded(rollout).measured)

    def check(self, seed, share):
        """Refill with a `share` of groups whose members have random rewards of 0 or 1; returns as `check` does.

        A few answers, at random, do not contribute to the loss.
        """
        rng = np.random.default_rng(seed)
        rollouts = [self._rewarded(samples, rng, share) for samples in self.rollouts]
        stacked = jax.tree.map(lambda *x: np.stack(x), *rollouts)
        batch, state, _, metrics = jax.device_get(
            self._measured(stacked, GameRolloutState(jnp.int32(0)), jax.random.key(0))
        )
        played, replaced = check(self.rollout, batch, metrics, rollouts)
        assert state.games == played and metrics["number"] == 0, "metrics are those of the first rollout"
        assert metrics["tokens"] == sum(samples.completion_lengths.sum() for samples in rollouts[:played])
        return played, replaced

    def _rewarded(self, samples, rng, share):
        groups = (samples.n_groups, samples.group_size, samples.n_seats)
        differs = rng.random((samples.n_groups, 1, 1)) < share
        paid = np.where(differs, rng.integers(0, 2, groups), 1).astype(np.float32)[samples.group, samples.member]
        last = samples.ends if self.rollout.whole_episodes else samples.completion_lengths > 0
        learns = rng.random(last.shape) < 0.9
        return samples.replace(rewards=paid * last[..., None], loss_weights=samples.loss_weights * learns)
