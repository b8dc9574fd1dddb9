"""Which turns learn: a function of the step alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_jax.errors import ConfigError
from marl_jax.rollouts.host.rollout import TurnSchedule
from marl_jax.schema import validate
from tests.marl_jax import tiny_task
from tests.marl_jax.tiny_host import conversation, make_rollout

TURNS = st.lists(st.integers(0, 9), min_size=2, max_size=5, unique=True).map(tuple)


@given(TURNS, st.integers(1, 7), st.integers(0, 100))
def test_blocks_take_turns_in_the_order_given(turns, block, cycle):
    schedule = TurnSchedule(turns, block)
    start = cycle * block * len(turns)
    steps = [schedule.at(step) for step in range(start, start + block * len(turns))]
    assert steps == [(turn,) for turn in turns for _ in range(block)]
    assert [schedule.metrics(start + i) for i in range(len(steps))] == [{"train_turn": turn} for (turn,) in steps]


@given(st.lists(st.integers(0, 4), max_size=3, unique=True).map(tuple), st.integers(0, 50))
def test_without_blocks_every_step_is_alike(turns, step):
    schedule = TurnSchedule(turns)
    assert schedule.at(step) == turns and schedule.metrics(step) == {}


@pytest.mark.parametrize("schedule", [TurnSchedule(), TurnSchedule((2,)), TurnSchedule((1, 0), block=1)])
def test_only_the_weights_of_other_turns_change(schedule):
    rollout, plain = (make_rollout(conversation, time_order=True, schedule=s) for s in (schedule, TurnSchedule()))
    try:
        state = dict(rollout.init(None, None), step=3)
        (samples, after, metrics), (every, *_) = rollout({}, state), plain({}, state)
    finally:
        rollout.close()
        plain.close()
    learning = {(): (0, 1, 2), (2,): (2,), (1, 0): (0,)}[schedule.turns]  # the fourth block of one step trains turn 0
    np.testing.assert_array_equal(samples.loss_weights, every.loss_weights * np.isin(every.turn, learning))
    assert set(every.turn[every.loss_weights > 0]) == {0, 1, 2} and after["step"] == 4
    for name in ("rewards", "targets", "turn", "ends", "completion_at"):
        np.testing.assert_array_equal(getattr(samples, name), getattr(every, name))
    assert metrics.get("train_turn") == (0 if schedule.block else None)


@given(TURNS, st.integers(1, 7), st.integers(0, 100))
def test_seats_take_turns_too(seats, block, cycle):
    schedule = TurnSchedule(seats=seats, seat_block=block)
    start = cycle * block * len(seats)
    steps = [schedule.seats_at(step) for step in range(start, start + block * len(seats))]
    assert steps == [(seat,) for seat in seats for _ in range(block)]
    assert schedule.at(start) == () and schedule.metrics(start) == {"train_seat": seats[0]}


def test_only_the_weights_of_other_seats_change():
    schedule = TurnSchedule(seats=(0, 1), seat_block=2)
    rollout, plain = (make_rollout(conversation, time_order=True, schedule=s) for s in (schedule, TurnSchedule()))
    try:
        for step, seat in ((1, 0), (2, 1), (4, 0)):
            state = dict(rollout.init(None, None), step=step)
            (samples, _, metrics), (every, *_) = rollout({}, state), plain({}, state)
            np.testing.assert_array_equal(samples.loss_weights, every.loss_weights * (every.seat == seat))
            np.testing.assert_array_equal(samples.rewards, every.rewards)
            assert metrics["train_seat"] == seat and set(every.seat[every.loss_weights > 0]) == {0, 1}
    finally:
        rollout.close()
        plain.close()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (dict(train_turns=(1, 1)), "different integers"),
        (dict(train_turns=(-1,)), "different integers"),
        (dict(turn_block=2), "blocks need at least two turns"),
        (dict(turn_block=2, train_turns=(1,)), "blocks need at least two turns"),
        (dict(pack=2, grad_accum_steps=2, critic_reads="completion"), "algo.critic_reads 'completion'"),
        (dict(whiten=True), "must be one of: none, agent, turn"),
    ],
)
def test_what_cannot_work_is_refused(fields, problem):
    config = tiny_task.get_config("ppo").unlock()
    with config.algo.ignore_type():
        config.algo.update(fields)
    with pytest.raises(ConfigError, match=problem):
        validate.check(config)
