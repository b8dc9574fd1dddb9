"""Choosing among named actions, with a recurrent toy model whose probabilities can be computed by hand."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import log_softmax

from marl_jax.sampling import choice
from marl_jax.sampling.batch_settings import row_keys
from marl_jax.sampling.choice import choice_logprobs, choose, make_choices
from tests.conftest import examples
from tests.marl_jax.tiny_engine import goodness, quick_jit

pytestmark = pytest.mark.quick

D, V, END = 6, 12, 11
B = 32  # rows of every call


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class State:
    """The toy model's cache: its state and the number of tokens so far."""

    state: jax.Array
    lengths: jax.Array


@dataclasses.dataclass(frozen=True)
class Toy:
    """A model with the interface of `Model`: state' = tanh(A state + embed[token]), logits = state · head."""

    @staticmethod
    def logits(params, hidden, ids):
        return hidden @ params["head"][:, ids]

    @staticmethod
    def forward(params, tokens, *, lengths, cache, adapters=None, dtype=None, prefix=None):
        new = jnp.tanh(cache.state @ params["A"] + params["embed"][tokens[:, 0]])
        new = jnp.where((lengths > 0)[:, None], new, cache.state)
        return new[:, None], State(new, cache.lengths + lengths)


def toy_params(seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"A": (D, D), "embed": (V, D), "head": (D, V), "start": (D,)}
    return {name: jnp.asarray(1.2 * rng.standard_normal(shape), jnp.float32) for name, shape in shapes.items()}


PARAMS = toy_params()


@quick_jit
def sampled(params, choices, legal, temperature, seeds):
    state = State(jnp.broadcast_to(params["start"], (len(seeds), D)), jnp.full((len(seeds),), 5))
    return choose(Toy(), params, state.state, state.lengths, choices, legal, temperature, row_keys(seeds), cache=state)


def train_state(params, choices, legal, action, temperature):
    """Compute hidden states of the chosen names and their `choice_logprobs`."""
    states = [jnp.broadcast_to(params["start"], (len(action), D))]
    for step in range(choices.width - 1):
        token = jnp.maximum(choices.ids[action, step], 0)
        states.append(jnp.tanh(states[-1] @ params["A"] + params["embed"][token]))
    return choice_logprobs(Toy(), params, jnp.stack(states, axis=1), choices, legal, action, temperature)


learnt = quick_jit(train_state)


def by_hand(names, legal, action, temperature) -> list[float]:
    """Compute log p of each token of a name by a walk through the trie of legal names in NumPy."""
    alive = [n for n, ok in zip(names, legal, strict=True) if ok]
    state, logps = np.asarray(PARAMS["start"]), []
    for step, token in enumerate(names[action]):
        allowed = sorted({n[step] for n in alive})
        logits = state @ np.asarray(PARAMS["head"])[:, allowed] / temperature
        logps.append(float(log_softmax(logits)[allowed.index(token)]))
        alive = [n for n in alive if n[step] == token]
        state = np.tanh(state @ np.asarray(PARAMS["A"]) + np.asarray(PARAMS["embed"])[token])
    return logps


def lists(choices) -> list[tuple[int, ...]]:
    return [tuple(row[:n]) for row, n in zip(choices.ids.tolist(), choices.lengths.tolist(), strict=True)]


# Five names over four tokens, which often share tokens or are prefixes of each other.
NAMES = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=3).map(tuple), min_size=5, max_size=5, unique=True)
MASKS = st.lists(st.booleans(), min_size=5, max_size=5).filter(any)


@given(NAMES, MASKS, st.sampled_from([0.5, 1.0, 2.0]), st.integers(0, 2**32 - 1))
@settings(max_examples=examples(30), deadline=None)
def test_any_names_and_any_mask(names, legal, temperature, seed):
    """Results are legal, log-probs are exact and equal for sampler, learner and reference, and sum to one."""
    choices = make_choices(names, END)
    closed = lists(choices)
    seeds = ((seed + np.arange(B)) % 2**32).astype(np.uint32)
    mask, temperatures = np.tile(legal, (B, 1)), np.full((B,), temperature, np.float32)
    result = jax.device_get(sampled(PARAMS, choices, mask, temperatures, seeds))
    action = result.action
    assert np.array(legal)[action].all()
    logps, entropy = jax.device_get(learnt(PARAMS, choices, mask, action, temperatures))
    np.testing.assert_allclose(result.logps, logps, atol=1e-4)
    for i, a in enumerate(action[:4].tolist()):
        n = len(closed[a])
        assert result.lengths[i] == n
        assert result.tokens[i].tolist() == [*closed[a], *[0] * (choices.width - n)]
        np.testing.assert_allclose(result.logps[i, :n], by_hand(closed, legal, a, temperature), atol=1e-4)
        assert not np.any(result.logps[i, n:]) and not np.any(entropy[i, n:])
        assert result.cache.lengths[i] == 5 + n - 1, "all tokens of the answer but the last are read"
    everyone = np.arange(B) % 5
    logps, _ = learnt(PARAMS, choices, mask, everyone, temperatures)
    assert not np.isnan(logps).any()
    total = np.exp(np.asarray(logps).sum(axis=1)[:5])
    np.testing.assert_allclose(total[np.array(legal)].sum(), 1.0, atol=1e-5)
    assert not np.any(total[~np.array(legal)])


@pytest.mark.nightly
def test_the_only_legal_name_is_certain():
    """Its tokens are forced: log-probability 0 and entropy 0 at any temperature."""
    choices = make_choices([(1, 2, 3), (1, 2, 4), (5,)])
    legal = np.tile([False, True, False], (B, 1))
    temperatures = np.linspace(0, 3, B, dtype=np.float32)
    result = sampled(PARAMS, choices, legal, temperatures, np.arange(B, dtype=np.uint32))
    assert set(result.action.tolist()) == {1} and not np.any(result.logps)
    logps, entropy = learnt(PARAMS, choices, legal, result.action, np.ones((B,), np.float32))
    assert not np.any(logps) and not np.any(entropy)


def test_shared_tokens_are_forced_and_the_fork_is_not():
    choices = make_choices([(1, 2, 3), (1, 2, 4), (1, 2, 5)])
    result = sampled(PARAMS, choices, np.ones((B, 3), bool), np.ones((B,), np.float32), np.arange(B, dtype=np.uint32))
    assert not np.any(result.logps[:, :2]) and np.all(np.asarray(result.logps[:, 2]) < 0)
    assert set(result.action.tolist()) == {0, 1, 2}


@pytest.mark.nightly_for("1.0")
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_actions_follow_the_distribution_of_their_names(temperature):
    names = [(1,), (1, 2), (1, 2, 3), (4, 5), (6,)]
    choices, n = make_choices(names, END), 4096
    legal = [True, True, True, False, True]
    temperatures = np.full((n,), temperature, np.float32)
    result = sampled(PARAMS, choices, np.tile(legal, (n, 1)), temperatures, np.arange(n, dtype=np.uint32))
    counts = np.bincount(result.action, minlength=5)
    probs = [np.exp(sum(by_hand(lists(choices), legal, a, temperature))) if legal[a] else 0.0 for a in range(5)]
    assert counts[3] == 0
    assert goodness(np.delete(counts, 3), np.delete(probs, 3)) > 0.01
    wrong = [np.exp(sum(by_hand(lists(choices), legal, a, 3 * temperature))) if legal[a] else 0.0 for a in range(5)]
    assert goodness(np.delete(counts, 3), np.delete(wrong, 3)) < 1e-6


def test_temperature_zero_takes_the_most_likely_token_at_each_fork():
    names = [(1,), (1, 2), (1, 2, 3), (4, 5), (6,)]
    choices = make_choices(names, END)
    result = sampled(PARAMS, choices, np.ones((B, 5), bool), np.zeros((B,), np.float32), np.arange(B, dtype=np.uint32))
    assert len(set(result.action.tolist())) == 1
    closed, alive, state = lists(choices), lists(choices), np.asarray(PARAMS["start"])
    for step in range(choices.width):
        allowed = sorted({n[step] for n in alive if len(n) > step})
        if not allowed:
            break
        best = max(allowed, key=lambda t: state @ np.asarray(PARAMS["head"])[:, t])
        alive = [n for n in alive if n[step] == best]
        state = np.tanh(state @ np.asarray(PARAMS["A"]) + np.asarray(PARAMS["embed"])[best])
    assert closed[int(result.action[0])] == alive[0]


def test_a_row_does_not_depend_on_its_neighbours_or_its_slot():
    choices = make_choices([(1,), (1, 2), (1, 2, 3), (4, 5), (6,)], END)
    rng = np.random.default_rng(0)
    legal = rng.random((B, 5)) < 0.6
    legal[:, 0] |= ~legal.any(axis=1)
    temperatures, seeds = rng.random(B).astype(np.float32), np.arange(B, dtype=np.uint32)
    result = sampled(PARAMS, choices, legal, temperatures, seeds)
    order = rng.permutation(B)
    other = sampled(PARAMS, choices, legal[order], temperatures[order], seeds[order])
    np.testing.assert_array_equal(other.tokens, np.asarray(result.tokens)[order])
    np.testing.assert_allclose(other.logps, np.asarray(result.logps)[order], atol=1e-6)


def test_the_learners_gradient_is_finite_and_right():
    """Against finite differences, with names of different lengths and forced tokens."""
    choices = make_choices([(1,), (1, 2), (1, 2, 3), (4, 5), (6,)], END)
    rng = np.random.default_rng(1)
    legal = rng.random((B, 5)) < 0.5
    action = np.arange(B) % 5
    legal[np.arange(B), action] = True
    legal[-1] = False  # padding
    temperatures = np.full((B,), 0.8, np.float32)

    @quick_jit
    def loss(params):
        logps, entropy = train_state(params, choices, legal, action, temperatures)
        return jnp.sum(logps * jnp.linspace(-1, 1, B)[:, None]) + 0.3 * jnp.sum(entropy)

    gradient = quick_jit(jax.grad(loss.__wrapped__))(PARAMS)
    assert all(np.isfinite(g).all() and np.any(g) for g in jax.tree.leaves(gradient))
    for name in ("head", "start", "A"):
        nudge = rng.standard_normal(PARAMS[name].shape).astype(np.float32)
        shifted = [loss(PARAMS | {name: np.asarray(PARAMS[name]) + s * np.float32(1e-2) * nudge}) for s in (1, -1)]
        slope = (shifted[0] - shifted[1]) / 2e-2
        np.testing.assert_allclose(np.sum(gradient[name] * nudge), slope, rtol=2e-2, atol=2e-2)


def test_entropy_is_that_of_the_allowed_tokens():
    choices = make_choices([(1,), (2,), (3,)])
    legal = np.tile([True, False, True], (B, 1))
    _, entropy = learnt(PARAMS, choices, legal, np.zeros(B, np.int32), np.ones(B, np.float32))
    logp = log_softmax(np.asarray(PARAMS["start"] @ PARAMS["head"])[[1, 3]])
    np.testing.assert_allclose(entropy[:, 0], -np.sum(np.exp(logp) * logp), atol=1e-5)


def test_one_token_names_need_no_cache():
    choices = make_choices([(1,), (2,), (3,)])
    hidden = jnp.broadcast_to(PARAMS["start"], (B, D))
    args = (Toy(), PARAMS, hidden, jnp.zeros(B, jnp.int32))
    rest = (jnp.ones((B, 3), bool), jnp.ones(B), row_keys(np.arange(B, dtype=np.uint32)))
    result = quick_jit(functools.partial(choose, *args))(choices, *rest)
    assert result.cache is None and set(result.action.tolist()) == {0, 1, 2}
    with pytest.raises(ValueError, match="the longest action name has 2 tokens"):
        choose(*args, make_choices([(1, 2), (3,)]), *rest)


def test_a_nan_shows_in_the_log_probability():
    choices = make_choices([(1, 2), (3, 4)])
    poisoned = PARAMS | {"head": PARAMS["head"].at[0, 3].set(jnp.nan)}
    args = (choices, np.ones((B, 2), bool), np.ones(B, np.float32), np.arange(B, dtype=np.uint32))
    assert np.isfinite(sampled(PARAMS, *args).logps).all()
    assert not np.isfinite(sampled(poisoned, *args).logps[:, 0]).any()


def test_what_is_chosen_is_legal_though_weights_are_not_finite():
    choices = make_choices([(1,), (2,), (3,)])
    legal = np.tile([False, True, False], (B, 1))
    args = (choices, legal, np.ones(B, np.float32), np.arange(B, dtype=np.uint32))
    poisoned = PARAMS | {"head": jnp.full_like(PARAMS["head"], jnp.nan)}
    assert np.asarray(legal)[np.arange(B), np.asarray(sampled(poisoned, *args).action)].all()


# Names


def test_a_name_that_begins_another_is_closed():
    choices = make_choices([(1,), (1, 2), (3,)], end_id=END)
    assert choices.ids.tolist() == [[1, END], [1, 2], [3, -1]]
    assert choices.lengths.tolist() == [2, 2, 1]
    assert choices.same.tolist() == [[0, 0], [0, 1], [2, 2]]
    assert make_choices([(1, 2), (3,)], end_id=END).ids.tolist() == [[1, 2], [3, -1]], "and no other"


@pytest.mark.parametrize(
    ("names", "end_id", "message"),
    [
        ([], None, "there are 0 action names"),
        ([(1,), ()], None, "there are 2 action names, 1 of them empty"),
        ([(1, 2), (3,), (1, 2)], None, r"two actions have the tokens \[1, 2\]"),
        ([(1,), (1, 2)], None, r"the name with tokens \[1\] is a prefix of another; pass an end_id"),
        ([(1,), (1, 2), (1, END)], END, r"the name with tokens \[1, 11\] is a prefix of another in spite of end_id 11"),
        ([(1,), (1, END, 2)], END, r"the name with tokens \[1, 11\] is a prefix of another in spite of end_id 11"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(names, end_id, message):
    with pytest.raises(ValueError, match=message):
        make_choices(names, end_id)


def test_choices_travel_through_jit():
    assert jax.jit(lambda c: c.ids.sum() + c.width)(choice.make_choices([(1,), (2,)])) == 4
