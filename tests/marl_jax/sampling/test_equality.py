"""Small pages and one page per row give bit-equal results, for a model with a window and adapters.

With small pages, contexts are reused, evicted and prefilled again. A page as long as a row is a contiguous cache.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.settings import Sampling
from models import lora
from models.model import build
from tests.marl_jax.tiny_engine import QuickEngine
from tests.models.tiny_models import CONFIGS, random_params

LENGTH, ROWS = 128, 4
CONFIG = dataclasses.replace(CONFIGS["mistral"], max_positions=LENGTH, sliding_window=21)


def make_engine(dtype):
    model, rng = build(CONFIG), np.random.default_rng(5)
    tree = jax.eval_shape(lambda: lora.init(CONFIG, jax.random.key(5), 3, 4, lora.TARGETS))
    tree = jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), jnp.float32), tree)
    return QuickEngine(
        model, random_params(model), adapters=tree, lora_scale=lora.scales(3, 4, 8.0, none_first=True), dtype=dtype
    )


def turns(batcher, tokens):
    """Return all completions of three turns of conversations with common prefixes, with memory for `tokens`."""
    (part,) = batcher._rows.parts
    part.pool.take(part.pool.count - tokens // part.pool.size)
    rng = np.random.default_rng(2)
    stem = rng.integers(0, 64, 33).tolist()
    chats = [stem[: 33 - 8 * (i % 2)] + rng.integers(0, 64, 3 * i).tolist() for i in range(6)]
    answers = []
    for turn in range(3):
        numbers = [
            batcher.submit(chat, Sampling(max_new_tokens=5 + i, seed=10 * turn + i), i % 3, n=2)
            for i, chat in enumerate(chats)
        ]
        found = batcher.run()
        answers += [answer for number in numbers for answer in found[number]]
        for chat, number in zip(chats, numbers, strict=True):
            chat += found[number][0].tokens.tolist() + rng.integers(0, 64, 4).tolist()
    return answers


@pytest.mark.nightly
def test_small_pages_and_one_page_per_row_give_the_same_answers():
    """In bfloat16, where a difference in any sum shows first; `tests/models/test_pages.py` tests float32 too."""
    engine = make_engine(jnp.bfloat16)
    options = dict(rows=ROWS, max_length=LENGTH, chunk=8, fixed_shapes=True)
    contiguous = Batcher(engine, page_size=LENGTH, cache_tokens=2 * ROWS * LENGTH, **options)
    expected = turns(contiguous, 2 * ROWS * LENGTH)
    for tokens in (ROWS * LENGTH, LENGTH):
        paged = Batcher(engine, page_size=4, cache_tokens=ROWS * LENGTH, **options)
        for mine, theirs in zip(turns(paged, tokens), expected, strict=True):
            assert mine.tokens.tolist() == theirs.tokens.tolist()
            assert mine.logps.tobytes() == theirs.logps.tobytes()
        assert paged.usage.read < contiguous.usage.read and paged.usage.reused > contiguous.usage.reused
    assert len({tuple(a.tokens.tolist()) for a in expected}) > 30, "they are not all alike"
