"""Media in a sequence: their places, mRoPE positions, and the same results with and without a cache, layout or mesh."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models import cache as kv
from models.config import VisionConfig
from models.layouts import Packed
from models.media import Media, check_counts, index_of, mrope_positions
from models.model import build
from tests.models.tiny_models import CONFIGS, forward, largest_difference, random_params, random_tokens, unstack

IMAGE = 63
VISION = VisionConfig(2, 16, 2, 24, image_id=IMAGE, patch=2, window=8, full_layers=(1,))
MROPE = {"llama": (1, 2, 1), "qwen2": (2, 1, 1), "qwen3": (2, 2, 2)}


def model_of(family: str, **change):
    """A tiny model with a vision tower and, for the rotary families, mRoPE."""
    cfg = dataclasses.replace(CONFIGS[family], vision=VISION, mrope_sections=MROPE.get(family), **change)
    model = build(cfg)
    return model, random_params(model)


def prompt_with(*images: tuple[int, int], seed: int = 0, after: int = 3) -> np.ndarray:
    """int32 [T]: text, then each image and three tokens of text."""
    rng = np.random.default_rng(seed)
    text = lambda n: rng.integers(0, IMAGE, n)  # noqa: E731
    parts = [text(2)]
    for rows, columns in images:
        parts += [np.full(rows * columns, IMAGE), text(after)]
    return np.concatenate(parts).astype(np.int32)


def embeddings_for(rows: int, m: int, d: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((rows, m, d)).astype(np.float32)


def slow_positions(tokens, grids) -> np.ndarray:
    """[3, T], token by token."""
    out, place, i, grids = [], 0, 0, list(grids)
    while i < len(tokens):
        if tokens[i] != IMAGE:
            out.append((place, place, place))
            place, i = place + 1, i + 1
            continue
        rows, columns = grids.pop(0)
        out += [(place, place + r, place + c) for r in range(rows) for c in range(columns)]
        place, i = place + max(rows, columns), i + rows * columns
    return np.asarray(out).T


@pytest.mark.quick
@pytest.mark.parametrize("grids", [[(2, 3)], [(1, 5), (3, 3)], [(4, 1), (2, 2), (1, 1)], []])
def test_positions_follow_the_definition_on_the_host_and_in_jit(grids):
    tokens = prompt_with(*grids)[None]
    table = np.asarray([[*grids, (0, 0)]], np.int32).reshape(1, -1, 2)
    expected = slow_positions(tokens[0], grids)
    assert mrope_positions(tokens, IMAGE, table)[:, 0].tolist() == expected.tolist()
    inside = jax.jit(lambda t, g: mrope_positions(t, IMAGE, g, jnp.asarray([7])))(tokens, table)
    assert (np.asarray(inside)[:, 0] == expected + 7).all()


@pytest.mark.quick
def test_adjacent_images_and_a_common_grid_for_several_rows():
    row = np.asarray([1, *[IMAGE] * 8, 2], np.int32)  # two images of 2 × 2 without text between them
    both = mrope_positions(np.stack([row, row]), IMAGE, np.asarray([[(2, 2), (2, 2)]]))
    assert both[:, 1].tolist() == slow_positions(row, [(2, 2), (2, 2)]).tolist()


def test_text_is_equal_bit_for_bit_with_one_or_three_positions():
    model, params = model_of("qwen2")
    tokens = random_tokens(2, 9)
    tokens[tokens == IMAGE] = 0
    plain, _ = forward(model, params, tokens)
    positions = mrope_positions(tokens, IMAGE, np.zeros((2, 1, 2), np.int32))
    assert np.array_equal(forward(model, params, tokens, positions=positions)[0], plain)
    text_model = build(dataclasses.replace(model.cfg, vision=None, mrope_sections=None))
    text_params = {name: leaf for name, leaf in params.items() if name != "vision"}
    assert np.array_equal(forward(text_model, text_params, tokens)[0], plain)


@pytest.mark.nightly_for("llama", "gpt2")
@pytest.mark.parametrize("family", ["qwen2", "llama", "gpt2"])
def test_cached_equals_uncached_over_several_turns(family):
    """Images in the prompt and in a later turn, then single tokens without explicit positions."""
    model, params = model_of(family)
    grids = np.asarray([[(2, 3), (3, 1)]], np.int32)
    tokens = np.stack([prompt_with((2, 3), (3, 1), seed=s, after=6) for s in range(2)])
    embeddings = embeddings_for(2, 9, model.cfg.d_model)
    index = np.asarray(index_of(tokens, IMAGE))
    assert index.max() == 8
    positions = mrope_positions(tokens, IMAGE, grids) if model.cfg.mrope_sections else None
    whole, _ = forward(model, params, tokens, positions=positions, media=Media(embeddings, index))
    fast, pieces, cache = unstack(model, params), [], None
    for start, stop in ((0, 11), (11, 20)):
        own = dict(media=Media(embeddings, index[:, start:stop]))
        if positions is not None:
            own["positions"] = positions[:, :, start:stop]
        own |= dict(new_cache=32) if cache is None else dict(cache=cache)
        hidden, cache = forward(model, fast, tokens[:, start:stop], **own)
        pieces.append(hidden)
    assert (cache.offset is None) == (positions is None)
    cache = kv.take(cache, np.asarray([1, 0]))
    for at in range(20, tokens.shape[1]):
        hidden, cache = forward(model, fast, tokens[::-1, at : at + 1], cache=cache)
        pieces.append(hidden[::-1])
    assert largest_difference(np.concatenate(pieces, axis=1), whole) < 2e-5


def test_rows_of_a_larger_cache_keep_their_own_offsets():
    model, params = model_of("qwen2")
    fast, tokens = unstack(model, params), prompt_with((3, 3))[None]
    given = dict(
        positions=mrope_positions(tokens, IMAGE, np.asarray([[(3, 3)]])),
        media=Media(embeddings_for(1, 9, model.cfg.d_model), index_of(tokens, IMAGE)),
    )
    alone, own = forward(model, fast, tokens, new_cache=24, **given)
    cache = kv.empty(model.cfg, 3, 24, jnp.float32)
    hidden, cache = forward(model, fast, tokens, cache=cache, rows=np.asarray([1]), **given)
    assert largest_difference(hidden, alone) < 1e-5
    assert cache.offset.tolist() == [0, int(own.offset[0]), 0] and int(own.offset[0]) == 3 - 9
    next_token = np.asarray([[5], [5], [5]], np.int32)
    idle = np.asarray([0, 1, 0], np.int32)
    hidden, after = forward(model, fast, next_token, cache=cache, lengths=idle)
    expected, _ = forward(model, fast, next_token[:1], cache=own)
    assert largest_difference(hidden[1:2], expected) < 1e-5 and after.offset.tolist() == cache.offset.tolist()
    assert kv.restart(cache, np.asarray([False, True, False])).offset.tolist() == [0, 0, 0]


@pytest.mark.nightly
def test_packed_samples_equal_samples_in_rows():
    model, params = model_of("llama")
    rows = [prompt_with((2, 2), seed=1), prompt_with((1, 3), seed=2)]
    embeddings = embeddings_for(1, 7, model.cfg.d_model)
    tokens = np.concatenate(rows)[None]
    alone = [
        mrope_positions(row[None], IMAGE, np.asarray([[grid]]))
        for row, grid in zip(rows, ((2, 2), (1, 3)), strict=True)
    ]
    first = len(rows[0])
    layout = Packed(np.asarray([[0, first]]), np.asarray([[first, len(rows[1])]]), max(map(len, rows)))
    media = Media(embeddings, index_of(tokens, IMAGE))
    packed, _ = forward(model, params, tokens, positions=np.concatenate(alone, axis=2), layout=layout, media=media)
    for row, positions, own, part in (
        (rows[0], alone[0], embeddings[:, :4], packed[:, :first]),
        (rows[1], alone[1], embeddings[:, 4:], packed[:, first:]),
    ):
        hidden, _ = forward(model, params, row[None], positions=positions, media=Media(own, index_of(row[None], IMAGE)))
        assert largest_difference(hidden, part) < 1e-5


@pytest.mark.quick
def test_bad_media_are_refused():
    model, params = model_of("qwen2")
    tokens = prompt_with((2, 2))[None]
    index, embeddings = index_of(tokens, IMAGE), embeddings_for(1, 4, model.cfg.d_model)
    cases = [
        (dict(media=Media(embeddings, index[:, :-1])), "media.index has shape"),
        (dict(media=Media(embeddings[:, :, :-1], index)), "media.embeddings has shape"),
        (dict(media=Media(embeddings[:, :0], index)), "no embeddings"),
        (dict(positions=np.zeros((2, *tokens.shape), np.int32)), r"must have \(3, 1, 9\)"),
    ]
    for given, message in cases:
        with pytest.raises(ValueError, match=message):
            model.forward(params, tokens, **given)
    text = build(CONFIGS["qwen2"])
    with pytest.raises(ValueError, match="the model has no mRoPE"):
        text.forward(text.abstract(), tokens, positions=np.zeros((3, *tokens.shape), np.int32))
    with pytest.raises(ValueError, match="the tokens have 4 placeholders, but must have 5"):
        check_counts(tokens[0], IMAGE, 5)
