"""Memory, operations and collectives of a training step, from its compiled programs."""

from __future__ import annotations

import dataclasses
import logging
import math
import re
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.dryrun import collectives, programs
from marl_jax.dryrun.cost_model import matrix_flops
from marl_jax.dryrun.programs import Traced
from marl_jax.learning.learn_step import optimizer_for
from marl_jax.samples import Samples
from marl_jax.setup import Setup
from models import cache as kv

log = logging.getLogger(__name__)

_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
_ALL = re.compile(r"Used ([\d.]+)([KMGT]?) of [\d.]+[KMGT]? hbm")
_TEMPORARIES = re.compile(r"required for HLO temporaries \(([\d.]+)([KMGT]?)\)")


@dataclasses.dataclass(frozen=True)
class ProgramForecast:
    """Resources of the rollout or the update on one chip.

    Attributes:
        given: Number of bytes of the arguments by kind; `padding` is added by the compiler.
        temporaries: Number of bytes of temporaries: activations, gradients, gathered weights and KV cache.
        cache: Number of bytes of the KV cache, computed from its shape; part of the temporaries.
        outputs: Number of bytes of outputs that do not alias an argument.
        beside: Number of bytes on the chip that this program does not use.
        total: Total number of bytes on the chip while the program runs.
        flops: Operations of matrix products on all chips; see `matrix_flops`.
        model_flops: The same by the usual rule: 2 (forward) or 6 (with backward) per parameter and token.
        compiler_flops: Operations of one chip by the compiler, which counts the body of a loop once.
        traffic: Sums of the collectives of one chip.
        seconds: Compile time.
    """

    given: dict[str, float]
    temporaries: float
    cache: float
    outputs: float
    beside: float
    total: float
    flops: float
    model_flops: float
    compiler_flops: float | None
    traffic: tuple[collectives.Total, ...]
    seconds: float


@dataclasses.dataclass(frozen=True)
class Forecast:
    """Resources of a training step.

    Attributes:
        games: Number of parallel games.
        chips: Number of chips.
        mesh: Size of every mesh axis.
        counted: Numbers that follow from the shapes.
        programs: Rollout ("play") and update ("learn"), as far as they are compiled.
        refused: Number of bytes of programs that the compiler rejected because they do not fit.
    """

    games: int
    chips: int
    mesh: dict[str, int]
    counted: Counted
    programs: dict[str, ProgramForecast]
    refused: dict[str, float]

    @property
    def needs(self) -> float:
        """Number of bytes of the program that needs the most memory."""
        return max([p.total for p in self.programs.values()] + list(self.refused.values()))

    def fits(self, limit: float) -> bool:
        """Return whether both programs fit into `limit` bytes per chip."""
        return not self.refused and self.needs <= limit


def forecast(
    config: ConfigDict,
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX
    find: programs.Finder,
    half: Callable[[Forecast], Any] = lambda _: None,
) -> Forecast:
    """Compile the rollout and the update of a config and return their resources.

    Args:
        config: Config of a run.
        devices: Target devices.
        find: Finds the shapes and tokenizers of models.
        half: Called with the partial result once the rollout is compiled, because compilation may take minutes.
    """
    setup = setups.make(config, devices, find)
    rollout, optimizer = setup.rollout, optimizer_for(config)
    state = programs.abstract_state(setup, rollout, optimizer)
    compiled, refused = {}, {}

    play = programs.trace_play(setup, rollout, state)
    counted = Counted.of(setup, play.traced.out_info[0])
    beside = held(state.of_each("optimizer"))
    done, seconds = _compile(setup, "play", play, beside, refused)
    if done is not None:
        traffic = _traffic(done, setup, find.notes)
        compiled["play"] = _program(play, done, beside, counted.cache, counted.play_flops, traffic, seconds)
        samples = programs.results_of(play, done)[0]
    else:  # the update can be compiled all the same
        samples = programs.by_rows(play.traced.out_info[0], setup, axis=0)

    known = Forecast(config.rollout.num_envs, len(devices), dict(setup.mesh.shape), counted, compiled, refused)
    half(known)

    learn = programs.trace_learn(setup, optimizer, state, samples)
    beside = held(state.rollout)
    done, seconds = _compile(setup, "learn", learn, beside, refused)
    if done is not None:
        traffic = _traffic(done, setup, find.notes)
        compiled["learn"] = _program(learn, done, beside, 0.0, counted.learn_flops, traffic, seconds)
    return known


def _compile(setup: Setup, name: str, program: Traced, beside: float, refused: dict[str, float]):
    """Compile a program and return it with the compile time.

    If it does not fit, returns None instead, and `refused` gets the number of bytes that it needs.
    """
    start = time.perf_counter()
    try:
        done = programs.compiled(setup, program)
    except jax.errors.JaxRuntimeError as error:
        needs = memory_wanted(str(error), held(program.given))
        if needs is None:
            raise
        done, refused[name] = None, needs + beside
    seconds = time.perf_counter() - start
    log.info("%s with %d games: compiled in %.0f s", name, setup.config.rollout.num_envs, seconds)
    return done, seconds


def memory_wanted(message: str, given: float) -> float | None:
    """Return the bytes that a program needs, from an out-of-memory error.

    Args:
        message: The error.
        given: Number of bytes of the arguments, which some messages of the TPU compiler leave out.

    Returns:
        None for another error.
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    if everything := _ALL.search(message):
        return float(everything[1]) * _UNITS[everything[2]]
    if temporaries := _TEMPORARIES.search(message):
        return float(temporaries[1]) * _UNITS[temporaries[2]] + given
    return math.inf


def _program(
    program: Traced,
    done,
    beside: float,
    cache: float,
    rule: float,
    traffic: tuple[collectives.Total, ...],
    seconds: float,
) -> ProgramForecast:
    memory = done.memory_analysis()
    given = {kind: held(tree) for kind, tree in program.given.items()}
    given["padding"] = max(memory.argument_size_in_bytes - sum(given.values()), 0.0)
    given = {kind: size for kind, size in given.items() if size}
    outputs = memory.output_size_in_bytes - memory.alias_size_in_bytes
    temporaries = memory.temp_size_in_bytes
    return ProgramForecast(
        given=given,
        temporaries=temporaries,
        cache=cache,
        outputs=outputs,
        beside=beside,
        # Unlike the compiler's sum, this includes arguments that the program does not use.
        total=sum(given.values()) + temporaries + outputs + beside + memory.generated_code_size_in_bytes,
        flops=matrix_flops(program.traced.jaxpr),
        model_flops=rule,
        compiler_flops=_compiler_flops(done),
        traffic=traffic,
        seconds=seconds,
    )


def _traffic(done, setup: Setup, notes: set[str]) -> tuple[collectives.Total, ...]:
    """Return the collectives of a program; none, with a note, if jaxlib cannot read it."""
    try:
        text = done.as_text()
    except jax.errors.JaxRuntimeError as error:  # the program of a newer libtpu
        notes.add(
            "Collectives are missing, because jaxlib cannot read the compiled program: "
            f"{str(error).splitlines()[0]}. `pip install 'jax[tpu]'` installs the libtpu for this JAX."
        )
        return ()
    return tuple(collectives.totals(collectives.read(text, dict(setup.mesh.shape))))


def _compiler_flops(done) -> float | None:
    try:
        return (done.cost_analysis() or {}).get("flops")
    except NotImplementedError:  # not implemented by every compiler
        return None


# ------------------------------------------------------------------------------------------------------ from the shapes


def held(tree: Any) -> float:
    """Return the number of bytes per chip of a tree of shapes."""

    def one(x) -> float:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return 0.0
        return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize

    return float(sum(map(one, jax.tree.leaves(tree))))


@dataclasses.dataclass(frozen=True)
class Counted:
    """Numbers that follow from the shapes, including padding.

    Attributes:
        row: Number of tokens per row.
        read: Number of tokens that the rollout reads, in all turns of all games.
        learnt: Number of tokens that the update reads, in all epochs.
        play_flops: 2 operations per parameter and token of the rollout.
        learn_flops: 6 operations per parameter and token of the update.
        cache: Number of bytes of the KV cache of the rollout on one chip.
    """

    row: int
    read: int
    learnt: int
    play_flops: float
    learn_flops: float
    cache: float

    @classmethod
    def of(cls, setup: Setup, samples: Samples) -> Counted:
        """Count tokens and operations from the shapes of samples.

        Every model is counted as if it read all rows.
        """
        algo = setup.config.algo
        rows, row = samples.tokens.shape
        prompts = row - samples.n_completions * samples.branch_len
        games = setup.config.rollout.num_envs
        kept = rows if samples.completion_at is None else rows - samples.lookahead * samples.completion_at.shape[1]
        total = cls(row, 0, 0, 0.0, 0.0, 0.0)
        for backbone in setup.backbones:
            policy, cfg = backbone.policy, backbone.model.cfg
            read = rows * prompts
            learnt = kept * row * algo.epochs * any(backbone.learns)
            cache = 0.0
            if policy.decodes or policy.prefix:
                slots = len(policy.prefix) + backbone.row + policy.width
                cache = kv.nbytes(cfg, games * samples.n_completions, slots, policy.dtype)
                cache /= _cache_ways(setup, cfg.n_kv_heads)
            total = cls(
                row=total.row,
                read=total.read + read,
                learnt=total.learnt + learnt,
                play_flops=total.play_flops + 2.0 * cfg.n_params * read,
                learn_flops=total.learn_flops + 6.0 * cfg.n_params * learnt,
                cache=max(total.cache, cache),
            )
        return total


def _cache_ways(setup: Setup, heads: int) -> int:
    sizes = setup.mesh.shape
    return sizes["data"] * sizes["fsdp"] * (sizes["tensor"] if heads % sizes["tensor"] == 0 else 1)
