"""Success on Lookup by method of fusion and by the inputs that a model gets.

    python -m benchmarks.fusion                                     # all methods and inputs, two seeds
    python -m benchmarks.fusion --methods=interleaved --inputs=both --steps=100

Trains the model of `experiments/fusion.py` by imitation, on questions of all three kinds, and measures questions whose
answer needs both inputs: greedy answers to fresh questions, with Wilson intervals. All seeds of a row train in one
program. The right answer is 1 of 6 values, so a model that reads one input only can reach 16.7 %.
"""

from __future__ import annotations

import argparse
import dataclasses
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from experiments import fusion
from marl_jax import setup as setups
from marl_jax.agents import prompt_media
from marl_jax.evaluation.intervals import wilson
from marl_jax.setup.games import GameSetup


@dataclasses.dataclass(frozen=True)
class Row:
    """Numbers of right answers by kind of question after each tenth of the training, int [seeds, 10]."""

    both: np.ndarray
    tone: np.ndarray
    questions: int


def measure(form: str, seeds: int, steps: int, rate: float, batch: int = 256, questions: int = 1024) -> Row:
    """Train and evaluate one form of `experiments/fusion.py`."""
    config = fusion.get_config(form)
    setup = setups.make(config)
    assert isinstance(setup, GameSetup)
    backbone = setup.team.backbones[0]
    policy, model, prompt = backbone.policy, backbone.model, backbone.game_prompt
    assert policy.medium is not None and not policy.prefix
    medium, ids = policy.medium, jnp.asarray(prompt.action_ids[:, 0])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def scores(params, states):
        """Return the logits of all answers, float32 [B, A]."""
        tokens, lengths = jax.vmap(lambda state: prompt.opening(state, jnp.int32(0)))(states)
        codes = jax.vmap(lambda state: medium.codes(state, 0))(states)
        seen = prompt_media.inputs(policy, params, codes, tokens, jnp.arange(tokens.shape[1]))
        hidden, _ = model.forward(params, tokens, lengths=lengths, dtype=policy.dtype, **seen)
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
        return model.logits(params, last, ids)

    def train(seed):
        key = jax.random.key(seed)

        def drawn(key, game, count):
            return jax.vmap(game.reset)(jax.random.split(key, count))

        def step(carry, key):
            params, state = carry
            states = drawn(key, setup.game, batch)
            right = jax.vmap(setup.game.right)(states)

            def loss(params):
                return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, states), right))

            changes, state = optimizer.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, changes), state), None

        params = model.init(jax.random.fold_in(key, 1))
        start = (params, optimizer.init(params))
        games = [dataclasses.replace(setup.game, questions=kind) for kind in ("value", "tone")]
        fresh = [drawn(jax.random.fold_in(key, 3), game, questions) for game in games]
        asked = jax.tree.map(lambda *x: jnp.concatenate(x), *fresh)

        def tenth(carry, keys):
            carry, _ = jax.lax.scan(step, carry, keys)
            right = jnp.argmax(scores(carry[0], asked), axis=1) == jax.vmap(setup.game.right)(asked)
            return carry, jnp.sum(right.reshape(2, questions), axis=1)

        keys = jax.random.split(jax.random.fold_in(key, 2), (10, steps // 10))
        return jax.lax.scan(tenth, start, keys)[1]

    right = jax.device_get(jax.jit(lambda seeds: jax.lax.map(train, seeds))(jnp.arange(seeds)))
    return Row(right[..., 0], right[..., 1], questions)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(fusion.METHODS), help="methods of fusion")
    parser.add_argument("--inputs", nargs="+", default=list(fusion.INPUTS), help="inputs that the model gets")
    parser.add_argument("--board", default="table", help="table or picture")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--steps", type=int, default=600, help="number of updates of 256 questions")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    args = parser.parse_args()
    print(
        "| fusion | inputs | answers that need both, by seed | number of the tone, by seed | after each tenth | seconds |"
    )
    print("| --- | --- | --- | --- | --- | --- |")
    for method in args.methods:
        for inputs in args.inputs:
            began = time.perf_counter()
            row = measure(f"{method}+{inputs}+{args.board}", args.seeds, args.steps, args.rate)
            cells = (", ".join(_share(int(x[-1]), row.questions) for x in counts) for counts in (row.both, row.tone))
            curves = "; ".join(" ".join(f"{100 * x / row.questions:.0f}" for x in one) for one in row.both)
            print(
                f"| {method} | {inputs} | {' | '.join(cells)} | {curves} | {time.perf_counter() - began:.0f} |",
                flush=True,
            )


def _share(right: int, questions: int) -> str:
    share, low, high = wilson(right, questions)
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    main()
