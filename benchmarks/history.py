"""Time and memory of a Hanabi training step by context and text style.

    python -m benchmarks.history                                # SmolLM2-135M's shape, the full two-player game
    python -m benchmarks.history --model=tiny --games=8 --turns=6 --tokenizer=bytes    # a CPU

Weights are random, so games end earlier than those of a trained policy and there are more opening prompts. Each time is
the median of `--repeats` steps after the first two. `read_per_decision` is the number of tokens per decision after the
rules, which are prefilled once. `update_tokens` is the number of tokens in the update, including padding.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import jax
import numpy as np
from ml_collections import ConfigDict

from benchmarks.sampler import report
from experiments import hanabi_selfplay
from marl_jax import setup as setups
from marl_jax.learning.learn_step import all_weights, optimizer_for
from marl_jax.setup.train_programs import at_start, programs
from models import registry, tokenizers

GIB = 2**30


def make_config(args, context: str, text: str) -> ConfigDict:
    """Return the config of Hanabi self-play with another context and text style."""
    config = hanabi_selfplay.get_config("scratch" if args.model == "tiny" else "scratch+smollm2")
    config.model.name, config.model.weights = args.model, "random"
    config.env.update(dict(context=context, text=text, history_turns=args.history_turns))
    config.env.params.preset = "full"
    config.rollout.update(dict(num_envs=args.games, unroll_length=args.turns))
    config.algo.update(dict(minibatches=args.minibatches, grad_accum_steps=args.grad_accum_steps))
    if context == "history":
        config.env.history_tokens = args.history_tokens
    config.model.remat = args.remat
    return config


def measure(args, context: str, text: str) -> dict:
    """Return the figures of one case."""

    def find(config: ConfigDict):
        """Return the shape of the model without weights, and the tokenizer."""
        cfg = dataclasses.replace(registry.get(config.name).config, **config.shape.to_dict())
        return cfg, None, tokenizers.load(args.tokenizer)

    config = make_config(args, context, text)
    setup = setups.make(config, jax.devices()[:1], find)
    rollout, optimizer = setup.rollout, optimizer_for(config)
    key, laps = jax.random.key(0), []
    with jax.set_mesh(setup.mesh):
        states, rollout_state = at_start(setup, rollout, optimizer, key)
        roll, learn, _ = programs(setup, rollout, optimizer, states, rollout_state)
        began = time.perf_counter()
        for step in range(args.repeats + 2):
            step_key = jax.random.fold_in(key, step)
            start = time.perf_counter()
            samples, rollout_state, metrics = roll(all_weights(states), rollout_state, step_key)
            jax.block_until_ready(samples.tokens)
            middle = time.perf_counter()
            states, more = learn(states, samples, step_key)
            metrics = jax.device_get({**metrics, **more})
            laps.append((middle - start, time.perf_counter() - middle))
            if step == 0:
                compile_s = time.perf_counter() - began
    play, update = (statistics.median(lap[i] for lap in laps[2:]) for i in (0, 1))
    rows, row = samples.tokens.shape
    kept = rows if context == "history" else rows - config.rollout.num_envs * setup.game.n_players
    decisions = config.rollout.num_envs * (config.rollout.unroll_length + setup.game.n_players)
    peak = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use", 0)
    read = float(np.sum(np.asarray(samples.lengths))) / decisions
    played = np.asarray(samples.completion_lengths) > 0
    dropped = played & (np.asarray(samples.loss_weights) == 0)
    return dict(
        context=context, text=text, step_s=play + update, rollout_s=play, update_s=update,
        prompt=float(metrics["prompt_length"]), read_per_decision=read, rows=kept, row=row, update_tokens=kept * row,
        peak_gib=peak / GIB, compile_s=compile_s, game_length=float(metrics["game_length"]),
        logprob_diff=float(metrics["logprob_diff"]), not_learned=int(dropped.sum()), answers=int(played.sum()),
    )  # fmt: skip


def main() -> None:
    """Print a JSON line for each case."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--tokenizer", default="smollm2-135m", help="Name of a model, or folder with tokenizer files")
    parser.add_argument("--games", type=int, default=128)
    parser.add_argument("--turns", type=int, default=24)
    parser.add_argument("--cases", default="turn/full,turn/compact,history/full,history/compact")
    parser.add_argument("--history_turns", type=int, default=13)
    parser.add_argument("--history_tokens", type=int, default=0)
    parser.add_argument("--minibatches", type=int, default=4)
    parser.add_argument("--grad_accum_steps", type=int, default=8)
    parser.add_argument("--remat", default="full")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    for case in args.cases.split(","):
        report(**measure(args, *case.split("/")))


if __name__ == "__main__":
    main()
