"""Parity with transformers: every family, layer by layer and in the logits, float32, to 1e-4.

The golden files come from `golden/make_parity.py` and pass through the real loader. Where torch is installed, the
same comparison runs on freshly drawn models.
"""

import dataclasses
import functools
import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from models.config import RopeScaling
from models.model import Model, build
from models.weights import load
from tests.models.tiny_models import forward, largest_difference, logits, unstack

GOLDEN = Path(__file__).parent / "golden"
CASES = ("llama", "llama3", "smollm2", "mistral", "phi3", "qwen2", "qwen3", "gpt2")
TOLERANCE = 1e-4


@dataclasses.dataclass(frozen=True)
class Case:
    """A model as the loader read it, and what transformers computed with the same weights."""

    model: Model
    params: dict
    tokens: np.ndarray  # int32 [B, T]
    hidden: np.ndarray  # float32 [L, B, T, D], the output of each layer through the last norm
    logits: np.ndarray  # float32 [B, T, V]


def read(arrays, folder: Path) -> Case:
    """Writes the arrays of a golden file as a Hugging Face folder and reads it back by the loader of the project."""
    (folder / "config.json").write_text(str(arrays["config"]))
    weights = {k.removeprefix("weights/"): arrays[k].astype(np.float32) for k in arrays if k.startswith("weights/")}
    save_file(weights, folder / "model.safetensors")
    cfg, params = load(folder)
    return Case(build(cfg), params, arrays["tokens"], arrays["hidden"], arrays["logits"])


@pytest.fixture(scope="module")
def golden(tmp_path_factory):
    """Case name -> the case; each is read once."""

    @functools.cache
    def get(name: str) -> Case:
        with np.load(GOLDEN / f"parity_{name}.npz") as arrays:
            return read(dict(arrays), tmp_path_factory.mktemp(name))

    return get


def first_layers(case: Case, n: int) -> tuple[Model, dict]:
    """The model with its first n layers only: its last norm then follows layer n."""
    model = build(dataclasses.replace(case.model.cfg, n_layers=n))
    layers = {part: {k: x[:n] for k, x in leaves.items()} for part, leaves in case.params["layers"].items()}
    return model, {**case.params, "layers": layers}


def check_every_layer(case: Case) -> None:
    """Stacked layers, as training and scoring run them."""
    for n in range(1, case.model.cfg.n_layers + 1):
        model, params = first_layers(case, n)
        hidden, _ = forward(model, params, case.tokens)
        assert largest_difference(hidden, case.hidden[n - 1]) <= TOLERANCE, f"after layer {n}"
    assert largest_difference(logits(case.model, case.params, hidden), case.logits) <= TOLERANCE


def check_with_cache(case: Case) -> None:
    """Unstacked fused layers, as decoding runs them: read a prompt, append a second turn, then token by token."""
    model, params = case.model, unstack(case.model, case.params)
    prompt, turn, step = np.split(case.tokens, (8, 15), axis=1)
    hidden, cache = forward(model, params, prompt, new_cache=24)
    pieces = [hidden]
    for tokens in (turn, *np.split(step, step.shape[1], axis=1)):
        hidden, cache = forward(model, params, tokens, cache=cache)
        pieces.append(hidden)
    hidden = np.concatenate(pieces, axis=1)
    assert cache.lengths.tolist() == [case.tokens.shape[1]] * case.tokens.shape[0]
    assert largest_difference(hidden, case.hidden[-1]) <= TOLERANCE
    assert largest_difference(logits(model, params, hidden), case.logits) <= TOLERANCE


@pytest.mark.nightly_for("llama", "phi3", "qwen3", "smollm2")
@pytest.mark.parametrize("name", CASES)
def test_every_layer_and_the_logits(golden, name):
    check_every_layer(golden(name))


@pytest.mark.nightly_for("smollm2", "llama", "llama3", "mistral", "phi3", "qwen2")
@pytest.mark.parametrize("name", CASES)
def test_prefill_append_and_decode_with_the_cache(golden, name):
    check_with_cache(golden(name))


@pytest.mark.parametrize(
    "name, change",
    [
        ("llama", {"norm_eps": 1e-6}),
        ("llama3", {"rope_scaling": None}),
        ("llama3", {"rope_scaling": RopeScaling("linear", 4.0)}),
        ("mistral", {"sliding_window": 8}),
        ("mistral", {"rope_theta": 10_000.0}),
        ("phi3", {"sliding_window": None}),
    ],
)
def test_the_comparison_would_see_a_wrong_config(golden, name, change):
    """The golden models are lively enough for every field to matter."""
    case = golden(name)
    hidden, _ = forward(build(dataclasses.replace(case.model.cfg, **change)), case.params, case.tokens)
    assert largest_difference(hidden, case.hidden[-1]) > 100 * TOLERANCE


def test_every_golden_weight_matters(golden):
    """Nothing in the golden files is at a value where it could be forgotten: no norm of ones, no bias of zeros."""
    for name in CASES:
        for leaves in golden(name).params["layers"].values():
            for key, leaf in leaves.items():
                assert np.std(np.asarray(leaf)) > 0.05, f"{name}: {key}"


@pytest.mark.parametrize("name", CASES)
def test_against_live_transformers(name, tmp_path):
    for package in ("torch", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed: the golden files stand in for the live comparison")
    spec = importlib.util.spec_from_file_location("make_parity", GOLDEN / "make_parity.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    seed = int.from_bytes(np.random.default_rng().bytes(3))
    case = read(script.make(name, seed), tmp_path)
    try:
        check_every_layer(case)
        check_with_cache(case)
    except AssertionError as error:
        raise AssertionError(f"seed {seed} of {name}, config {json.dumps(str(case.model.cfg))}") from error
