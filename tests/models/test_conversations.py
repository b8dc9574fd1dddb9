"""Rows of conversations with branches: who sees whom, and that loss and gradients are those of separate prompts."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import attention, lora
from models.layouts import Conversations
from models.model import build
from tests.conftest import examples, nightly_cases
from tests.models.tiny_models import (
    CONFIGS,
    FAMILIES,
    largest,
    largest_difference,
    make,
    quick_jit,
    random_params,
    random_tokens,
)  # fmt: skip

pytestmark = pytest.mark.long

F32 = jnp.float32
PREFIX = 5
# Conversations of the two rows: tokens after the prefix, and the branches, each (tokens of the trunk it sees, size).
ROWS = [[(11, [(4, 3), (4, 1), (7, 2)]), (6, [])], [(5, [(5, 4)]), (3, [(1, 2), (3, 2)]), (4, [])]]
WIDTH = 24


@dataclasses.dataclass
class Sample:
    """One answer: the conversation it closes, from the prefix on, and where its tokens lie in a row."""

    tokens: np.ndarray  # [n], all that it sees and itself
    size: int
    row: int
    places: np.ndarray  # [size]
    before: int  # place of the token that predicts its first


def lay_out(start: int):
    """(tokens [B, T], lengths, Conversations, samples) of `ROWS` after a prefix of `start` tokens.

    Branches stand between the conversations; row 1 has its branches in front of their trunk, which must not matter.
    """
    prefix, rng, samples = random_tokens(1, PREFIX, seed=9)[0][:start], np.random.default_rng(3), []
    fields = {name: np.full((len(ROWS), WIDTH), -1, np.int32) for name in ("segment", "branch")}
    fields |= {name: np.zeros((len(ROWS), WIDTH), np.int32) for name in ("tokens", "positions", "context_len")}
    lengths = np.zeros(len(ROWS), np.int32)
    for b, row in enumerate(ROWS):
        place = n_branches = 0
        for segment, (size, branches) in enumerate(row):
            trunk = rng.integers(0, 64, size)
            head = place + (sum(n for _, n in branches) if b == 1 else 0)
            leaves = head + size if b == 0 else place

            def put(at, tokens, first, segment=segment, b=b, **more):
                span = slice(at, at + len(tokens))
                values = dict(tokens=tokens, positions=start + first + np.arange(len(tokens)), segment=segment, **more)
                for name, value in values.items():
                    fields[name][b, span] = value

            put(head, trunk, 0)
            whole = np.concatenate([prefix, trunk])
            samples.append(Sample(whole, 2, b, head + size - 2 + np.arange(2), head + size - 3))
            for context_len, n in branches:
                answer = rng.integers(0, 64, n)
                put(leaves, answer, context_len, branch=n_branches, context_len=start + context_len)
                seen = np.concatenate([prefix, trunk[:context_len], answer])
                samples.append(Sample(seen, n, b, leaves + np.arange(n), head + context_len - 1))
                n_branches, leaves = n_branches + 1, leaves + n
            place += size + sum(n for _, n in branches)
        lengths[b] = place
    tokens = fields.pop("tokens")
    return tokens, lengths, Conversations(**fields), samples


def weighted(samples):
    """float32 weights of the completion tokens, concatenated."""
    return np.random.default_rng(2).standard_normal(sum(s.size for s in samples)).astype(np.float32)


def token_logps(model, params, hidden, targets):
    logps = jax.nn.log_softmax(model.logits(params["model"], hidden))
    return jnp.take_along_axis(logps, targets[:, None], axis=-1)[:, 0]


def forward(model, params, tokens, ids, **kwargs):
    adapters = None
    if "adapters" in params:
        adapters = lora.Lora(params["adapters"], lora.scales(2, 3, 6.0), jnp.asarray(ids))
    return model.forward(params["model"], tokens, adapters=adapters, dtype=F32, **kwargs)[0]


def read_prefix(model, params):
    """The prefix, with adapters once for each."""
    tokens = random_tokens(1, PREFIX, seed=9)
    if "adapters" not in params:
        return model.read_prefix(params["model"], tokens, dtype=F32)
    adapters = lora.Lora(params["adapters"], lora.scales(2, 3, 6.0), jnp.arange(2))
    return model.read_prefix(params["model"], np.repeat(tokens, 2, axis=0), adapters=adapters, dtype=F32)


def together(model, start, params):
    """The loss of rows of conversations; row b uses adapter b."""
    tokens, lengths, layout, samples = lay_out(start)
    prefix = read_prefix(model, params) if start else None
    hidden = forward(model, params, tokens, [0, 1], lengths=lengths, layout=layout, prefix=prefix)
    flat = np.concatenate([s.row * WIDTH + np.append(s.before, s.places[:-1]) for s in samples])
    targets = np.concatenate([tokens[s.row, s.places] for s in samples])
    return jnp.sum(token_logps(model, params, hidden.reshape(-1, hidden.shape[-1])[flat], targets) * weighted(samples))


def apart(model, start, params):
    """The same loss from one padded row for each answer, prefix included."""
    samples = lay_out(start)[3]
    width = max(len(s.tokens) for s in samples)
    rows = np.stack([np.pad(s.tokens, (0, width - len(s.tokens))) for s in samples]).astype(np.int32)
    hidden = forward(model, params, rows, [s.row for s in samples])
    flat = np.concatenate([i * width + len(s.tokens) - s.size - 1 + np.arange(s.size) for i, s in enumerate(samples)])
    targets = np.concatenate([s.tokens[-s.size :] for s in samples]).astype(np.int32)
    return jnp.sum(token_logps(model, params, hidden.reshape(-1, hidden.shape[-1])[flat], targets) * weighted(samples))


def with_adapters(model, params):
    """The parameters and two random adapters for every projection."""
    targets = tuple(t for t in lora.TARGETS if not (model.cfg.family == "gpt2" and t == "gate"))
    shapes = jax.eval_shape(lambda: lora.init(model.cfg, jax.random.key(0), 2, 3, targets))
    rng = np.random.default_rng(5)
    adapters = jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), F32), shapes)
    return {"model": params, "adapters": adapters}


def check_same(model, params, start):
    (loss, grads), (other, others) = (
        quick_jit(jax.value_and_grad(functools.partial(f, model, start)))(params) for f in (apart, together)
    )
    np.testing.assert_allclose(other, loss, atol=1e-5 * max(1, abs(loss)))
    assert largest_difference(others, grads) < 1e-5 * largest(grads)


@pytest.mark.nightly_for("llama", "llama3", "phi3", "mistral", "qwen2")
@pytest.mark.parametrize("family", nightly_cases(FAMILIES, "llama3", "phi3", "qwen3"))
def test_loss_and_gradients_equal_those_of_separate_prompts(family):
    """Every family, two of them with a window shorter than a conversation."""
    model, params = make(family)
    check_same(model, {"model": params}, start=0)


@pytest.mark.nightly
@pytest.mark.parametrize("family", nightly_cases(["llama3", "phi3", "qwen3", "gpt2"], "llama3", "phi3"))
def test_behind_a_prefix_with_an_adapter_for_each_row(family):
    """Scaled and learnt positions, a window, normalised queries and keys: what a prefix could shift."""
    model, params = make(family)
    check_same(model, with_adapters(model, params), start=PREFIX)


def test_behind_one_prefix_for_all_rows():
    model, params = make("mistral")
    check_same(model, {"model": params}, start=PREFIX)


def seen_by_rule(layout, window, lengths):
    """The mask from the rule as it is written in the docs, pair by pair."""
    positions, segment, branch, context_len = (
        None if x is None else np.asarray(x)
        for x in (layout.positions, layout.segment, layout.branch, layout.context_len)
    )
    batch, time = positions.shape
    out = np.zeros((batch, time, time), bool)
    for b, i, j in np.ndindex(out.shape):
        same = segment is None or segment[b, i] == segment[b, j]
        near = positions[b, j] <= positions[b, i] and (window is None or positions[b, i] - positions[b, j] < window)
        if branch is None:
            line = True
        elif branch[b, j] == -1:
            line = branch[b, i] == -1 or positions[b, j] < context_len[b, i]
        else:
            line = branch[b, i] == branch[b, j]
        out[b, i, j] = (same and near and line and j < lengths[b]) or i == j
    return out


@settings(max_examples=examples(50), deadline=None)
@given(st.data())
def test_the_mask_is_the_rule(data):
    batch, time = 2, 6
    ints = lambda low, high: np.array(  # noqa: E731
        data.draw(st.lists(st.integers(low, high), min_size=batch * time, max_size=batch * time)), np.int32
    ).reshape(batch, time)
    segment = data.draw(st.sampled_from([None, ints(-1, 1)]))
    branch, context_len = data.draw(st.sampled_from([(None, None), (ints(-1, 2), ints(0, 5))]))
    layout = Conversations(ints(0, 5), segment, branch, context_len)
    window, lengths = data.draw(st.sampled_from([None, 2])), np.array([time, 4])
    np.testing.assert_array_equal(layout.mask(lengths, window), seen_by_rule(layout, window, lengths))


def test_branches_without_what_they_see_are_refused():
    with pytest.raises(ValueError, match="both branch and context_len, or neither"):
        Conversations(np.zeros((1, 2), np.int32), branch=np.zeros((1, 2), np.int32))


def test_one_conversation_a_row_is_causal_attention_without_a_mask():
    model, params = make("mistral")
    tokens, positions = random_tokens(2, 12), np.tile(np.arange(12), (2, 1))
    run = quick_jit(lambda **layout: model.forward(params, tokens, dtype=F32, **layout)[0])
    np.testing.assert_array_equal(run(layout=Conversations(positions)), run())
    one = jnp.zeros_like(positions)
    np.testing.assert_allclose(run(layout=Conversations(positions, one)), run(), atol=1e-6)


def test_padding_is_seen_by_nobody():
    """Padding at position 0 of a row without segments looks like the first token; the row's length says it is not."""
    model, params = make("llama")
    tokens, lengths = random_tokens(1, 8), np.array([6])
    positions = np.array([[0, 1, 2, 3, 2, 3, 0, 0]])
    branch = np.array([[-1, -1, -1, -1, 0, 0, -1, -1]])
    layout = Conversations(positions, None, branch, np.full((1, 8), 2))
    run = quick_jit(lambda tokens: model.forward(params, tokens, lengths=lengths, layout=layout, dtype=F32)[0][:, :6])
    other = tokens.copy()
    other[:, 6:] = (other[:, 6:] + 1) % 64
    np.testing.assert_array_equal(run(tokens), run(other))


@pytest.mark.parametrize("start", [0, PREFIX])
def test_for_cudnn_the_mask_is_one_bias_for_all_heads_and_layers(monkeypatch, start):
    """cuDNN is replaced by XLA here: what it is given counts, and that the result is the same."""
    model = build(dataclasses.replace(CONFIGS["mistral"], n_layers=3))
    params = {"model": random_params(model)}
    expected = quick_jit(functools.partial(together, model, start))(params)
    plain, biases = jax.nn.dot_product_attention, []

    def recorded(q, k, v, *, implementation, **kwargs):
        if implementation == "cudnn" and "bias" in kwargs:
            biases.append(kwargs["bias"].shape)
            assert q.shape[1] % 2 == k.shape[1] % 2 == 0, "cuDNN's backward pass takes even lengths only"
        return plain(q, k, v, implementation="xla", **kwargs)

    monkeypatch.setattr(jax.nn, "dot_product_attention", recorded)
    monkeypatch.setattr(attention, "fused", lambda kernel, dtype: kernel != "xla")
    with_cudnn = Patched(model)
    np.testing.assert_allclose(quick_jit(functools.partial(together, with_cudnn, start))(params), expected, atol=1e-4)
    assert set(biases) == {(2, 1, WIDTH, WIDTH + start + start % 2)}


class Patched:
    """A model that computes as on a GPU."""

    def __init__(self, model):
        self.model, self.cfg, self.logits, self.read_prefix = model, model.cfg, model.logits, model.read_prefix

    def forward(self, *args, **kwargs):
        return self.model.forward(*args, kernel="cudnn", **kwargs)
