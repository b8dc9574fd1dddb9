"""The audio encoder equals Whisper's, and the encoder of tables ignores the order of rows."""

import dataclasses
import functools
import math
import os
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from models.audio import HOP, AudioConfig, AudioEncoder, log_mel, mel_filters
from models.structured import TableConfig, TableEncoder

GOLDEN = Path(__file__).with_name("golden") / "whisper_encoder.npz"
CONFIG = AudioConfig(n_layers=2, d_model=16, n_heads=2, d_ff=32, n_mels=8, max_frames=64, merge=4)
TABLE = TableEncoder(TableConfig(n_layers=2, d_model=16, n_heads=2, d_ff=32, n_columns=3), width=24)


def noise(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


@pytest.mark.quick
@pytest.mark.parametrize("n_mels", [40, 80])
def test_frames_and_filters_equal_those_of_transformers(n_mels):
    from transformers import WhisperFeatureExtractor

    extractor = WhisperFeatureExtractor(feature_size=n_mels)
    np.testing.assert_allclose(mel_filters(n_mels), extractor.mel_filters, atol=1e-7)
    time = np.arange(100 * HOP) / 16_000
    sound = (0.5 * np.sin(2 * math.pi * 440 * time)).astype(np.float32) + 0.01 * noise(len(time))
    theirs = extractor(sound, sampling_rate=16_000, padding="do_not_pad", return_tensors="np")["input_features"][0]
    np.testing.assert_allclose(log_mel(sound, n_mels), theirs.T, atol=2e-4)
    compiled = jax.jit(log_mel, static_argnums=1)
    np.testing.assert_allclose(compiled(sound, n_mels), log_mel(sound, n_mels), atol=2e-4)


def parameters(encoder):
    """Return seeded parameters, drawn leaf by leaf."""
    random = np.random.default_rng(0)
    return jax.tree.map(
        lambda x: (0.3 * random.standard_normal(x.shape)).astype(np.float32), encoder.abstract(jnp.float32)
    )


FRAMES = noise(1, 64, 8)


@functools.partial(jax.jit, static_argnums=0)
def hidden(encoder, params, frames):
    return encoder.hidden(params, frames, dtype=jnp.float32)


def test_hidden_states_equal_the_recorded_ones_of_whisper():
    encoder = AudioEncoder(CONFIG, width=24)
    given = hidden(encoder, parameters(encoder), FRAMES)
    np.testing.assert_allclose(given, np.load(GOLDEN)["hidden"], atol=1e-4)


def test_hidden_states_equal_those_of_whisper():
    """To record them again: `MARL_JAX_RECORD=1 python -m pytest tests/models/test_audio.py` with torch."""
    torch = pytest.importorskip("torch", reason="torch is not installed (pip install -e '.[parity]')")
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    theirs = WhisperEncoder(WhisperConfig(
        num_mel_bins=8, d_model=16, encoder_layers=2, encoder_attention_heads=2, encoder_ffn_dim=32,
        max_source_positions=32, dropout=0.0,
    )).eval()  # fmt: skip
    encoder = AudioEncoder(CONFIG, width=24)
    params = parameters(encoder)
    state = theirs.state_dict() | {name: torch.from_numpy(x) for name, x in of_whisper(encoder, params).items()}
    theirs.load_state_dict(state, strict=True)
    with torch.no_grad():
        wanted = theirs(torch.from_numpy(FRAMES.transpose(0, 2, 1))).last_hidden_state.numpy()
    given = hidden(encoder, params, FRAMES)
    np.testing.assert_allclose(given, wanted, atol=1e-4)
    if "MARL_JAX_RECORD" in os.environ:
        np.savez_compressed(GOLDEN, hidden=wanted)


def of_whisper(encoder, params):
    """Return our parameters under the names and in the shapes of a Whisper encoder."""
    theirs = {"layer_norm.weight": params["norm"], "layer_norm.bias": params["norm_bias"]}
    for name in ("conv1", "conv2"):
        theirs[f"{name}.weight"] = np.ascontiguousarray(params[name].transpose(2, 1, 0))
        theirs[f"{name}.bias"] = params[f"{name}_bias"]
    names = {
        "norm": "self_attn_layer_norm", "mlp_norm": "final_layer_norm", "q": "self_attn.q_proj",
        "k": "self_attn.k_proj", "v": "self_attn.v_proj", "o": "self_attn.out_proj", "up": "fc1", "down": "fc2",
    }  # fmt: skip
    layers, d = params["layers"], encoder.cfg.d_model
    for i in range(encoder.cfg.n_layers):
        for own, name in names.items():
            weight = layers[own][i]
            shape = (-1,) if weight.ndim == 1 else (-1, d) if own in ("o", "down") else (d, -1)
            theirs[f"layers.{i}.{name}.weight"] = np.ascontiguousarray(weight.reshape(shape).T)
            if f"{own}_bias" in layers:
                theirs[f"layers.{i}.{name}.bias"] = layers[f"{own}_bias"][i].reshape(-1)
    return theirs


def test_embeddings_have_gradients_and_the_width_of_the_decoder():
    encoder = AudioEncoder(CONFIG, width=24)
    params = jax.jit(encoder.init)(jax.random.key(1))
    assert jax.tree.structure(params) == jax.tree.structure(encoder.axes(), is_leaf=lambda x: isinstance(x, tuple))
    frames = noise(2, 32, 8)

    def loss(params, **settings):
        embeddings = encoder(params, frames, dtype=jnp.float32, **settings)
        assert embeddings.shape == (2, 4, 24)
        return jnp.sum(embeddings**2)

    grads, full = jax.device_get(jax.jit(lambda p: (jax.grad(loss)(p), jax.grad(loss)(p, remat="full")))(params))
    assert all(np.any(g) for g in jax.tree.leaves(grads))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5), full, grads)


@pytest.mark.quick
@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: AudioConfig(1, 10, 4, 8), "d_model is 10, but must be a multiple of 8"),
        (lambda: dataclasses.replace(CONFIG, n_layers=0), "n_layers is 0, but must be an integer >= 1"),
        (lambda: dataclasses.replace(CONFIG, max_frames=12), "must be a multiple of 8"),
        (lambda: AudioEncoder(CONFIG, 4)({}, jnp.zeros((1, 12, 8))), "has 12 frames, but must have a multiple of 8"),
        (lambda: AudioEncoder(CONFIG, 4)({}, jnp.zeros((1, 8, 9))), r"must have \(I, T, 8\)"),
        (lambda: log_mel(np.zeros(HOP + 1, np.float32)), "must have a multiple of 160 above 200"),
        (lambda: TABLE({}, jnp.zeros((1, 0, 3))), "with N >= 1"),
        (lambda: TABLE({}, jnp.zeros((1, 2, 3)), jnp.ones((1, 2), bool)), r"edges has shape \(1, 2\), but must have"),
        (lambda: dataclasses.replace(TABLE.cfg, shortest=0.0), "shortest is 0.0, but must be > 0"),
    ],
)
def test_bad_input_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_the_order_of_rows_does_not_matter_and_padding_is_not_read():
    params, rows = jax.jit(TABLE.init)(jax.random.key(0)), noise(2, 5, 3)
    order = np.array([3, 0, 4, 1, 2])
    program = jax.jit(functools.partial(TABLE, dtype=jnp.float32))
    encode = lambda *given: np.asarray(program(params, *given))  # noqa: E731
    plain = encode(rows)
    np.testing.assert_allclose(encode(rows[:, order]), plain[:, order], atol=1e-5)
    padded = np.concatenate([rows, noise(2, 3, 3, seed=1)], axis=1)
    np.testing.assert_allclose(encode(padded, None, np.array([5, 5]))[:, :5], plain, atol=1e-5)


def test_a_node_reads_its_neighbors_only():
    params, rows = jax.jit(TABLE.init)(jax.random.key(0)), noise(1, 4, 3)
    chain = np.eye(4, k=1, dtype=bool)[None]  # node i reads node i + 1

    def one(rows):
        return TABLE(params, rows, chain, dtype=jnp.float32)[0, 0].sum()

    reach = np.abs(np.asarray(jax.jit(jax.grad(one))(rows)))[0].max(axis=1) > 0
    assert reach.tolist() == [True, True, True, False]  # two layers reach two edges far
