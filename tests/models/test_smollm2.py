"""The real SmolLM2-135M: greedy continuations, token for token those of transformers on the same weights."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import registry
from models.model import build
from models.weights import load
from tests.conftest import published
from tests.models.tiny_models import unstack

GOLDEN = json.loads((Path(__file__).parent / "golden" / "smollm2.json").read_text())
STEPS = 32
CLOSE = 2e-3  # largest difference of a log-prob, natural units


@pytest.fixture(scope="module")
def smollm2():
    cfg, params = load(published("smollm2-135m"))
    return build(cfg), params


@pytest.fixture(scope="module")
def batch():
    """Prompts and their continuations as right-padded rows: (tokens [5, T], prompt lengths [5])."""
    rows = [row["prompt"] + row["greedy"] for row in GOLDEN]
    tokens = np.zeros((len(rows), max(map(len, rows))), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)] = row
    return tokens, np.array([len(row["prompt"]) for row in GOLDEN])


def test_the_file_has_the_registered_shape(smollm2):
    model, params = smollm2
    assert model.cfg == registry.get("smollm2-135m").config
    assert sum(x.size for x in jax.tree.leaves(params)) == 134_515_008


@pytest.mark.nightly
def test_the_full_forward_pass_predicts_every_token(smollm2, batch):
    model, params = smollm2
    tokens, starts = batch

    @jax.jit
    def score(params, tokens, lengths, at):
        hidden, _ = model.forward(params, tokens, lengths=lengths, dtype=jnp.float32)
        picked = jnp.take_along_axis(hidden, at[:, :, None], axis=1)  # the positions that predict the continuation
        return jax.nn.log_softmax(model.logits(params, picked))

    at = starts[:, None] - 1 + np.arange(STEPS)
    logprobs = np.asarray(score(params, tokens, starts + STEPS, at))
    greedy = np.array([row["greedy"] for row in GOLDEN])
    assert np.array_equal(logprobs.argmax(-1), greedy)
    wanted = np.array([row["logprobs"] for row in GOLDEN])
    assert np.abs(np.take_along_axis(logprobs, greedy[:, :, None], -1)[:, :, 0] - wanted).max() < CLOSE


@pytest.mark.nightly
def test_prefill_and_decode_with_the_cache_write_the_same_tokens(smollm2, batch):
    """All five prompts in one batch, unequal lengths, 32 steps in a single compiled loop."""
    model, params = smollm2
    tokens, starts = batch
    width = int(starts.max())
    slots = width + STEPS

    @jax.jit
    def generate(params, ready, prompts, lengths):
        hidden, cache = model.forward(params, prompts, lengths=lengths, new_cache=slots, dtype=jnp.float32)
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)
        first = jnp.argmax(model.logits(params, last), -1)

        def step(carry, _):
            token, cache = carry
            hidden, cache = model.forward(ready, token, cache=cache, dtype=jnp.float32)
            return (jnp.argmax(model.logits(ready, hidden), -1), cache), token[:, 0]

        _, written = jax.lax.scan(step, (first, cache), length=STEPS)
        return written.T

    prompts = np.where(np.arange(width) < starts[:, None], tokens[:, :width], 0)
    written = np.asarray(generate(params, unstack(model, params), prompts, starts.astype(np.int32)))
    for row, mine in zip(GOLDEN, written, strict=True):
        assert mine.tolist() == row["greedy"], row["text"]
