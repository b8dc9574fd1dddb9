"""Success on Lookup by method of fusion and by the inputs that a model gets.

    python -m benchmarks.fusion                                     # all methods and inputs, two seeds
    python -m benchmarks.fusion --methods=interleaved --inputs=both --steps=100

Trains the model of `experiments/fusion.py` by imitation, on questions of all three kinds, and measures questions whose
answer needs both inputs: greedy answers to fresh questions, with Wilson intervals. All cases of a method train in
one program. The right answer is 1 of 6 values, so a model that reads one input only can reach 16.7 %.
"""

from __future__ import annotations

import argparse
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax

from envs.games.lookup.rules import Lookup
from envs.games.registry import make_medium
from experiments import fusion
from marl_jax import setup as setups
from marl_jax.agents import prompt_media
from marl_jax.evaluation.intervals import wilson
from marl_jax.setup.games import GameSetup

BATCH, QUESTIONS = 128, 1024
"""Questions of an update and of an evaluation."""


def measure(method: str, board: str, inputs: list[str], seeds: int, steps: int, rate: float) -> np.ndarray:
    """Train and evaluate a method of fusion, with all inputs and seeds in one program.

    Returns:
        Right answers after each tenth of the training, int [inputs, seeds, 10, 2]: to questions that need both inputs,
        and to questions about the tone.
    """
    config = fusion.get_config(f"{method}+both+{board}")
    setup = setups.make(config)
    assert isinstance(setup, GameSetup) and isinstance(setup.game, Lookup)
    game = setup.game
    backbone = setup.team.backbones[0]
    policy, model, prompt = backbone.policy, backbone.model, backbone.game_prompt
    assert policy.medium is not None and not policy.prefix
    hiding = [dataclasses.replace(game, hidden=fusion.INPUTS[name]) for name in inputs]
    media, ids = [make_medium(other, config.env.text) for other in hiding], jnp.asarray(prompt.action_ids[:, 0])
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(rate))

    def scores(params, states, shown):
        """Return the logits of all answers, float32 [B, A], given the media of index `shown`."""
        tokens, lengths = jax.vmap(lambda state: prompt.opening(state, jnp.int32(0)))(states)
        codes = jax.vmap(lambda state: jnp.stack([medium.codes(state, 0) for medium in media])[shown])(states)
        seen = prompt_media.inputs(policy, params, codes, tokens, jnp.arange(tokens.shape[1]))
        hidden, _ = model.forward(params, tokens, lengths=lengths, dtype=policy.dtype, **seen)
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
        return model.logits(params, last, ids)

    def train(case):
        shown, seed = case
        key = jax.random.key(seed)

        def drawn(key, game, count):
            return jax.vmap(game.reset)(jax.random.split(key, count))

        def step(carry, key):
            params, state = carry
            states = drawn(key, game, BATCH)
            right = jax.vmap(game.right)(states)

            def loss(params):
                return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, states, shown), right))

            changes, state = optimizer.update(jax.grad(loss)(params), state)
            return (optax.apply_updates(params, changes), state), None

        params = model.init(jax.random.fold_in(key, 1))
        start = (params, optimizer.init(params))
        kinds = [dataclasses.replace(game, questions=kind) for kind in ("value", "tone")]
        fresh = [drawn(jax.random.fold_in(key, 3), kind, QUESTIONS) for kind in kinds]
        tests = jax.tree.map(lambda *x: jnp.concatenate(x), *fresh)

        def tenth(carry, keys):
            carry, _ = jax.lax.scan(step, carry, keys)
            right = jnp.argmax(scores(carry[0], tests, shown), axis=1) == jax.vmap(game.right)(tests)
            return carry, jnp.sum(right.reshape(2, QUESTIONS), axis=1)

        keys = jax.random.split(jax.random.fold_in(key, 2), (10, steps // 10))
        return jax.lax.scan(tenth, start, keys)[1]

    cases = tuple(jnp.indices((len(inputs), seeds)).reshape(2, -1))
    right = jax.device_get(jax.jit(lambda cases: jax.lax.map(train, cases))(cases))
    return right.reshape(len(inputs), seeds, 10, 2)


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(fusion.METHODS), help="methods of fusion")
    parser.add_argument("--inputs", nargs="+", default=list(fusion.INPUTS), help="inputs that the model gets")
    parser.add_argument("--board", default="table", help="table or picture")
    parser.add_argument("--seeds", type=int, default=2, help="number of seeds")
    parser.add_argument("--steps", type=int, default=1200, help="number of updates of 128 questions")
    parser.add_argument("--rate", type=float, default=2e-3, help="learning rate")
    args = parser.parse_args()
    print("| fusion | inputs | seed | answers that need both | number of the tone | answers after each tenth |")
    print("| --- | --- | ---: | --- | --- | --- |", flush=True)
    for method in args.methods:
        right = measure(method, args.board, args.inputs, args.seeds, args.steps, args.rate)
        for name, by_seed in zip(args.inputs, right, strict=True):
            for seed, curve in enumerate(by_seed):
                course = " ".join(f"{100 * x / QUESTIONS:.0f}" for x in curve[:, 0])
                cells = (method, name, str(seed), _share(curve[-1, 0]), _share(curve[-1, 1]), course)
                print(f"| {' | '.join(cells)} |", flush=True)


def _share(right: int) -> str:
    share, low, high = wilson(int(right), QUESTIONS)
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    main()
