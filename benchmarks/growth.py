"""Scaling of time and memory of a training step, as JSON lines.

    python -m benchmarks.growth                                     # defaults for this machine
    python -m benchmarks.growth --model=smollm2-135m --out=growth   # also writes growth.jsonl, growth.md and growth.svg

Weights are random with published shapes, and tokens are bytes. A case runs the two programs of training, rollout and
update, on one device after a warm-up. `play_s` and `learn_s` are medians. `play_gib` and `learn_gib` are the memory
that the compiler reserves for arguments, temporaries and results. `peak_gib` in the last line is the peak memory of the
device. One quantity grows at a time from the same base:

rows        parallel games, x1, x2, x4, x8 (PPO, two-player Hanabi)
sequence    the same prompts, padded to x1, x2, x4, x8 tokens
players     Hanabi with 2 to 5 players
candidates  K of AT-GRPO, 1 to 16 completions per prompt (Plan-Path, planner and executor)
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from ml_collections import ConfigDict

from configs import algorithms, defaults
from experiments.tables.charts import Curve, curve_chart
from marl_jax import setup as setups
from marl_jax.dryrun import programs
from marl_jax.learning.learn_step import all_weights, optimizer_for
from marl_jax.learning.update import new_train_state
from marl_jax.rollouts.games import GameRollout
from models import registry, tokenizers

TIMES, PLAYERS, CANDIDATES = (1, 2, 4, 8), (2, 3, 4, 5), (1, 2, 4, 8, 16)
COLUMNS = ("play_s", "learn_s", "play_gib", "learn_gib")


@dataclasses.dataclass(frozen=True)
class Case:
    """A config in which `kind` has grown to `size`; rows are padded `longer` times."""

    kind: str
    size: int
    config: ConfigDict
    longer: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Longer(GameRollout):
    """A rollout with rows that are padded to `longer` times their length."""

    longer: int = 1

    def _look(self, games):
        """Return observations with padded prompts."""
        seen = super()._look(games)
        more = (self.longer - 1) * seen.prompts.shape[1]
        return dataclasses.replace(seen, prompts=jnp.pad(seen.prompts, ((0, 0), (0, more))))


def base(args, game: str) -> ConfigDict:
    """Return the base config."""
    config = defaults.get_config()
    if game == "hanabi":
        config.env = defaults.environment("hanabi", preset="small", players=2)
    else:
        config.env = defaults.environment("plan_path", roles="two", budget=12, size=5)
        config.algo = algorithms.at_grpo(4)
    if args.model != "tiny":
        config.model.update(dict(name=args.model, shape={}, dtype="bfloat16", remat="full"))
    config.env.update(dict(text="brief", style="plain"))
    config.rollout.update(dict(num_envs=args.games, unroll_length=args.turns))
    config.algo.update(dict(epochs=1, minibatches=2))
    config.mesh.update(dict(data=1, fsdp=1, tensor=1))
    return config


def cases(args) -> Iterator[Case]:
    """Yield all cases."""
    for times in TIMES:
        config = base(args, "hanabi")
        config.rollout.num_envs *= times
        yield Case("rows", times, config)
    for times in TIMES:
        yield Case("sequence", times, base(args, "hanabi"), longer=times)
    for players in PLAYERS:
        config = base(args, "hanabi")
        config.env.params.players = players
        yield Case("players", players, config)
    for k in CANDIDATES:
        config = base(args, "plan_path")
        config.algo.group_size = k
        yield Case("candidates", k, config)


def find(config: ConfigDict):
    """Return the registered shape without weights, and the byte tokenizer, which needs no files."""
    cfg = registry.get(config.name).config
    return dataclasses.replace(cfg, **config.shape.to_dict()), None, tokenizers.load("bytes")


@dataclasses.dataclass(frozen=True)
class Ready:
    """A case with compiled programs."""

    case: Case
    setup: setups.Setup
    rollout: GameRollout
    optimizer: object
    state: programs.AbstractState
    play: jax.stages.Compiled
    learn: jax.stages.Compiled


def compiled(case: Case) -> Ready:
    """Compile the programs of a case for the first device."""
    setup = setups.make(case.config, jax.devices()[:1], find)
    rollout = setup.rollout
    if case.longer > 1:
        settings = {field.name: getattr(rollout, field.name) for field in dataclasses.fields(rollout)}
        rollout = Longer(**settings, longer=case.longer)
    optimizer = optimizer_for(setup.config)
    state = programs.abstract_state(setup, rollout, optimizer)
    traced = programs.trace_play(setup, rollout, state)
    play = programs.compiled(setup, traced)
    samples = programs.results_of(traced, play)[0]
    learn = programs.compiled(setup, programs.trace_learn(setup, optimizer, state, samples))
    return Ready(case, setup, rollout, optimizer, state, play, learn)


def measure(compiled_case: Ready, repeats: int) -> dict:
    """Return time and memory of one case."""
    place = lambda tree, like: jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), tree, like)  # noqa: E731
    key = jax.random.key(0)
    backbones = compiled_case.setup.backbones
    train_states = {
        backbone.name: new_train_state(*backbone.weights_at_start(), compiled_case.optimizer) for backbone in backbones
    }
    train_states = place(train_states, compiled_case.state.train_states)
    state = place(jax.jit(compiled_case.rollout.init)(key, all_weights(train_states)), compiled_case.state.rollout)
    key = place(key, compiled_case.state.key)
    laps = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        samples, state, _ = compiled_case.play(all_weights(train_states), state, key)
        jax.block_until_ready(samples)
        middle = time.perf_counter()
        train_states, metrics = compiled_case.learn(train_states, samples, key)
        jax.block_until_ready((train_states, metrics))
        laps.append((middle - start, time.perf_counter() - middle))
    play_s, learn_s = np.median(laps[1:], axis=0).tolist()
    return dict(
        kind=compiled_case.case.kind, size=compiled_case.case.size, model=compiled_case.case.config.model.name,
        games=compiled_case.case.config.rollout.num_envs, turns=compiled_case.case.config.rollout.unroll_length,
        row=samples.tokens.shape[-1], device=jax.devices()[0].device_kind,
        play_s=play_s, learn_s=learn_s, play_gib=reserved(compiled_case.play), learn_gib=reserved(compiled_case.learn),
    )  # fmt: skip


def reserved(program: jax.stages.Compiled) -> float:
    """Return the GiB that the compiler reserves for a program."""
    m = program.memory_analysis()
    size = m.argument_size_in_bytes + m.temp_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes
    return size / 2**30


def markdown(figures: list[dict]) -> str:
    """Return the measurements as a table, with multiples of the smallest case in parentheses."""
    head = ("grows", "to", "tokens a row", "rollout, s", "update, s", "rollout, GiB", "update, GiB")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in figures:
        first = next(other for other in figures if other["kind"] == row["kind"])
        cells = [f"{row[column]:.3g} (x{row[column] / first[column]:.2g})" for column in COLUMNS]
        size = f"x{row['size']}" if row["kind"] in ("rows", "sequence") else row["size"]
        lines.append(f"| {row['kind']} | {size} | {row['row']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(figures: list[dict]) -> str:
    """Return a chart of time and memory as multiples of the smallest case."""
    names = {"play_s": "rollout, time", "learn_s": "update, time", "learn_gib": "update, memory"}
    panels = {}
    for kind in dict.fromkeys(row["kind"] for row in figures):
        rows = [row for row in figures if row["kind"] == kind]
        x = [row["size"] for row in rows]
        panels[kind] = [Curve(name, x, [row[c] / rows[0][c] for row in rows]) for c, name in names.items()]
    return curve_chart(panels, "")


def main():
    """Run the cases and print JSON lines and a table."""
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m" if gpu else "tiny")
    parser.add_argument("--games", type=int, default=64 if gpu else 16)
    parser.add_argument("--turns", type=int, default=8 if gpu else 4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default="rows,sequence,players,candidates")
    parser.add_argument("--out", default="", help="Path prefix of the .jsonl, .md and .svg files")
    args = parser.parse_args()
    wanted = [case for case in cases(args) if case.kind in args.kinds.split(",")]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # compile concurrently before measuring
        compiled_cases = list(pool.map(compiled, wanted))
    figures = []
    for case in compiled_cases:
        figures.append(measure(case, args.repeats))
        short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in figures[-1].items()}
        print(json.dumps(short), flush=True)
    stats = jax.devices()[0].memory_stats() or {}
    print(json.dumps(dict(kind="all", peak_gib=stats.get("peak_bytes_in_use", 0) / 2**30)))
    print(markdown(figures))
    if args.out:
        Path(f"{args.out}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in figures))
        Path(f"{args.out}.md").write_text(markdown(figures))
        Path(f"{args.out}.svg").write_text(picture(figures))


if __name__ == "__main__":
    main()
