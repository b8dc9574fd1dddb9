"""How time and memory of a training step grow with rows, sequence, players and candidates, as one JSON line per case.

    python -m benchmarks.growth                                     # what suits this machine
    python -m benchmarks.growth --model=smollm2-135m --out=growth   # growth.jsonl, growth.md and growth.svg besides

Random weights in published shapes, bytes for tokens. A case is the two programs of `train.py`, rollout and update, run
on one device after a warm-up: `play_s` and `learn_s` are medians, `play_gib` and `learn_gib` what the compiler reserves
(arguments, temporaries and results). `peak_gib`, in the last line, is what the device saw at its fullest. One thing
grows at a time, from the same base:

rows        games played at once, x1, x2, x4, x8 (PPO, Hanabi of two players)
sequence    the same prompts, padded to x1, x2, x4, x8 tokens
players     Hanabi of 2 to 5 players
candidates  K of AT-GRPO, 1 to 16 answers to each prompt (Plan-Path, planner and executor)
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
    """`kind` grows to `size`; rows are padded to `longer` times their length."""

    kind: str
    size: int
    config: ConfigDict
    longer: int = 1


@dataclasses.dataclass(frozen=True, eq=False)
class Longer(GameRollout):
    """A rollout whose rows have `longer` times the tokens they need."""

    longer: int = 1

    def _look(self, games):
        seen = super()._look(games)
        more = (self.longer - 1) * seen.prompts.shape[1]
        return dataclasses.replace(seen, prompts=jnp.pad(seen.prompts, ((0, 0), (0, more))))


def base(args, game: str) -> ConfigDict:
    """The config that everything grows from."""
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
    """Everything that is measured."""
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
    """The registered shape and no weights; bytes for tokens, so that no files are needed."""
    cfg = registry.get(config.name).config
    return dataclasses.replace(cfg, **config.shape.to_dict()), None, tokenizers.load("bytes")


@dataclasses.dataclass(frozen=True)
class Ready:
    """A case with its programs compiled."""

    case: Case
    setup: setups.Setup
    rollout: GameRollout
    optimizer: object
    state: programs.AbstractState
    play: jax.stages.Compiled
    learn: jax.stages.Compiled


def compiled(case: Case) -> Ready:
    """The programs of a case for the first device."""
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


def measure(ready: Ready, repeats: int) -> dict:
    """Times and memory of one case."""
    place = lambda tree, like: jax.tree.map(lambda x, s: jax.device_put(x, s.sharding), tree, like)  # noqa: E731
    key = jax.random.key(0)
    backbones = ready.setup.backbones
    train_states = {
        backbone.name: new_train_state(*backbone.weights_at_start(), ready.optimizer) for backbone in backbones
    }
    train_states = place(train_states, ready.state.train_states)
    state = place(jax.jit(ready.rollout.init)(key, all_weights(train_states)), ready.state.rollout)
    key = place(key, ready.state.key)
    laps = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        samples, state, _ = ready.play(all_weights(train_states), state, key)
        jax.block_until_ready(samples)
        middle = time.perf_counter()
        train_states, metrics = ready.learn(train_states, samples, key)
        jax.block_until_ready((train_states, metrics))
        laps.append((middle - start, time.perf_counter() - middle))
    play_s, learn_s = np.median(laps[1:], axis=0).tolist()
    return dict(
        kind=ready.case.kind, size=ready.case.size, model=ready.case.config.model.name,
        games=ready.case.config.rollout.num_envs, turns=ready.case.config.rollout.unroll_length,
        row=samples.tokens.shape[-1], device=jax.devices()[0].device_kind,
        play_s=play_s, learn_s=learn_s, play_gib=reserved(ready.play), learn_gib=reserved(ready.learn),
    )  # fmt: skip


def reserved(program: jax.stages.Compiled) -> float:
    """GiB that the compiler reserves for a program."""
    m = program.memory_analysis()
    size = m.argument_size_in_bytes + m.temp_size_in_bytes + m.output_size_in_bytes - m.alias_size_in_bytes
    return size / 2**30


def markdown(found: list[dict]) -> str:
    """The measurements as a table; in brackets, how many times those of the smallest case."""
    head = ("grows", "to", "tokens a row", "rollout, s", "update, s", "rollout, GiB", "update, GiB")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for row in found:
        first = next(other for other in found if other["kind"] == row["kind"])
        cells = [f"{row[column]:.3g} (x{row[column] / first[column]:.2g})" for column in COLUMNS]
        size = f"x{row['size']}" if row["kind"] in ("rows", "sequence") else row["size"]
        lines.append(f"| {row['kind']} | {size} | {row['row']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def picture(found: list[dict]) -> str:
    """Draw time and memory as multiples of the smallest case, one panel for everything that grows."""
    names = {"play_s": "rollout, time", "learn_s": "update, time", "learn_gib": "update, memory"}
    panels = {}
    for kind in dict.fromkeys(row["kind"] for row in found):
        rows = [row for row in found if row["kind"] == kind]
        x = [row["size"] for row in rows]
        panels[kind] = [Curve(name, x, [row[c] / rows[0][c] for row in rows]) for c, name in names.items()]
    return curve_chart(panels, "")


def main():
    gpu = jax.default_backend() == "gpu"
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m" if gpu else "tiny")
    parser.add_argument("--games", type=int, default=64 if gpu else 16)
    parser.add_argument("--turns", type=int, default=8 if gpu else 4)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--kinds", default="rows,sequence,players,candidates")
    parser.add_argument("--out", default="", help="beginning of the names of .jsonl, .md and .svg files")
    args = parser.parse_args()
    wanted = [case for case in cases(args) if case.kind in args.kinds.split(",")]
    with ThreadPoolExecutor(min(8, os.cpu_count() or 1)) as pool:  # compilers work side by side, before any clock runs
        ready = list(pool.map(compiled, wanted))
    found = []
    for case in ready:
        found.append(measure(case, args.repeats))
        short = {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found[-1].items()}
        print(json.dumps(short), flush=True)
    stats = jax.devices()[0].memory_stats() or {}
    print(json.dumps(dict(kind="all", peak_gib=stats.get("peak_bytes_in_use", 0) / 2**30)))
    print(markdown(found))
    if args.out:
        Path(f"{args.out}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in found))
        Path(f"{args.out}.md").write_text(markdown(found))
        Path(f"{args.out}.svg").write_text(picture(found))


if __name__ == "__main__":
    main()
