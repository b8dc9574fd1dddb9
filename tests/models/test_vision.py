"""Qwen2.5-VL against transformers: tower, merger, mRoPE, logits and decoding, float32, to 1e-4.

The golden file comes from `golden/make_vision.py` and passes through the real loader. Where torch is installed, the
same comparison runs on freshly drawn models and images, and transformers reads what we export.
"""

import dataclasses
import functools
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from models.media import Media, mrope_positions
from models.model import Model, build
from models.weights import load
from tests.models.hf_folders import GOLDEN
from tests.models.tiny_models import forward, largest_difference, logits, quick_jit, unstack

TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A model as the loader read it, its inputs, and what transformers computed."""

    model: Model
    params: dict
    arrays: dict[str, np.ndarray]

    @property
    def rows(self) -> list[list[tuple[int, int]]]:
        """Grids of patches of the images of each row."""
        grids = iter(map(tuple, self.arrays["grids"].tolist()))
        return [[next(grids) for _ in range(n)] for n in self.arrays["images"]]

    @property
    def image_id(self) -> int:
        return self.model.cfg.vision.image_id

    def positions(self) -> np.ndarray:
        most = max(map(len, self.rows))
        grids = np.asarray([[*row, *[(0, 0)] * (most - len(row))] for row in self.rows]) // 2
        return mrope_positions(self.arrays["tokens"], self.image_id, grids)

    def media(self) -> Media:
        """All images as one padded batch, and the embedding of each token of each row."""
        images = [grid for row in self.rows for grid in row]
        most = max(r * c for r, c in images)
        ends = np.cumsum([r * c for r, c in images])
        parts = np.split(self.arrays["patches"].astype(np.float32), ends[:-1])
        patches = np.stack([np.pad(x, ((0, most - len(x)), (0, 0))) for x in parts])
        embeddings = np.asarray(encode(self.model, self.params["vision"], patches, self.model.vision.layout(images)))
        tokens, image = self.arrays["tokens"], 0
        whole, index = np.zeros((len(tokens), 0, 0)), np.full(tokens.shape, -1, np.int32)
        rows = []
        for b, row in enumerate(self.rows):
            own = []
            for rows_, columns in row:
                own.append(embeddings[image, : rows_ * columns // 4])
                image += 1
            rows.append(np.concatenate(own))
            here = tokens[b] == self.image_id
            index[b, here] = np.arange(here.sum())
        most = max(map(len, rows))
        whole = np.stack([np.pad(x, ((0, most - len(x)), (0, 0))) for x in rows])
        return Media(whole, index)


@functools.partial(quick_jit, static_argnames="model")
def encode(model: Model, params: dict, patches, layout):
    """The tower, compiled, in float32."""
    return model.vision(params, patches, layout, dtype=jnp.float32)


def read(arrays, folder: Path) -> Case:
    """Writes the arrays of a golden file as a Hugging Face folder and reads it back by the loader of the project."""
    (folder / "config.json").write_text(str(arrays["config"]))
    weights = {k.removeprefix("weights/"): arrays[k].astype(np.float32) for k in arrays if k.startswith("weights/")}
    save_file(weights, folder / "model.safetensors")
    cfg, params = load(folder)
    return Case(build(cfg), params, {k: arrays[k] for k in arrays if not k.startswith("weights/")})


@pytest.fixture(scope="module")
def golden(tmp_path_factory) -> Case:
    with np.load(GOLDEN / "vision.npz") as arrays:
        return read(dict(arrays), tmp_path_factory.mktemp("vision"))


def check_tower(case: Case) -> None:
    media = case.media()
    flat = np.concatenate([row[: index.max() + 1] for row, index in zip(media.embeddings, media.index, strict=True)])
    assert largest_difference(flat, case.arrays["embeddings"]) <= TOLERANCE


def check_logits(case: Case) -> None:
    assert np.array_equal(case.positions(), case.arrays["positions"])
    hidden, _ = forward(case.model, case.params, case.arrays["tokens"], positions=case.positions(), media=case.media())
    assert largest_difference(logits(case.model, case.params, hidden), case.arrays["logits"]) <= TOLERANCE


def check_decoding(case: Case) -> None:
    """Reads the prompt in two pieces, the second of which begins within an image, and decodes greedily."""
    model, params, tokens = case.model, unstack(case.model, case.params), case.arrays["tokens"]
    positions, media, cache, outs = case.positions(), case.media(), None, []
    for part in (slice(0, 20), slice(20, None)):
        more = dict(new_cache=tokens.shape[1] + 5) if cache is None else dict(cache=cache)
        piece = Media(media.embeddings, media.index[:, part])
        hidden, cache = forward(model, params, tokens[:, part], positions=positions[:, :, part], media=piece, **more)
        outs.append(hidden)
    assert largest_difference(logits(model, params, np.concatenate(outs, axis=1)), case.arrays["logits"]) <= TOLERANCE
    assert cache.offset.tolist() == case.arrays["deltas"].tolist()
    for step in case.arrays["generated"].T:
        token = np.asarray(jnp.argmax(logits(model, params, hidden[:, -1]), axis=-1))
        assert token.tolist() == step.tolist()
        hidden, cache = forward(model, params, token[:, None].astype(np.int32), cache=cache)


def test_the_tower_and_the_merger(golden):
    check_tower(golden)


def test_positions_and_logits(golden):
    check_logits(golden)


def test_a_prompt_in_two_pieces_and_greedy_decoding(golden):
    check_decoding(golden)


def test_the_comparison_would_see_a_wrong_config(golden):
    """The golden model is lively enough for windows, full layers and the split of frequencies to matter."""
    vision = golden.model.cfg.vision
    for change in (dict(full_layers=()), dict(full_layers=(0, 1)), dict(window=12), dict(rope_theta=100.0)):
        model = build(dataclasses.replace(golden.model.cfg, vision=dataclasses.replace(vision, **change)))
        with pytest.raises(AssertionError):
            check_tower(dataclasses.replace(golden, model=model))
    model = build(dataclasses.replace(golden.model.cfg, mrope_sections=(3, 3, 2)))
    with pytest.raises(AssertionError):
        check_logits(dataclasses.replace(golden, model=model))
