"""Qwen2.5-VL against transformers: tower, merger, mRoPE, logits and decoding, float32, to 1e-4.

The golden file comes from `golden/make_vision.py` and passes through the real loader. Where torch is installed, the
same comparison runs on freshly drawn models and images, and transformers reads what we export.
"""

import dataclasses
import functools
import importlib.util
import json
import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from safetensors.numpy import load_file, save_file

from models import hf_config, lora, peft
from models.config import VisionConfig
from models.errors import WeightsError
from models.media import Media, index_of, mrope_positions
from models.model import Model, build
from models.registry import get
from models.sharding import MESH_AXES, param_shardings
from models.weights import export, load
from tests.models.hf_folders import GOLDEN, same
from tests.models.tiny_models import CONFIGS, forward, largest_difference, logits, quick_jit, random_params, unstack

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
        own = iter([x[: r * c // 4] for x, (r, c) in zip(embeddings, images, strict=True)])
        rows = [np.concatenate([next(own) for _ in row]) for row in self.rows]
        most = max(map(len, rows))
        rows = np.stack([np.pad(x, ((0, most - len(x)), (0, 0))) for x in rows])
        return Media(rows, index_of(self.arrays["tokens"], self.image_id))


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


@pytest.mark.nightly_for("rope_theta", "full_layers")
@pytest.mark.parametrize(
    "change", [dict(full_layers=()), dict(full_layers=(0, 1)), dict(window=12), dict(rope_theta=100.0)], ids=str
)
def test_the_comparison_would_see_a_wrong_tower(golden, change):
    """The golden model is lively enough for windows, full layers and the rotation to matter."""
    vision = dataclasses.replace(golden.model.cfg.vision, **change)
    model = build(dataclasses.replace(golden.model.cfg, vision=vision))
    with pytest.raises(AssertionError):
        check_tower(dataclasses.replace(golden, model=model))


@pytest.mark.nightly
def test_the_comparison_would_see_wrong_sections(golden):
    model = build(dataclasses.replace(golden.model.cfg, mrope_sections=(3, 3, 2)))
    with pytest.raises(AssertionError):
        check_logits(dataclasses.replace(golden, model=model))


@pytest.mark.quick
def test_windows_hold_every_patch_once_in_the_order_of_the_patches():
    """6 × 6 cells with windows of 4 × 4 cells: 64, 32, 32 and 16 patches."""
    encoder = build(get("qwen2.5-vl-3b").config).vision
    layout = encoder.layout([(12, 12), (2, 20)], 160)
    windows = layout.windows
    assert windows.held.tolist() == [[64, 32, 32, 16], [16, 16, 8, 0]] and layout.lengths.tolist() == [144, 40]
    assert layout.places[0, :9].tolist() == [[0, 0], [0, 1], [1, 0], [1, 1], [0, 2], [0, 3], [1, 2], [1, 3], [0, 4]]
    for image, n in enumerate((144, 40)):
        slots, home = windows.slots[image], windows.home[image]
        assert slots[home[:n]].tolist() == list(range(n)) and (home[n:] == -1).all() and (slots >= 0).sum() == n
        window = home[:n] // 64
        rows, columns = layout.places[image, :n].T // 8
        assert (window == rows * (2 if image == 0 else 3) + columns).all()


def test_the_layout_may_be_an_argument_or_a_constant_and_padding_changes_nothing(golden):
    params, encoder = golden.params["vision"], golden.model.vision
    patches = np.random.default_rng(0).standard_normal((2, 24, 24)).astype(np.float32)
    alone = encode(golden.model, params, patches, encoder.layout([(6, 4)]))
    fixed = quick_jit(lambda x: encoder(params, x, encoder.layout([(6, 4)]), dtype=jnp.float32, remat="full"))
    assert largest_difference(fixed(patches), alone) < 1e-6
    padded = np.concatenate([patches, np.full((2, 16, 24), 9, np.float32)], axis=1)
    ragged = encode(golden.model, params, padded, encoder.layout([(6, 4), (6, 4)], 40))
    assert largest_difference(ragged[:, :6], alone) < 1e-5


def test_every_matrix_of_the_tower_is_sharded():
    model = build(get("qwen2.5-vl-3b").config)
    mesh = jax.make_mesh((1, 4, 2), MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    shardings = param_shardings(mesh, model.axes(), model.abstract())["vision"]
    shapes = model.abstract()["vision"]
    for sharding, leaf in zip(jax.tree.leaves(shardings), jax.tree.leaves(shapes), strict=True):
        parts = leaf.size // np.prod(sharding.shard_shape(leaf.shape))
        assert parts == 8 if leaf.size > 1e7 else parts >= 2


@pytest.mark.nightly
@pytest.mark.parametrize("name", ["all", "fsdp"])
def test_a_mesh_gives_the_results_of_one_device(name):
    """Tower, insertion and decoder, with gradients, over 8 devices."""
    vision = VisionConfig(2, 16, 2, 24, image_id=63, patch=2, window=8, full_layers=(1,))
    model = build(dataclasses.replace(CONFIGS["qwen2"], vision=vision, mrope_sections=(2, 1, 1)))
    params, rng = random_params(model), np.random.default_rng(0)
    patches = rng.standard_normal((8, 24, 24)).astype(np.float32)
    tokens = np.stack([[1, *[63] * 6, *rng.integers(2, 60, 5)] for _ in range(8)]).astype(np.int32)
    positions = mrope_positions(tokens, 63, np.asarray([[(3, 2)]]))
    layout = model.vision.layout([(6, 4)])

    def learn(params, patches, tokens):
        def loss(params):
            embeddings = model.vision(params["vision"], patches, layout, dtype=jnp.float32)
            media = Media(embeddings, index_of(tokens, 63))
            hidden, _ = model.forward(params, tokens, positions=positions, media=media, dtype=jnp.float32)
            return jnp.sum(jnp.sin(hidden)), hidden

        return jax.grad(loss, has_aux=True)(params)

    expected = quick_jit(learn)(params, patches, tokens)
    mesh = jax.make_mesh({"all": (2, 2, 2), "fsdp": (1, 8, 1)}[name], MESH_AXES, axis_types=(AxisType.Auto,) * 3)
    with jax.set_mesh(mesh):
        shardings = param_shardings(mesh, model.axes(), model.abstract())
        split = [s for s in jax.tree.leaves(shardings["vision"]) if not s.is_fully_replicated]
        # Biases of heads and hidden units are split by tensor parallelism only.
        assert len(split) == {"all": 22, "fsdp": 16}[name]
        found = quick_jit(learn)(jax.device_put(params, shardings), patches, tokens)
    for ours, theirs in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert largest_difference(ours, theirs) <= 2e-5 * max(1.0, float(jnp.max(jnp.abs(theirs))))


@pytest.mark.quick
@pytest.mark.parametrize(
    "change, message",
    [
        (dict(d_model=12), "vision.d_model is 12, but must be a multiple of 8"),
        (dict(window=6), "vision.window is 6, but must be a multiple of 4"),
        (dict(full_layers=(2,)), "vision.full_layers is"),
        (dict(image_id=-1), "vision.image_id is -1"),
        (dict(image_id=64), "vision.image_id is 64, but must be < vocab_size, 64"),
        (dict(norm_eps=0.0), "vision.norm_eps is 0.0"),
    ],
)
def test_bad_towers_are_refused(change, message):
    tower = dict(n_layers=2, d_model=16, n_heads=2, d_ff=24, image_id=63, patch=2, window=8)
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(CONFIGS["qwen2"], vision=VisionConfig(**tower | change))


def test_bad_grids_and_patches_are_refused(golden):
    encoder, params = golden.model.vision, golden.params["vision"]
    for grids, patches, message in (
        ([(3, 4)], None, "grid is 3 × 4 patches, but must have multiples of 2"),
        ([(0, 4)], None, "grid is 0 × 4"),
        ([], None, "grids is empty"),
        ([(4, 4)], 12, "patches is 12, but must be a multiple of 4 and >= 16"),
    ):
        with pytest.raises(ValueError, match=message):
            encoder.layout(grids, patches)
    with pytest.raises(ValueError, match=r"must have \(I, N, 24\)"):
        encoder(params, np.zeros((1, 16, 25)), encoder.layout([(4, 4)]))
    with pytest.raises(ValueError, match="the layout is of another encoder"):
        layout = dataclasses.replace(encoder.layout([(4, 4)]), windows=None)
        encoder(params, np.zeros((1, 16, 24)), layout)
    with pytest.raises(ValueError, match="the layout is for"):
        encoder(params, np.zeros((3, 16, 24)), encoder.layout([(4, 4)] * 2))


@pytest.mark.nightly
def test_the_example_of_the_page_runs():
    page = (Path(__file__).parents[2] / "docs" / "vision.md").read_text(encoding="utf-8")
    names: dict = {}
    exec(page.split("```python\n")[1].split("```")[0], names)
    assert names["hidden"].shape == (8, 11, 128) and names["embeddings"].shape == (8, 6, 128)


# ---------------------------------------------------------------------------------------------------- files


def test_export_writes_the_tensors_that_transformers_wrote(golden, tmp_path):
    folder = export(tmp_path / "model", golden.model.cfg, golden.params)
    cfg, params = load(folder)
    assert cfg == golden.model.cfg and same(params, golden.params)
    with np.load(GOLDEN / "vision.npz") as arrays:
        theirs = {name.removeprefix("weights/"): arrays[name] for name in arrays if name.startswith("weights/")}
    ours = load_file(folder / "model.safetensors")
    short = lambda name: name.replace("model.visual.", "visual.").replace("language_model.", "")  # noqa: E731
    renamed = {short(name): x for name, x in theirs.items()}
    assert ours.keys() == renamed.keys()
    assert all(np.array_equal(ours[name], renamed[name].astype(np.float32)) for name in ours)


@pytest.mark.quick
def test_the_published_flat_config_is_read():
    """The fields of the 3B model on the hub."""
    values = dict(
        model_type="qwen2_5_vl", hidden_size=2048, num_hidden_layers=36, num_attention_heads=16, num_key_value_heads=2,
        intermediate_size=11008, max_position_embeddings=128000, rms_norm_eps=1e-6, rope_theta=1e6, hidden_act="silu",
        tie_word_embeddings=True, vocab_size=151936, bos_token_id=151643, eos_token_id=[151645, 151643],
        use_sliding_window=False, sliding_window=32768, max_window_layers=70, vision_start_token_id=151652,
        vision_end_token_id=151653, vision_token_id=151654, image_token_id=151655, video_token_id=151656,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        vision_config=dict(
            depth=32, hidden_act="silu", hidden_size=1280, intermediate_size=3420, num_heads=16, in_chans=3,
            out_hidden_size=2048, patch_size=14, spatial_merge_size=2, spatial_patch_size=14, window_size=112,
            fullatt_block_indexes=[7, 15, 23, 31], tokens_per_second=2, temporal_patch_size=2,
        ),
    )  # fmt: skip
    cfg = get("qwen2.5-vl-3b").config
    assert hf_config.from_dict(values) == cfg
    assert hf_config.from_dict(hf_config.to_dict(cfg)) == cfg
    full = dataclasses.replace(cfg, vision=dataclasses.replace(cfg.vision, full_layers=None))
    assert hf_config.from_dict(hf_config.to_dict(full)) == full
    for change, message in (
        (dict(vision_config=None), "vision_config is None"),
        (dict(vision_config={**values["vision_config"], "out_hidden_size": 5}), "out_hidden_size is 5"),
        (dict(vision_config={**values["vision_config"], "fullatt_block_indexes": [32]}), "layers from 0 to 31"),
        (dict(vision_config=[1]), "must be an object"),
        (dict(rope_scaling=None), "mrope_section is None"),
        (dict(rope_scaling={"type": "mrope", "mrope_section": [16, 24]}), "mrope_sections is"),
    ):
        with pytest.raises(ValueError, match=message):
            hf_config.from_dict(values | change)


@pytest.mark.nightly_for("llama")
@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_a_tower_before_another_decoder_is_stored_with_it(family, tmp_path):
    vision = VisionConfig(3, 8, 1, 12, image_id=63, start_id=1, end_id=2, patch=2, window=8, full_layers=(2,))
    cfg = dataclasses.replace(CONFIGS[family], vision=vision)
    model = build(cfg)
    params = random_params(model)
    folder = export(tmp_path / "model", cfg, params, shard_bytes=20_000)
    loaded, again = load(folder)
    assert loaded == cfg and same(params, again)
    assert cfg.n_params == sum(x.size for x in jax.tree.leaves(params))
    text = {**json.loads((folder / "config.json").read_text()), "vision_config": None}
    (folder / "config.json").write_text(json.dumps(text))
    with pytest.raises(WeightsError, match="extra: visual"):
        load(folder)


@pytest.mark.nightly
def test_adapters_leave_out_the_tower(golden):
    """LoRA has adapters on the decoder only, and they apply to images and text."""
    cfg = golden.model.cfg
    adapters = lora.init(cfg, jax.random.key(0), 1, 2, ("q", "down"))
    adapters = jax.tree.map(lambda x: x + 0.1, adapters)
    scale = lora.scales(1, 2, 2.0)
    merged = lora.merge(golden.params, adapters, scale, 0)
    assert merged["vision"] is golden.params["vision"]
    given = dict(positions=golden.positions(), media=golden.media())
    ids = np.zeros(len(golden.arrays["tokens"]), np.int32)
    own, _ = forward(
        golden.model, golden.params, golden.arrays["tokens"], adapters=lora.Lora(adapters, scale, ids), **given
    )
    expected, _ = forward(golden.model, merged, golden.arrays["tokens"], **given)
    assert largest_difference(own, expected) < 2e-4


def test_adapters_have_the_module_names_of_transformers(golden, tmp_path):
    cfg = golden.model.cfg
    stack = jax.tree.map(lambda x: x + 0.1, lora.init(cfg, jax.random.key(0), 1, 2, ("q", "gate")))
    adapter = peft.Adapter({t: {x: np.asarray(ab[x][:, 0]) for x in "ab"} for t, ab in stack.items()}, 0.5)
    folder = peft.export(tmp_path / "adapter", cfg, adapter)
    names = load_file(folder / "adapter_model.safetensors")
    assert "base_model.model.model.language_model.layers.1.mlp.gate_proj.lora_A.weight" in names and len(names) == 8
    again = peft.load(folder, cfg)
    assert again.scale == 0.5 and same(again.weights, adapter.weights)
    excluded = json.loads((folder / "adapter_config.json").read_text())["exclude_modules"]
    assert re.fullmatch(excluded, "model.visual.blocks.0.mlp.gate_proj")
    assert not re.fullmatch(excluded, "model.language_model.layers.0.mlp.gate_proj")


# ---------------------------------------------------------------------------------------------------- live


def _script():
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: the golden file stands in for the live comparison")
    spec = importlib.util.spec_from_file_location("make_vision", GOLDEN / "make_vision.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.mark.parametrize("tied", [False, True])
def test_against_live_transformers(tied, tmp_path):
    script, rng = _script(), np.random.default_rng()
    seed = int(rng.integers(1 << 24))
    rows = [[2], [1]]
    for row in rows:  # random aspect ratios and texts between images
        for _ in range(3):
            row += [tuple(int(2 * n) for n in rng.integers(1, 8, 2)), int(rng.integers(1, 6))]
    case = read(script.make(seed, rows, tied), tmp_path)
    try:
        check_tower(case)
        check_logits(case)
        check_decoding(case)
    except AssertionError as error:
        raise AssertionError(f"seed {seed}, rows {rows}") from error


def test_transformers_reads_what_we_export(tmp_path):
    """Bit for bit, as a published model, and again after transformers has saved it."""
    script = _script()
    import transformers

    case = read(script.make(3), tmp_path)
    folder = export(tmp_path / "ours", case.model.cfg, case.params)
    model = transformers.AutoModelForImageTextToText.from_pretrained(folder)
    theirs = {name: x.numpy() for name, x in model.state_dict().items()}
    original = script.model_of(3).state_dict()
    assert theirs.keys() == original.keys()
    assert all(np.array_equal(theirs[name], original[name].numpy()) for name in theirs)
    model.save_pretrained(tmp_path / "theirs")
    cfg, params = load(tmp_path / "theirs")
    assert cfg == case.model.cfg and same(params, case.params)
