"""What the tests of sampling share: a tiny model, an engine that compiles fast, and the slow plain truth."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from scipy.stats import chisquare

from marl_jax.sampling.engine import Engine
from marl_jax.sampling.programs import Programs
from models import lora
from models.config import ModelConfig
from models.logprobs import token_logprobs
from models.model import Model, build
from tests.models.tiny_models import QUICK, quick_jit, random_params

CONFIG = ModelConfig(
    "qwen2", vocab_size=97, d_model=32, n_layers=2, n_heads=4, n_kv_heads=2, head_dim=8, d_ff=48, max_positions=64,
    qkv_bias=True,
)  # fmt: skip
BUCKET = 16


class QuickPrograms(Programs):
    """Programs that are compiled without optimization: they run for microseconds here."""

    @staticmethod
    def compiler_options():
        return QUICK


@functools.cache
def _programs(model, dtype, mesh) -> QuickPrograms:
    return QuickPrograms(model, dtype, mesh)


@functools.cache
def _layout(function, settings, mesh):
    return QuickPrograms(None, None, mesh).jit(functools.partial(function, **dict(settings)))


class SharedProgram:
    """A program of all engines with one model, dtype and mesh; an attribute of the engine replaces it."""

    def __init__(self, own: functools.cached_property):
        self.own = own

    def __get__(self, engine, owner=None):
        if engine.own_programs:
            return self.own.__get__(engine, owner)
        return getattr(_programs(engine.model, engine.dtype, engine.mesh), self.own.attrname)


class QuickEngine(Engine, QuickPrograms):
    """An engine that compiles fast and shares its programs, unless it has `own_programs` to be counted."""

    def __init__(self, *given, own_programs: bool = False, **settings):
        self.own_programs = own_programs
        super().__init__(*given, **settings)

    def jit(self, function, **options):
        if isinstance(function, functools.partial):  # the layout of weights
            return _layout(function.func, tuple(sorted(function.keywords.items())), self.mesh)
        return super().jit(function, **options)


for _name, _program in vars(Programs).items():
    if isinstance(_program, functools.cached_property):
        setattr(QuickEngine, _name, SharedProgram(_program))


@functools.cache
def model_and_params(seed: int = 0) -> tuple[Model, dict]:
    model = build(CONFIG)
    return model, random_params(model, seed)


@functools.cache
def adapters() -> tuple[dict, jax.Array]:
    """Three adapters on every projection that change a lot, the first switched off, and their scale."""
    rng = np.random.default_rng(5)
    tree = jax.eval_shape(lambda: lora.init(CONFIG, jax.random.key(5), 3, 4, lora.TARGETS))
    tree = jax.tree.map(lambda x: jnp.asarray(0.2 * rng.standard_normal(x.shape), jnp.float32), tree)
    return tree, lora.scales(3, 4, 8.0, none_first=True)


def make_engine(chunk: int = 8, dtype=jnp.float32, with_adapters: bool = False, params=None, **kwargs) -> QuickEngine:
    model, own = model_and_params()
    tree, scale = adapters() if with_adapters else (None, None)
    return QuickEngine(
        model, params or own, adapters=tree, lora_scale=scale, dtype=dtype, bucket=BUCKET, chunk=chunk, **kwargs
    )


def random_prompts(lengths, seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, CONFIG.vocab_size, n).tolist() for n in lengths]


@functools.partial(quick_jit, static_argnames=("model", "dtype"))
def _full_logits(model, params, tokens, adapters, dtype):
    hidden, _ = model.forward(params, tokens, adapters=adapters, dtype=dtype)
    return model.logits(params, hidden)


@functools.partial(quick_jit, static_argnames=("model", "dtype"))
def _hidden(model, params, tokens, adapters, dtype):
    return model.forward(params, tokens, adapters=adapters, dtype=dtype)[0]


@functools.partial(quick_jit, static_argnames="model")
def _logprobs(model, params, hidden, targets, temperature):
    return token_logprobs(model, params, hidden, targets, temperature)[0]


def _padded(rows, batch=8, time=CONFIG.max_positions):
    tokens = np.zeros((batch, time), np.int32)
    for line, row in zip(tokens, rows, strict=False):
        line[: len(row)] = row
    return tokens


def _lora(ids, batch=8):
    if ids is None:
        return None
    return lora.Lora(*adapters(), jnp.asarray(np.pad(np.asarray(ids, np.int32), (0, batch - len(ids)))))


def full_logits(rows, ids=None, dtype=jnp.float32, params=None) -> list[np.ndarray]:
    """float32 [len, V] of every row, read as a whole with the stacked weights of training, no cache anywhere."""
    model, own = model_and_params()
    logits = np.asarray(_full_logits(model, params or own, _padded(rows), _lora(ids), dtype))
    return [line[: len(row)] for line, row in zip(logits, rows, strict=False)]


def greedy_chain(prompts, steps: int, ids=None) -> list[list[int]]:
    """The most likely continuation, every token from a fresh forward pass over the whole row."""
    rows = [list(p) for p in prompts]
    for _ in range(steps):
        for row, logits in zip(rows, full_logits(rows, ids), strict=True):
            row.append(int(np.argmax(logits[-1])))
    return [row[len(p) :] for row, p in zip(rows, prompts, strict=True)]


def learner_hidden(rows, ids=None, dtype=jnp.float32) -> jax.Array:
    """hidden [8, 64, D] of the rows as training sees them."""
    return _hidden(*model_and_params(), _padded(rows), _lora(ids), dtype)


def learner_logprobs(prompts, answers, temperature=1.0, ids=None, dtype=jnp.float32) -> list[np.ndarray]:
    """log p of every token of the answers, as the learner computes them: stacked weights, whole rows."""
    rows = [list(p) + list(a) for p, a in zip(prompts, answers, strict=True)]
    hidden = learner_hidden(rows, ids, dtype)
    targets = np.roll(_padded(rows), -1, axis=1)
    temperatures = np.ones((len(targets),), np.float32)
    temperatures[: len(rows)] = temperature
    logps = np.asarray(_logprobs(*model_and_params(), hidden, targets, temperatures))
    return [line[len(p) - 1 : len(p) + len(a) - 1] for line, p, a in zip(logps, prompts, answers, strict=False)]


def goodness(counts, probs) -> float:
    """Return the p-value of Pearson's test that counts come from probs; rare outcomes are pooled."""
    probs = np.asarray(probs, np.float64)
    expected = counts.sum() * probs / probs.sum()
    rare = expected < 8
    counts, expected = (np.append(x[~rare], x[rare].sum()) if rare.any() else x for x in (counts, expected))
    return float(chisquare(counts, expected).pvalue)
