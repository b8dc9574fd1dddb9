"""Greedy answers of a policy without the mask: how often they name a legal action.

During training, a constrained completion is sampled among the names of legal actions only. Programs that use an
exported policy have no mask.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from envs.games.bots import UniformBot
from envs.games.game import Game, keep_if_done
from marl_jax.agents.answers import Constrained
from marl_jax.agents.team import Backbone


def legal_answer_rate(
    game: Game, backbone: Backbone, params: dict, positions: int = 512, seed: int = 0
) -> float | None:
    """Return the fraction of greedy answers that begin with the name of a legal action.

    Args:
        game: The game.
        backbone: Model, prompt and completion format of the policy.
        params: Parameters of the model, with merged adapters.
        positions: Number of positions, from random games.
        seed: Random seed of the positions.

    Returns:
        The fraction, or None if completions are free text.
    """
    answers = backbone.policy.answers
    if not isinstance(answers, Constrained):
        return None
    states = random_positions(game, positions, jax.random.key(seed))
    width, choices = answers.width, answers.choices

    def answer(params, states):
        seats = jax.vmap(game.player)(states)
        tokens, lengths = jax.vmap(backbone.game_prompt.opening)(states, seats)
        tokens = jnp.pad(tokens, ((0, 0), (0, width)))
        rows = jnp.arange(positions)
        for step in range(width):  # names are short, so the prompt is read again for every token
            hidden, _ = backbone.model.forward(params, tokens, lengths=lengths + step, dtype=backbone.policy.dtype)
            logits = backbone.model.logits(params, hidden[rows, lengths + step - 1])
            tokens = tokens.at[rows, lengths + step].set(jnp.argmax(logits, axis=-1).astype(tokens.dtype))
        said = tokens[rows[:, None], lengths[:, None] + jnp.arange(width)]  # [B, W]
        named = jnp.all((choices.ids < 0) | (choices.ids == said[:, None]), axis=-1)  # [B, A]
        return jnp.mean(jnp.any(named & jax.vmap(game.legal)(states), axis=1))

    return float(jax.jit(answer)(params, states))


def random_positions(game: Game, n: int, key: jax.Array):
    """Return unfinished positions after a random number of random moves, in n rows."""
    bot = UniformBot(game)

    def one(key):
        deal, length, *keys = jax.random.split(key, game.max_turns + 2)
        turns = jax.random.randint(length, (), 0, game.max_turns)

        def turn(state, step):
            number, key = step
            after, _ = game.step(state, bot.act(state, key))
            stays = (number >= turns) | game.done(after)
            return keep_if_done(stays, state, after), None

        return jax.lax.scan(turn, game.reset(deal), (jnp.arange(game.max_turns), jnp.stack(keys)))[0]

    return jax.jit(jax.vmap(one))(jax.random.split(key, n))
