"""The batcher over pages laid out for TPUs, with JAX's kernel computed by XLA."""

import jax
import pytest

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.settings import Sampling
from models import tpu_attention
from tests.marl_jax.sampling.test_batcher import answer_all, check_same
from tests.marl_jax.tiny_engine import make_engine, random_prompts
from tests.models.stand_ins import ragged_paged_attention

LENGTHS = [5, 33, 1, 20, 40, 3]
PAGES = dict(rows=4, max_length=48, chunk=4, page_size=4, cache_tokens=4 * 48, fixed_shapes=True)


@pytest.fixture(scope="module")
def requests():
    return [
        (prompt, Sampling(temperature=i % 2, max_new_tokens=3 + i, seed=i))
        for i, prompt in enumerate(random_prompts(LENGTHS))
    ]


@pytest.fixture(scope="module")
def expected(requests):
    return answer_all(Batcher(make_engine(), **PAGES), requests)


@pytest.mark.nightly_for("False")
@pytest.mark.parametrize("on_mesh", [False, True])
def test_pages_for_tpus_give_the_same_answers(requests, expected, on_mesh, monkeypatch):
    monkeypatch.setattr(tpu_attention, "platform", lambda: "tpu")
    monkeypatch.setattr(tpu_attention.rpa, "ragged_paged_attention", ragged_paged_attention)
    mesh = None
    if on_mesh:
        mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    batcher = Batcher(make_engine(mesh=mesh, own_programs=True), **PAGES)
    (pages,) = batcher._rows.pages[0]
    assert pages.shape == (48, 4, 4, 128)
    if on_mesh:
        assert pages.sharding.shard_shape(pages.shape) == (12, 4, 2, 128), "a device has its heads' keys and values"
    check_same(answer_all(batcher, requests), expected)
