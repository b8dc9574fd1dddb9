"""Requests to the batcher in any order, in waves of any size: each gets what it would get alone."""

import random

import pytest

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.settings import Sampling
from tests.faults import fuzz
from tests.marl_jax.sampling.test_batcher import SLOTS, answer_all, apart, check_same
from tests.marl_jax.tiny_engine import make_engine, random_prompts

pytestmark = [pytest.mark.skipif(not fuzz.SOAK, reason="takes minutes: make soak"), pytest.mark.nightly]


def test_orders_and_waves_change_nothing(seen):
    engine, rng, answered = make_engine(with_adapters=True), random.Random(fuzz.SOAK), 0
    prompts = random_prompts([rng.randint(1, 20) for _ in range(40)], seed=fuzz.SOAK)
    requests = [
        (prompt, Sampling(temperature=rng.choice((0.0, 0.7, 1.0)), max_new_tokens=rng.randint(1, 20), seed=i), i % 3)
        for i, prompt in enumerate(prompts)
    ]
    expected = [answer for i in range(0, 40, 8) for answer in apart(engine, requests[i : i + 8])]
    for _ in range(25):
        order = rng.sample(range(40), 40)
        batcher = Batcher(engine, rows=rng.choice((2, 4)), max_length=SLOTS, chunk=rng.choice((3, 4)))
        while order:
            wave, order = order[: (size := rng.randint(1, 15))], order[size:]
            check_same(answer_all(batcher, [requests[i] for i in wave]), [expected[i] for i in wave])
            answered += len(wave)
    seen("requests to the batcher in random orders and waves", "none different", requests=answered, orders=25)
