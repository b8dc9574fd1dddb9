"""The referential game: who sees what, and how often optimal players name the card."""

import itertools

import jax
import jax.numpy as jnp
import pytest

from envs.games import view
from envs.games.referential.bots import OptimalBot
from envs.games.referential.rules import LISTENER, SPEAKER
from envs.games.registry import make, make_text

pytestmark = pytest.mark.quick


def start(game, card):
    return game.reset(jax.random.key(0))._replace(card=jnp.int32(card))


def solved(game, card, actor):
    state = start(game, card)
    while not game.done(state):
        state, reward = game.step(state, actor(state))
    assert bool(reward.team) == bool(game.success(state))
    return bool(game.success(state))


@pytest.mark.parametrize("messages", [0, 2, 5])
def test_the_optimal_bot_names_as_many_cards_as_there_are_messages(messages):
    game = make("referential", messages=messages)
    bot = OptimalBot(game)
    right = sum(solved(game, card, lambda s: bot.act(s, jax.random.key(0))) for card in range(16))
    assert right == max(messages, 1)


def test_no_pair_of_strategies_does_better():
    game = make("referential", cards=3, messages=2)
    best = 0
    for said, named in itertools.product(itertools.product(range(2), repeat=3), itertools.product(range(3), repeat=2)):
        act = lambda s, a=said, b=named: jnp.int32(a[s.card] if s.message < 0 else 2 + b[s.message])  # noqa: E731
        best = max(best, sum(solved(game, card, act) for card in range(3)))
    assert best == 2


@pytest.mark.parametrize("style", ["full", "compact", "brief"])
@pytest.mark.parametrize("messages", [0, 2])
def test_the_listener_does_not_see_the_card(style, messages):
    game = make("referential", messages=messages)
    text, states = make_text(game, style), [start(game, card) for card in range(16)]
    if messages:
        states = [game.step(state, jnp.int32(1))[0] for state in states]
    seen = {(text.observe(s, LISTENER), view.board(game, s, LISTENER), view.svg(game, s, LISTENER)) for s in states}
    assert len(seen) == 1
    assert len({text.observe(state, SPEAKER) for state in states}) == 16
    assert all(game.player(state) == LISTENER for state in states)


@pytest.mark.parametrize(("field", "value"), [("cards", 1), ("cards", 27), ("messages", 11)])
def test_bad_parameters_are_named(field, value):
    with pytest.raises(ValueError, match=f"referential: {field} is {value}, but must be an integer from"):
        make("referential", **{field: value})
