"""Extreme values of every sampling field get a completion or status 400, over a real model."""

import itertools
import logging
import math

import jax.numpy as jnp
import pytest

from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.endpoint import Endpoint
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine
from tests.marl_jax.tiny_host import CONFIG, MAX_LENGTH, merging_tokenizer
from tests.marl_jax.tiny_serving import post
from tests.models.tiny_models import random_params

FLOATS = [
    0.0,
    -0.0,
    5e-324,
    1e-320,
    1e-46,
    1e-38,
    1e-7,
    1.0 - 2**-53,
    1.0,
    1.0 + 2**-52,
    2.0,
    99.9,
    3.4e38,
    1e39,
    1e308,
]
INTEGERS = [0, 1, -1, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, -(2**63), 10**30]
OTHERS = [None, True, False, "", "1", "nan", [], [1.0], {}]
NUMBERS = ("temperature", "top_p", "top_k", "repetition_penalty", "seed", "n", "max_tokens", "frequency_penalty",
           "presence_penalty", "logprobs", "top_logprobs")  # fmt: skip
DRAWN = ("temperature", "top_p", "repetition_penalty")


@pytest.fixture(scope="module")
def url():
    model = build(CONFIG)
    engine = QuickEngine(model, random_params(model, 0), dtype=jnp.float32, bucket=128, chunk=4)
    with BatcherThread(Batcher(engine, rows=8, max_length=MAX_LENGTH, chunk=4, tokenizer=merging_tokenizer())) as found:
        speaker = Speaker(found, merging_tokenizer(), Sampling(max_new_tokens=2), MAX_LENGTH)
        endpoint = Endpoint({"tiny": ServedModel.of("tiny", speaker, CONFIG.vocab_size)})
        with in_thread(endpoint.application()) as url:
            yield url


def ask(url, **fields):
    """Check that a request gets a completion with finite log-probs, or status 400; return the status."""
    body = {"model": "tiny", "prompt": [97, 98], "max_tokens": 2, "logprobs": 0, **fields}
    status, answer = post(url, "/v1/completions", body)
    assert status in (200, 400), (fields, answer)
    if status == 200 and "logprobs" not in fields:
        for choice in answer["choices"]:
            assert all(math.isfinite(p) and p <= 0 for p in choice["logprobs"]["token_logprobs"]), (fields, answer)
    return status


@pytest.mark.nightly
def test_one_extreme_field(url, caplog):
    with caplog.at_level(logging.WARNING):
        for name, value in itertools.product(NUMBERS, FLOATS + INTEGERS + OTHERS):
            ask(url, **{name: value})
    assert not caplog.records


def test_two_extreme_fields_together(url, caplog):
    statuses = set()
    with caplog.at_level(logging.WARNING):
        for one, two in itertools.combinations(DRAWN, 2):
            for value, other in itertools.product((1e-320, 1e-46, 1e-7, 0.01, 1.0, 2.0, 99.9), repeat=2):
                statuses.add(ask(url, **{one: value, two: other}, max_tokens=1))
    assert statuses == {200, 400} and not caplog.records


def test_a_tiny_top_p_or_temperature_is_greedy(url):
    def text(**fields):
        body = {"model": "tiny", "prompt": [97, 98], "max_tokens": 8, "seed": 3, **fields}
        return post(url, "/v1/completions", body)[1]["choices"][0]["text"]

    greedy = text(temperature=0)
    assert text(top_p=1e-320) == text(top_p=0) == text(temperature=1e-320) == greedy != text()
