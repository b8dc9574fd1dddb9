"""What a training step will need: bytes on each chip by kind, operations, collectives, whether it fits."""

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
    """One of the two programs on one chip.

    given        bytes of what it reads, by kind; `padding` is what the compiler adds to lay them out
    temporaries  bytes it needs while it runs: activations, gradients, gathered weights, the key/value cache
    cache        bytes of that cache, by its shape; part of the temporaries
    outputs      bytes of new results, those written over what was given left out
    beside       bytes that lie on the chip all the while though this program does not read them
    total        all of it: what the chip must hold while it runs
    flops        matrix products on all chips, see `operations`
    model_flops  the same by the usual rule: 2 (forward) or 6 (and backward) a parameter and token
    compiler_flops  what the compiler says of one chip; it counts the body of a loop once
    traffic      collectives of one chip, added up
    seconds      it took to compile
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
    """Both programs for one number of games; a program that the compiler refused for want of memory is its bytes."""

    games: int
    chips: int
    mesh: dict[str, int]
    counted: Counted
    programs: dict[str, ProgramForecast]
    refused: dict[str, float]

    @property
    def needs(self) -> float:
        """Bytes of the program that needs most."""
        return max([p.total for p in self.programs.values()] + list(self.refused.values()))

    def fits(self, limit: float) -> bool:
        """Whether a chip that holds `limit` bytes can run both."""
        return not self.refused and self.needs <= limit


def forecast(
    config: ConfigDict,
    devices: Sequence[jax.Device],  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX
    find: programs.Finder,
    half: Callable[[Forecast], Any] = lambda _: None,
) -> Forecast:
    """Compiles rollout and update of a config for some devices, and reads off what they need.

    half  is told what is known once the rollout is compiled: compilers of large models take minutes
    """
    setup = setups.make(config, devices, find)
    rollout, optimizer = setup.rollout, optimizer_for(config)
    state = programs.abstract_state(setup, rollout, optimizer)
    found, refused = {}, {}

    play = programs.trace_play(setup, rollout, state)
    counted = Counted.of(setup, play.traced.out_info[0])
    beside = held(state.of_each("optimizer"))
    done, seconds = _compile(setup, "play", play, beside, refused)
    if done is not None:
        found["play"] = _program(setup, play, done, beside, counted.cache, counted.play_flops, seconds)
        samples = programs.results_of(play, done)[0]
    else:  # The update can be forecast all the same.
        samples = programs.by_rows(play.traced.out_info[0], setup, axis=0)

    known = Forecast(config.rollout.num_envs, len(devices), dict(setup.mesh.shape), counted, found, refused)
    half(known)

    learn = programs.trace_learn(setup, optimizer, state, samples)
    beside = held(state.rollout)
    done, seconds = _compile(setup, "learn", learn, beside, refused)
    if done is not None:
        found["learn"] = _program(setup, learn, done, beside, 0.0, counted.learn_flops, seconds)
    return known


def _compile(setup: Setup, name: str, program: Traced, beside: float, refused: dict[str, float]):
    """The compiled program, or None, with the bytes it would need in `refused`; and the seconds it took."""
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
    """Bytes that a program needs, from the compiler's complaint that it does not fit; None if it is another one.

    given  bytes of its arguments, which the TPU compiler names in some messages and leaves out in others
    """
    if "RESOURCE_EXHAUSTED" not in message:
        return None
    if everything := _ALL.search(message):
        return float(everything[1]) * _UNITS[everything[2]]
    if temporaries := _TEMPORARIES.search(message):
        return float(temporaries[1]) * _UNITS[temporaries[2]] + given
    return math.inf


def _program(setup, program: Traced, done, beside: float, cache: float, rule: float, seconds: float) -> ProgramForecast:
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
        # Not the compiler's sum of arguments: what a program is given and does not look at lies on the chip, too.
        total=sum(given.values()) + temporaries + outputs + beside + memory.generated_code_size_in_bytes,
        flops=matrix_flops(program.traced.jaxpr),
        model_flops=rule,
        compiler_flops=_compiler_flops(done),
        traffic=tuple(collectives.totals(collectives.read(done.as_text(), dict(setup.mesh.shape)))),
        seconds=seconds,
    )


def _compiler_flops(done) -> float | None:
    try:
        return (done.cost_analysis() or {}).get("flops")
    except NotImplementedError:  # not every compiler says
        return None


# ------------------------------------------------------------------------------------------------------ from the shapes


def held(tree: Any) -> float:
    """Bytes of a tree of shapes on one chip."""

    def one(x) -> float:
        if jnp.issubdtype(x.dtype, jax.dtypes.prng_key):
            return 0.0
        return math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize

    return float(sum(map(one, jax.tree.leaves(tree))))


@dataclasses.dataclass(frozen=True)
class Counted:
    """What follows from the shapes alone, padding included.

    row          tokens of a row
    read         tokens that the rollout reads, all turns of all games
    learnt       tokens that the update reads, all epochs
    play_flops   2 a parameter and token read
    learn_flops  6 a parameter and token learnt
    cache        bytes of the key/value cache of one chip's rows in the rollout
    """

    row: int
    read: int
    learnt: int
    play_flops: float
    learn_flops: float
    cache: float

    @classmethod
    def of(cls, setup: Setup, samples: Samples) -> Counted:
        """Of a rollout's samples, as shapes; with several models each counts as if it read everything."""
        algo = setup.config.algo
        rows, row = samples.tokens.shape
        prompts = row - samples.n_completions * samples.branch_len
        games = setup.config.rollout.num_envs
        kept = rows if samples.completion_at is None else rows - samples.lookahead * samples.completion_at.shape[1]
        found = cls(row, 0, 0, 0.0, 0.0, 0.0)
        for backbone in setup.backbones:
            policy, cfg = backbone.policy, backbone.model.cfg
            read = rows * prompts
            learnt = kept * row * algo.epochs * any(backbone.learns)
            cache = 0.0
            if policy.decodes or policy.prefix:
                slots = len(policy.prefix) + backbone.row + policy.width
                cache = kv.nbytes(cfg, games * samples.n_completions, slots, policy.dtype)
                cache /= _cache_ways(setup, cfg.n_kv_heads)
            found = cls(
                row=found.row,
                read=found.read + read,
                learnt=found.learnt + learnt,
                play_flops=found.play_flops + 2.0 * cfg.n_params * read,
                learn_flops=found.learn_flops + 6.0 * cfg.n_params * learnt,
                cache=max(found.cache, cache),
            )
        return found


def _cache_ways(setup: Setup, heads: int) -> int:
    sizes = setup.mesh.shape
    return sizes["data"] * sizes["fsdp"] * (sizes["tensor"] if heads % sizes["tensor"] == 0 else 1)
