"""Samples: between answers, their tokens and time, and cutting rows into parts."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax import samples as s
from tests.marl_jax.tiny_samples import by_hand

pytestmark = pytest.mark.quick

# Row 0: an answer of two tokens, one of one. Row 1: a gap, the second answer only. Row 2: no answer at all.
ANSWER_OF = [[0, 0, 1, -1], [-1, 1, 1, 1], [-1, -1, -1, -1]]
TOKENS = jnp.arange(1.0, 13.0).reshape(3, 4)


def some(n=6, time=5):
    """Return rows with a completion of one or two tokens, which differ in their numbers."""
    number = jnp.arange(n)
    rows = by_hand([[0, -1], [0, 0]] * (n // 2))
    wide = jnp.broadcast_to(number[:, None], (n, 2)).astype(jnp.float32)
    tokens = jnp.broadcast_to(number[:, None], (n, time))
    return rows.replace(tokens=tokens, action=number[:, None], episode=number[:, None], logps=wide)


# ------------------------------------------------------------------------------------------------ answers and tokens


def test_by_hand():
    rows = by_hand(ANSWER_OF, loss_weights=jnp.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]))
    assert (rows.n, rows.n_completions, rows.width, rows.n_seats) == (3, 2, 4, 1)
    assert rows.completion_lengths.tolist() == [[2, 1], [0, 3], [0, 0]]
    assert rows.mask().tolist() == [[1, 1, 1, 0], [0, 1, 1, 1], [0, 0, 0, 0]]
    assert rows.first().tolist() == [[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0]]
    assert rows.to_completions(TOKENS).tolist() == [[1 + 2, 3], [0, 6 + 7 + 8], [0, 0]]
    assert rows.at_first(TOKENS).tolist() == [[1, 3], [0, 6], [0, 0]]
    spread = rows.to_tokens(jnp.array([[5.0, 6.0], [7.0, 8.0], [9.0, 9.0]])) * rows.mask()
    assert spread.tolist() == [[5, 5, 6, 0], [0, 8, 8, 8], [0, 0, 0, 0]]
    assert rows.active().tolist() == [True, True, False]


def test_one_answer_a_row_is_no_special_case():
    one = by_hand([[0, 0, -1], [0, 0, 0]])
    assert one.to_completions(jnp.array([[1.0, 2.0, 4.0], [1.0, 2.0, 4.0]])).tolist() == [[3], [7]]
    assert one.first().tolist() == [[1, 0, 0], [1, 0, 0]]


def test_own_rewards_are_those_of_the_answering_seat():
    rewards = jnp.arange(8.0).reshape(2, 2, 2)
    rows = by_hand([[0, 1], [0, 1]], n_seats=2, seat=jnp.array([[0, 1], [1, 0]]), rewards=rewards)
    assert rows.own_rewards().tolist() == [[0, 3], [5, 6]]


SIZE, WIDTH = 3, 8


@st.composite
def layouts(draw):
    """`completion_of` [2, WIDTH] of up to SIZE answers a row in any order, gaps between them, some of them missing."""
    rows = []
    for _ in range(2):
        row = []
        for answer in draw(st.permutations(range(SIZE))):
            row += [-1] * draw(st.integers(0, 1)) + [answer] * draw(st.integers(0, 2))
        rows.append((row + [-1] * WIDTH)[:WIDTH])
    return np.array(rows)


@jax.jit
def moved(rows, x, y):
    """(sums over tokens, first tokens, copies, first tokens of copies)"""
    copied = rows.to_tokens(y) * rows.mask()
    return rows.to_completions(x), rows.at_first(x), copied, rows.at_first(copied)


@settings(max_examples=40, deadline=None)
@given(layouts(), st.integers(0, 99))
def test_sums_and_copies_fit_together(completion_of, seed):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(2, WIDTH)), rng.normal(size=(2, SIZE))
    rows = by_hand(completion_of, n_completions=SIZE)
    found_sums, found_firsts, copied, back = jax.device_get(moved(rows, x, y))
    # By loops.
    sums, firsts = np.zeros(y.shape), np.zeros(y.shape)
    for n, row in enumerate(completion_of):
        for i, answer in enumerate(row):
            if answer >= 0:
                sums[n, answer] += x[n, i]
                firsts[n, answer] = x[n, i] if answer not in row[:i] else firsts[n, answer]
    np.testing.assert_allclose(found_sums, sums, atol=1e-5)
    np.testing.assert_allclose(found_firsts, firsts, atol=1e-6)
    # Sums are the transpose of copies, and the first tokens of what was copied are what was there.
    np.testing.assert_allclose(np.sum(copied * x), np.sum(y * sums), rtol=1e-3, atol=1e-4)
    exists = rows.completion_lengths > 0
    np.testing.assert_allclose(back, np.where(exists, y, 0), atol=1e-6)
    np.testing.assert_array_equal(
        rows.completion_lengths, [[np.sum(row == i) for i in range(SIZE)] for row in completion_of]
    )


# -------------------------------------------------------------------------------------------------------------- time


def test_time_by_hand():
    # Three turns of two games in two rows of three answers: game 0 has the answers of row 1.
    rows = by_hand([[0, 1, 2], [0, 1, 2]], completion_at=jnp.array([[3, 0], [4, 1], [5, 2]]))
    by_row = jnp.array([[10, 11, 12], [20, 21, 22]])
    assert rows.in_time(by_row).tolist() == [[20, 10], [21, 11], [22, 12]]
    assert rows.in_time(by_row[..., None]).shape == (3, 2, 1)
    assert rows.from_time(rows.in_time(by_row)).tolist() == by_row.tolist()
    # An answer at no time, the last of row 0 here, gets nothing.
    fewer = rows.replace(completion_at=rows.completion_at[:2])
    assert fewer.from_time(jnp.array([[1, 2], [3, 4]])).tolist() == [[2, 4, 0], [1, 3, 0]]


@jax.jit
def there_and_back(completion_at, x, time):
    rows = by_hand([[0, 1, 2]] * 3, n_completions=3, completion_at=completion_at)
    return rows.from_time(rows.in_time(x)), rows.in_time(rows.from_time(time)), rows.from_time(time > 0)


@settings(max_examples=30, deadline=None)
@given(st.permutations(range(9)))
def test_there_and_back_in_time(order):
    """Six of nine completions in any arrangement: those with a time come back, all others are zero."""
    completion_at, time = np.reshape(order[:6], (3, 2)), np.arange(6).reshape(3, 2)
    x = np.arange(1.0, 10.0).reshape(3, 3)
    back, same, flags = jax.device_get(there_and_back(completion_at, x, time))
    np.testing.assert_array_equal(back, np.where(np.isin(np.arange(9).reshape(3, 3), completion_at), x, 0))
    np.testing.assert_array_equal(same, time)
    assert flags.dtype == bool and flags.sum() == 5


def test_turns_that_look_ahead_are_left_out():
    rows = some(6).replace(completion_at=jnp.arange(6).reshape(3, 2), lookahead=1, n_groups=6)
    kept = rows.without_lookahead()
    assert (kept.n, kept.lookahead, kept.n_groups) == (4, 0, 6)
    assert kept.completion_at.tolist() == [[0, 1], [2, 3]]
    assert kept.action[:, 0].tolist() == kept.in_time(kept.action).ravel().tolist() == [0, 1, 2, 3]
    still = rows.replace(lookahead=0)
    assert still.without_lookahead() is still
    # In rows of several completions, lookahead turns follow others, so no row can be dropped.
    together = by_hand([[0, 1, 2]], completion_at=jnp.array([[0], [1], [2]]), lookahead=1)
    assert together.without_lookahead() is together


# ------------------------------------------------------------------------------------------------ rows and their parts


def test_join_answer_writes_behind_the_prompt_and_drops_what_does_not_fit():
    prompts = jnp.array([[7, 7, 0, 0], [8, 8, 8, 0], [9, 9, 9, 9]])
    answers = jnp.array([[1, 2], [3, 4], [5, 6]])
    joined = s.join_answer(prompts, jnp.array([2, 3, 4]), answers)
    np.testing.assert_array_equal(joined, [[7, 7, 1, 2], [8, 8, 8, 3], [9, 9, 9, 9]])


def test_split_makes_parts_that_together_are_all_rows():
    parts = s.split(some(), 3)
    assert parts.action.shape == (3, 2, 1)
    assert sorted(np.asarray(parts.action).ravel()) == list(range(6))
    np.testing.assert_array_equal(parts.action, parts.episode)
    jax.tree.map(np.testing.assert_array_equal, s.unsplit(parts), some())
    with pytest.raises(ValueError, match="6 rows do not split into 4"):
        s.split(some(), 4)


def test_a_part_has_a_share_of_every_run_of_rows():
    """Rows that lie on one device stay there: each gives a share to every part."""
    rows = {"a": jnp.arange(12), "b": jnp.arange(24).reshape(12, 2)}
    parts = s.split(rows, 3)
    assert parts["a"].tolist() == [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    jax.tree.map(np.testing.assert_array_equal, s.unsplit(parts), rows)


def test_rows_stay_whole_and_lose_their_time():
    given_time = some().replace(completion_at=jnp.arange(6).reshape(3, 2))
    picked = s.rows(given_time, jnp.array([4, 1]))
    for leaf in (picked.action[:, 0], picked.tokens[:, 0], picked.logps[:, 1]):
        np.testing.assert_array_equal(leaf, [4, 1])
    assert picked.completion_at is None and s.rows(given_time, slice(2)).action[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize(
    ("prompt", "answer", "expected"), [(10, 1, 10), (10, 4, 14), (64, 1, 64), (64, 2, 72), (150, 8, 160), (600, 1, 640)]
)
def test_row_length_leaves_room_for_all_but_the_last_token(prompt, answer, expected):
    assert s.row_length(prompt, answer) == expected >= prompt + answer - 1


@pytest.mark.parametrize(("n", "shards", "expected"), [(104, 8, 13), (64, 8, 8), (104, 1, 8), (14, 1, 7)])
def test_in_parts_gives_every_device_rows_of_each_part(n, shards, expected):
    """A part that does not divide by the mesh would not be sharded: every device would exchange its activations."""
    sizes = []

    def doubled(part):
        sizes.append(part.n)
        return 2.0 * part.logps

    mesh = jax.make_mesh((1, shards, 1), ("data", "fsdp", "tensor"), devices=jax.devices()[:shards])
    with jax.set_mesh(mesh):
        result = jax.jit(lambda rows: s.in_parts(doubled, rows, 8))(some(n))
    assert set(sizes) == {n // expected} and sizes[0] % shards == 0
    np.testing.assert_array_equal(result, 2.0 * some(n).logps)


# ------------------------------------------------------------------------------------------------------- from prompts


def prompts(answers, **more):
    """Prompts 1 2 3 and 4 5 in rows of five tokens with these answers, int [2, S, W], of all W tokens or fewer."""
    answers = jnp.asarray(answers, jnp.int32)
    tokens, lengths = jnp.array([[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]]), jnp.array([3, 2])
    said = jnp.sum(answers > 0, axis=2).astype(jnp.int32)
    logps = -jnp.arange(1.0, answers.size + 1).reshape(answers.shape)
    return s.from_prompts(tokens, lengths, answers, said, logps, rewards=jnp.zeros((2, answers.shape[1], 1)), **more)


def test_a_row_goes_on_with_its_only_answer():
    rows = prompts([[[6, 7, 8]], [[9, 0, 0]]], skip=10, values=jnp.array([[0.5], [0.25]]))
    assert rows.tokens.tolist() == [[1, 2, 3, 6, 7], [4, 5, 9, 0, 0]]  # nothing has to be read of the last token
    assert rows.lengths.tolist() == [5, 3] and rows.context_len.tolist() == [[13], [12]]
    assert rows.positions.tolist() == [[10, 11, 12, 13, 14]] * 2
    assert rows.completion_of.tolist() == [[0, 0, 0], [0, -1, -1]] and rows.mask().tolist() == [[1, 1, 1], [1, 0, 0]]
    assert rows.logits_index[0].tolist() == [2, 3, 4] and int(rows.logits_index[1, 0]) == 1, "just before the answer"
    assert rows.targets.tolist() == [[6, 7, 8], [9, 0, 0]] and rows.logps.tolist() == [[-1, -2, -3], [-4, -5, -6]]
    assert rows.values.tolist() == [[0.5, 0, 0], [0.25, 0, 0]]
    assert (rows.segment, rows.branch, rows.branch_len) == (None, None, 0)
    assert rows.group.tolist() == [[0], [1]] and (rows.n_groups, rows.group_size) == (2, 1)


def test_several_answers_are_branches_behind_the_prompt():
    rows = prompts([[[6, 7, 8], [9, 6, 0]], [[7, 0, 0], [8, 8, 8]]], skip=jnp.array([10, 20]))
    assert rows.tokens.tolist() == [[1, 2, 3, 0, 0, 6, 7, 9, 6], [4, 5, 0, 0, 0, 7, 0, 8, 8]]
    assert rows.branch.tolist() == [[-1] * 5 + [0, 0, 1, 1]] * 2 and rows.branch_len == 2
    assert rows.positions[0].tolist() == [10, 11, 12, 13, 14, 13, 14, 13, 14]
    assert rows.positions[1].tolist() == [20, 21, 22, 23, 24, 22, 23, 22, 23]
    assert rows.context_len.tolist() == [[13, 13], [22, 22]]
    assert rows.completion_of.tolist() == [[0, 0, 0, 1, 1, -1], [0, -1, -1, 1, 1, 1]]
    mask = np.asarray(rows.mask(), bool)
    assert np.asarray(rows.logits_index)[mask].tolist() == [2, 5, 6, 2, 7] + [1, 1, 7, 8]
    assert rows.targets.tolist() == [[6, 7, 8, 9, 6, 0], [7, 0, 0, 8, 8, 8]]
    assert rows.group.tolist() == [[0, 0], [1, 1]] and rows.member.tolist() == [[0, 1]] * 2
    assert (rows.n_groups, rows.group_size) == (2, 2)


def test_of_answers_of_one_token_nothing_is_read():
    rows = prompts([[[6], [7]], [[8], [9]]])
    assert rows.tokens.tolist() == [[1, 2, 3, 0, 0], [4, 5, 0, 0, 0]] and rows.branch is None
    assert rows.logits_index.tolist() == [[2, 2], [1, 1]] and rows.lengths.tolist() == [3, 2]
