"""Samples: shapes, masks, and cutting them into parts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax import samples as s


def some(n=6, time=5, width=2):
    """Rows that can be told apart by their numbers."""
    number = jnp.arange(n)
    wide = jnp.broadcast_to(number[:, None], (n, width)).astype(jnp.float32)
    return s.Samples(
        tokens=jnp.broadcast_to(number[:, None], (n, time)),
        prompt_lengths=jnp.full((n,), 3),
        answers=jnp.zeros((n, width), jnp.int32),
        answer_lengths=1 + number % 2,
        action=number,
        legal=jnp.ones((n, 4), bool),
        logps=wide,
        values=wide,
        weights=jnp.ones((n,)),
        agent=number % 2,
        policy=jnp.zeros((n,), jnp.int32),
        episode=number,
        turn=number,
        rewards=jnp.zeros((n, 2)),
        ends=jnp.zeros((n,), bool),
        group=number,
        advantages=wide,
        returns=wide,
    )


def test_mask_covers_the_answer_and_positions_come_just_before_it():
    rows = some()
    np.testing.assert_array_equal(rows.mask(), [[1, 0], [1, 1]] * 3)
    np.testing.assert_array_equal(rows.before_answer()[0], [2, 3])


def test_join_answer_writes_behind_the_prompt_and_drops_what_does_not_fit():
    prompts = jnp.array([[7, 7, 0, 0], [8, 8, 8, 0], [9, 9, 9, 9]])
    answers = jnp.array([[1, 2], [3, 4], [5, 6]])
    joined = s.join_answer(prompts, jnp.array([2, 3, 4]), answers)
    np.testing.assert_array_equal(joined, [[7, 7, 1, 2], [8, 8, 8, 3], [9, 9, 9, 9]])


def test_split_makes_parts_that_together_are_all_rows():
    parts = s.split(some(), 3)
    assert parts.action.shape == (3, 2)
    assert sorted(np.asarray(parts.action).ravel()) == list(range(6))
    np.testing.assert_array_equal(parts.action, parts.episode)
    with pytest.raises(ValueError, match="6 samples do not split into 4"):
        s.split(some(), 4)


def test_take_keeps_rows_whole():
    rows = s.take(some(), jnp.array([4, 1]))
    for leaf in (rows.action, rows.tokens[:, 0], rows.logps[:, 1]):
        np.testing.assert_array_equal(leaf, [4, 1])


def test_flat_goes_turn_by_turn():
    in_time = jax.tree.map(lambda x: x.reshape(2, 3, *x.shape[1:]), some())
    np.testing.assert_array_equal(in_time.flat().action, np.arange(6))
    assert dataclasses.fields(in_time) == dataclasses.fields(in_time.flat())


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"), [(10, 1, 10), (10, 4, 14), (64, 1, 64), (64, 2, 72), (150, 8, 160), (600, 1, 640)]
)
def test_row_length_leaves_room_for_all_but_the_last_token(prompt, answer, expected):
    assert s.row_length(prompt, answer) == expected >= prompt + answer - 1


def test_runs_of_rows_stay_together_and_come_back_in_order():
    rows = {"a": jnp.arange(12), "b": jnp.arange(24).reshape(12, 2)}
    parts = s.split(rows, 3, unit=2)
    assert parts["a"].tolist() == [[0, 1, 6, 7], [2, 3, 8, 9], [4, 5, 10, 11]]
    jax.tree.map(np.testing.assert_array_equal, s.unsplit(parts, unit=2), rows)
    with pytest.raises(ValueError, match="12 samples do not split into 4 equal parts of runs of 2"):
        s.split(rows, 4, unit=2)
