"""LoRA: rows that pick their own adapter, any subset of projections, merging, gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import lora
from tests.models.tiny_models import forward, largest_difference, make, quick_jit, random_tokens, unstack

pytestmark = pytest.mark.quick

ATOL = 2e-5  # float32: two orders of summing the same products
N, RANK = 3, 2
IDS = np.array([2, 0, 1, 2])
SCALE = np.array([0.0, 1.5, 0.5], np.float32)  # adapter 0 is "none"
TARGETS = {"qwen2": lora.TARGETS, "gpt2": tuple(t for t in lora.TARGETS if t != "gate")}


@functools.cache
def adapters(family: str, targets: tuple[str, ...]) -> dict:
    """Stacked adapters in which B is not zero either."""
    cfg, rng = make(family)[0].cfg, np.random.default_rng(7)
    draw = lambda *shape: jnp.asarray(0.3 * rng.standard_normal(shape), jnp.float32)  # noqa: E731
    sizes = {target: lora.sizes(cfg, target) for target in targets}
    return {t: {"a": draw(2, N, i, RANK), "b": draw(2, N, RANK, o)} for t, (i, o) in sizes.items()}


def applied(family, targets, tokens, ids):
    model, params = make(family)
    return forward(model, params, tokens, adapters=lora.Lora(adapters(family, targets), SCALE, ids))[0]


def merged(family, targets, tokens, index):
    model, params = make(family)
    return forward(model, lora.merge(params, adapters(family, targets), SCALE, index), tokens)[0]


@pytest.mark.nightly_for("qwen2")
@pytest.mark.parametrize("family", TARGETS)
def test_a_mixed_batch_equals_each_row_alone(family):
    tokens = random_tokens(4, 8)
    mixed = applied(family, TARGETS[family], tokens, IDS)
    for b, index in enumerate(IDS):
        alone = applied(family, TARGETS[family], tokens[b : b + 1], IDS[b : b + 1])
        np.testing.assert_allclose(mixed[b], alone[0], atol=ATOL, err_msg=f"row {b}, adapter {index}")


@pytest.mark.nightly_for("qwen2")
@pytest.mark.parametrize("family", TARGETS)
def test_merged_equals_applied_and_adapter_0_is_none(family):
    tokens = random_tokens(4, 8)
    mixed = applied(family, TARGETS[family], tokens, IDS)
    plain, _ = forward(*make(family), tokens)
    np.testing.assert_allclose(mixed[1], plain[1], atol=ATOL)
    for b, index in enumerate(IDS):
        alone = merged(family, TARGETS[family], tokens, int(index))
        np.testing.assert_allclose(mixed[b], alone[b], atol=ATOL)
        if index:
            assert largest_difference(alone[b], plain[b]) > 0.1, "an adapter must change something to be a test"


@pytest.mark.parametrize("targets", [("o",), ("k", "gate"), ("up", "v", "down")])
def test_any_subset_of_projections(targets):
    tokens = random_tokens(4, 8)
    mixed = applied("qwen2", targets, tokens, IDS)
    np.testing.assert_allclose(mixed[2], merged("qwen2", targets, tokens, 1)[2], atol=ATOL)


@pytest.mark.nightly_for("qwen2")
@pytest.mark.parametrize("family", TARGETS)
def test_decoding_with_adapters_equals_the_full_forward(family):
    """Unstacked and fused, with a cache: prefill, then steps of one token."""
    model, params = make(family)
    tokens = random_tokens(4, 8)
    flat = lora.unstack(adapters(family, TARGETS[family]), model.cfg.n_layers, jnp.float32)
    decoding = lora.Lora(flat, SCALE, IDS)
    params = unstack(model, params)
    hidden, cache = forward(model, params, tokens[:, :6], adapters=decoding, new_cache=8)
    pieces = [hidden]
    for t in (6, 7):
        hidden, cache = forward(model, params, tokens[:, t : t + 1], adapters=decoding, cache=cache)
        pieces.append(hidden)
    expected = applied(family, TARGETS[family], tokens, IDS)
    np.testing.assert_allclose(np.concatenate(pieces, axis=1), expected, atol=ATOL)


def test_gradients_reach_the_rows_own_adapter_only():
    model, params = make("qwen2")
    tokens = random_tokens(4, 8)
    stacked = adapters("qwen2", TARGETS["qwen2"])

    @quick_jit
    @jax.grad
    def gradient(stacked, row):
        hidden, _ = model.forward(params, tokens, adapters=lora.Lora(stacked, SCALE, IDS), dtype=jnp.float32)
        return jnp.sum(jnp.sin(hidden[row]))

    for row, own in enumerate(IDS):
        for target, ab in gradient(stacked, row).items():
            for name, grad in ab.items():
                for index in range(N):
                    norm = float(jnp.linalg.norm(grad[:, index]))
                    if index == own and SCALE[own]:
                        assert norm > 1e-3, f"row {row}: {target} {name} of its own adapter {index}"
                    else:
                        assert norm == 0, f"row {row}: {target} {name} of adapter {index}"


def test_fresh_adapters_change_nothing_and_can_learn():
    model, params = make("qwen2")
    tokens = random_tokens(4, 8)
    fresh = lora.init(model.cfg, jax.random.key(0), N, RANK, targets=("q", "down"))
    hidden, _ = forward(model, params, tokens, adapters=lora.Lora(fresh, SCALE, IDS))
    np.testing.assert_allclose(hidden, forward(model, params, tokens)[0], atol=1e-6)
    for target, ab in fresh.items():
        size_in, size_out = lora.sizes(model.cfg, target)
        assert ab["a"].shape == (2, N, size_in, RANK) and ab["b"].shape == (2, N, RANK, size_out)
        assert not np.any(ab["b"]) and 0.3 < np.std(ab["a"]) * np.sqrt(size_in) < 0.8
        assert {x: len(letters) for x, letters in lora.axes(fresh)[target].items()} == {"a": 4, "b": 4}


def test_scales():
    np.testing.assert_allclose(lora.scales(3, rank=8, alpha=16), [2, 2, 2])
    np.testing.assert_allclose(lora.scales(3, rank=8, alpha=4, none_first=True), [0, 0.5, 0.5])


def test_what_cannot_be_adapted_is_refused():
    cfg = make("gpt2")[0].cfg
    with pytest.raises(
        ValueError, match="LoRA target is 'gate', but for the family gpt2 must be one of: q, k, v, o, up, down"
    ):
        lora.init(cfg, jax.random.key(0), 1, 2, targets=("q", "gate"))
    with pytest.raises(ValueError, match="LoRA rank is 0, but must be >= 1"):
        lora.init(cfg, jax.random.key(0), 1, 0)
