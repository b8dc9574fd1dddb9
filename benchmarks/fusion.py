"""Success on Lookup by method of fusion and by the inputs that a model gets.

    python -m benchmarks.fusion                                     # all methods and inputs, two seeds
    python -m benchmarks.fusion --methods=interleaved --inputs=both --steps=100

Trains the model of `experiments/fusion.py` by imitation, on questions of all three kinds and on tables whose values may
repeat. Measures greedy answers to fresh questions that need both inputs, with Wilson intervals. Their values are a
permutation, so a model that reads one input only can reach 1 of 6, 16.7 %.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np
import optax

from envs.games.lookup.rules import TONE, Lookup
from envs.games.registry import make_medium
from experiments import fusion
from marl_jax import setup as setups
from marl_jax.agents import prompt_media
from marl_jax.evaluation.intervals import wilson
from marl_jax.setup.games import GameSetup

BATCH, QUESTIONS = 128, 1024
"""Questions of an update and of an evaluation."""


def trainer(
    method: str, board: str, inputs: list[str], steps: int, rate: float, repeats: bool = True
) -> Callable[[int, int], Iterator]:
    """Return the training with a method of fusion.

    Args:
        method: One of `fusion.METHODS`.
        board: One of `fusion.BOARDS`.
        inputs: Names from `fusion.INPUTS`.
        steps: Number of updates.
        rate: Highest learning rate.
        repeats: Whether values may repeat in the tables of the training.

    Returns:
        Function of an index of `inputs` and a seed. It trains a model, and yields its right answers after each tenth of
        the training: the number of those to questions that need both inputs, and of those about the tone.
    """
    config = fusion.get_config(f"{method}+both+{board}")
    config.env.params.repeats = repeats
    setup = setups.make(config)
    assert isinstance(setup, GameSetup) and isinstance(setup.game, Lookup)
    game, backbone = setup.game, setup.team.backbones[0]
    policy, model, prompt = backbone.policy, backbone.model, backbone.game_prompt
    assert policy.medium is not None and not policy.prefix
    hiding = [dataclasses.replace(game, hidden=fusion.INPUTS[name]) for name in inputs]
    media = [make_medium(other, config.env.text) for other in hiding]
    ids = jnp.asarray(prompt.action_ids[:, 0])
    schedule = optax.warmup_cosine_decay_schedule(0.0, rate, steps // 15, steps, 0.05 * rate)
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(schedule))

    def scores(params, states, shown):
        """Return the logits of all answers, float32 [B, A], given the media of index `shown`."""
        tokens, lengths = jax.vmap(lambda state: prompt.opening(state, jnp.int32(0)))(states)
        codes = jax.vmap(lambda state: jnp.stack([medium.codes(state, 0) for medium in media])[shown])(states)
        seen = prompt_media.inputs(policy, params, codes, tokens, jnp.arange(tokens.shape[1]), lengths)
        hidden, _ = model.forward(params, tokens, lengths=lengths, dtype=policy.dtype, **seen)
        last = jnp.take_along_axis(hidden, lengths[:, None, None] - 1, axis=1)[:, 0]
        return model.logits(params, last, ids)

    @jax.jit
    def update(params, state, states, shown):
        right = jax.vmap(game.right)(states)

        def loss(params):
            return jnp.mean(optax.softmax_cross_entropy_with_integer_labels(scores(params, states, shown), right))

        changes, state = optimizer.update(jax.grad(loss)(params), state)
        return optax.apply_updates(params, changes), state

    @jax.jit
    def count_right(params, states, shown):
        return jnp.sum(jnp.argmax(scores(params, states, shown), axis=1) == jax.vmap(game.right)(states))

    def drawer(game):
        return jax.jit(lambda key: jax.vmap(game.reset)(jax.random.split(key, BATCH)))

    draw, draw_both = drawer(game), drawer(dataclasses.replace(game, questions="value", repeats=False))

    def evaluate(params, shown, key):
        counts = np.zeros(2, int)
        for part in jax.random.split(key, QUESTIONS // BATCH):
            states = draw_both(part)
            tones = states._replace(question=jnp.full_like(states.question, TONE))
            counts += [int(count_right(params, questions, shown)) for questions in (states, tones)]
        return counts

    def train(shown, seed):
        key = jax.random.key(seed)
        params = jax.jit(model.init)(jax.random.fold_in(key, 1))
        state = optimizer.init(params)
        for step, part in enumerate(jax.random.split(jax.random.fold_in(key, 2), steps), 1):
            params, state = update(params, state, draw(part), shown)
            if step % (steps // 10) == 0:
                yield evaluate(params, shown, jax.random.fold_in(key, 3))

    return train


def main() -> None:
    """Measure and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--methods", nargs="+", default=list(fusion.METHODS), help="methods of fusion")
    parser.add_argument("--inputs", nargs="+", default=list(fusion.INPUTS), help="inputs that the model gets")
    parser.add_argument("--board", default="table", help="table or picture")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], help="random seeds")
    parser.add_argument("--steps", type=int, default=300, help="number of updates of 128 questions, at least 10")
    parser.add_argument("--rate", type=float, default=3e-3, help="highest learning rate")
    parser.add_argument("--distinct", action="store_true", help="train on permutations only")
    args = parser.parse_args()
    print("| fusion | inputs | seed | answers that need both | number of the tone | answers after each tenth |")
    print("| --- | --- | ---: | --- | --- | --- |", flush=True)
    for method in args.methods:
        train = trainer(method, args.board, args.inputs, args.steps, args.rate, not args.distinct)
        for shown, name in enumerate(args.inputs):
            for seed in args.seeds:
                curve = list(train(shown, seed))
                course = " ".join(f"{100 * both / QUESTIONS:.0f}" for both, _ in curve)
                cells = (method, name, str(seed), *map(_share, curve[-1]), course)
                print(f"| {' | '.join(cells)} |", flush=True)


def _share(right: int) -> str:
    share, low, high = wilson(int(right), QUESTIONS)
    return f"{100 * share:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


if __name__ == "__main__":
    main()
