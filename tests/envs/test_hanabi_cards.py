"""What fireworks and discards make of a card, against counting by hand; how games end; kinds of actions."""

import jax
import jax.numpy as jnp
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games import registry
from envs.games.hanabi import cards
from envs.games.hanabi.rules import copies

GAME = registry.make("hanabi", preset="small")
_prospects = jax.jit(lambda state: cards.prospects(GAME, state, jnp.arange(-1, GAME.max_score)))
START = jax.jit(GAME.reset)(jax.random.key(0))


@st.composite
def piles(draw):
    """Random consistent fireworks and discards: cards that were built are not in the discard pile."""
    fireworks = [draw(st.integers(0, GAME.ranks)) for _ in range(GAME.colors)]
    discards = [
        [draw(st.integers(0, n - (rank < level))) for rank, n in enumerate(copies(GAME.ranks))] for level in fireworks
    ]
    return fireworks, discards


@settings(max_examples=60, deadline=None)
@given(piles())
def test_prospects_are_those_of_counting_by_hand(found):
    fireworks, discards = found
    state = START._replace(fireworks=jnp.array(fireworks, jnp.int8), discards=jnp.array(discards, jnp.int8))
    words = np.array(["none", "useless", "playable", "last", "other"])[np.asarray(_prospects(state))]
    assert words[0] == "none"
    for card in range(GAME.max_score):
        color, rank = divmod(card, GAME.ranks)
        left = [n - d for n, d in zip(copies(GAME.ranks), discards[color], strict=True)]
        if rank < fireworks[color] or any(left[r] == 0 for r in range(fireworks[color], rank + 1)):
            expected = "useless"
        elif rank == fireworks[color]:
            expected = "playable"
        else:
            expected = "last" if left[rank] == 1 else "other"
        assert words[1 + card] == expected


def test_endings_are_bombs_and_perfect_games():
    ended = GAME.endings(START._replace(lives=jnp.int32(0), fireworks=jnp.full(2, 3, jnp.int8)))
    assert {name: bool(flag) for name, flag in ended.items()} == {"bomb_rate": True, "perfect_rate": False}
    ended = GAME.endings(START._replace(fireworks=jnp.full(2, 5, jnp.int8)))
    assert {name: bool(flag) for name, flag in ended.items()} == {"bomb_rate": False, "perfect_rate": True}


def test_every_action_is_of_the_kind_that_its_words_say():
    game = registry.make("hanabi", players=3)
    verbs = {"discard": "discard", "play": "play", "tell": "hint"}
    assert game.action_kinds == tuple(verbs[words.split()[0]] for words in game.action_texts)
    assert registry.make("tic_tac_toe").action_kinds == ()
