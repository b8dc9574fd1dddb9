"""Kuhn and Leduc poker against OpenSpiel over their whole trees; what seats know, texts, symmetries and drawings."""

import functools
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games import exact, view
from envs.games import text as texts
from envs.games.exact import ITERATIONS, EquilibriumBot
from envs.games.leduc.symmetry import LeducSymmetry
from envs.games.registry import make, make_text
from tests.conftest import examples, nightly_cases

pyspiel = pytest.importorskip("pyspiel")
SPIEL = {"kuhn": "kuhn_poker", "leduc": "leduc_poker"}
GAMES = tuple(SPIEL)


@functools.cache
def tree(name: str, **params) -> exact.GameTree:
    return exact.build(make(name, **params))


@functools.cache
def solution(name: str) -> np.ndarray:
    return exact.solve(tree(name), ITERATIONS)


@functools.cache
def spiel_names(name: str) -> tuple[str, ...]:
    """OpenSpiel's name of every information set of ours, found by walking both trees side by side.

    A history of OpenSpiel that has not dealt all cards yet is several of our nodes. Compared are movers, legal actions,
    returns, and that two histories are one information set here exactly where they are one there.
    """
    ours = tree(name)
    cards = np.asarray(jax.vmap(ours.game.deal)(jnp.arange(ours.game.n_deals)).cards)
    names, visited = {}, set()

    def walk(state, nodes, deals, dealt):
        visited.update(nodes.tolist())
        if state.is_chance_node():
            for card, probability in state.chance_outcomes():
                kept = cards[deals, dealt] == card
                assert probability == pytest.approx(kept.mean())
                walk(state.child(card), nodes[kept], deals[kept], dealt + 1)
        elif state.is_terminal():
            assert (ours.information[nodes] == -1).all()
            assert (ours.returns[nodes] == state.returns()).all()
        else:
            (information,) = set(ours.information[nodes].tolist())
            assert ours.seat[information] == state.current_player()
            assert np.flatnonzero(ours.legal[information]).tolist() == state.legal_actions()
            assert names.setdefault(information, state.information_state_string()) == state.information_state_string()
            for action in state.legal_actions():
                walk(state.child(action), ours.children[nodes, action], deals, dealt)

    everything = np.arange(ours.game.n_deals)
    walk(pyspiel.load_game(SPIEL[name]).new_initial_state(), everything, everything, 0)
    assert len(visited) == len(ours.information)
    assert len(set(names.values())) == len(names) == len(ours.codes)
    return tuple(names[i] for i in range(len(names)))


@pytest.mark.parametrize(("name", "n_sets"), [("kuhn", 12), ("leduc", 936)])
def test_the_whole_tree_equals_open_spiel(name, n_sets):
    assert len(spiel_names(name)) == n_sets


def test_suits_can_be_hidden():
    assert len(tree("leduc", suits=False).codes) == 288
    with pytest.raises(ValueError, match="leduc: suits is 2"):
        make("leduc", suits=2)


def random_policy(ours: exact.GameTree, seed: int, sparse: bool = False) -> np.ndarray:
    rng = np.random.default_rng(seed)
    weights = np.where(ours.legal, rng.exponential(size=ours.legal.shape), 0.0)
    if sparse:  # pure in about a third of the information sets
        pure = rng.random(len(weights)) < 0.3
        weights[pure] = np.where(weights[pure] == weights[pure].max(1, keepdims=True), 1.0, 0.0)
    return weights / weights.sum(1, keepdims=True)


@pytest.mark.parametrize("name", nightly_cases(GAMES, "leduc"))
def test_exploitability_equals_open_spiel_on_100_policies(name):
    game, ours = pyspiel.load_game(SPIEL[name]), tree(name)
    for seed in range(100):
        policy = random_policy(ours, seed, sparse=seed % 2 == 1)
        table = pyspiel.TabularPolicy(
            {known: list(enumerate(row)) for known, row in zip(spiel_names(name), policy.tolist(), strict=True)}
        )
        expected = pyspiel.nash_conv(game, table, False)
        assert exact.nash_conv(ours, policy) == pytest.approx(expected, abs=1e-6)
        assert exact.exploitability(ours, policy) == pytest.approx(expected / 2, abs=1e-6)


@pytest.mark.nightly_for("leduc--0.0856-0.001")
@pytest.mark.parametrize(("name", "value", "near"), [("kuhn", -1 / 18, 1e-4), ("leduc", -0.0856, 1e-3)])
def test_the_solution_has_the_value_of_the_game(name, value, near):
    ours, policy = tree(name), solution(name)
    returns = exact.expected_returns(ours, policy)
    assert returns[0] == pytest.approx(value, abs=near) and returns.sum() == pytest.approx(0, abs=1e-12)
    assert exact.exploitability(ours, policy) < 0.006


@given(st.integers(0, 10_000), st.booleans(), st.sampled_from(GAMES), st.integers(0, 1))
@settings(max_examples=examples(30), deadline=None)
def test_a_best_response_earns_what_it_says_and_no_policy_more(seed, sparse, name, seat):
    ours = tree(name)
    policy, other = random_policy(ours, seed, sparse), random_policy(ours, seed + 1)
    value, action = exact.best_response(ours, policy, seat)
    own = ours.seat == seat
    assert (action[own] >= 0).all() and (action[~own] == -1).all()
    best = np.where(own[:, None], np.eye(ours.legal.shape[1])[action], policy)
    assert not best[~ours.legal].any()
    assert exact.expected_returns(ours, best)[seat] == pytest.approx(value, abs=1e-9)
    mixed = np.where(own[:, None], other, policy)
    assert exact.expected_returns(ours, mixed)[seat] <= value + 1e-9
    assert exact.nash_conv(ours, policy) >= -1e-9


def test_large_games_have_no_tree():
    with pytest.raises(ValueError, match="tic_tac_toe cannot be enumerated"):
        exact.build(make("tic_tac_toe"))


# ------------------------------------------------------------------------------------------------------------- texts


@pytest.mark.parametrize("style", texts.STYLES)
@pytest.mark.parametrize(("name", "params"), [("kuhn", {}), ("leduc", {}), ("leduc", {"suits": False})])
def test_a_prompt_says_what_the_seat_knows_and_nothing_else(name, params, style):
    """Different information sets read differently, and what the seat does not see can be anything."""
    ours = tree(name, **params)
    text = make_text(ours.game, style)
    read = jax.jit(jax.vmap(text.indices))
    seen = np.asarray(read(ours.states, ours.seat))
    strings = [text.observation.text(row) for row in seen]
    assert len(set(zip(strings, ours.seat.tolist(), strict=True))) == len(strings)
    rng, cards = np.random.default_rng(0), np.array(ours.states.cards)
    rows = np.arange(len(cards))
    cards[rows, 1 - ours.seat] = rng.integers(0, cards.max() + 1, len(cards))
    if name == "leduc":
        unseen = ours.states.round == 0
        cards[unseen, 2] = rng.integers(0, 6, unseen.sum())
    assert not np.array_equal(cards, ours.states.cards)
    np.testing.assert_array_equal(read(ours.states._replace(cards=cards), ours.seat), seen)
    changed = np.array(ours.states.cards)
    changed[rows, ours.seat] = (changed[rows, ours.seat] + 2) % (cards.max() + 1)  # of another rank
    assert (np.asarray(read(ours.states._replace(cards=changed), ours.seat)) != seen).any(1).all()


# ------------------------------------------------------------------------------------------ bots, symmetries, drawings


@pytest.mark.nightly_for("leduc")
@pytest.mark.parametrize("name", GAMES)
def test_the_equilibrium_bot_draws_from_the_solution(name):
    ours = tree(name)
    bot = EquilibriumBot(ours.game)
    rows = np.arange(0, len(ours.codes), 1 if name == "kuhn" else 97)
    states = jax.tree.map(lambda x: x[rows], ours.states)
    keys = jax.random.split(jax.random.key(0), 2000)
    drawn = np.asarray(jax.jit(jax.vmap(jax.vmap(bot.act, (None, 0)), (0, None)))(states, keys))
    shares = (drawn[..., None] == np.arange(ours.legal.shape[1])).mean(1)
    assert not shares[~ours.legal[rows]].any()
    expected = solution(name)[rows]
    np.testing.assert_allclose(shares, expected, atol=0.05)  # over four standard deviations


def test_suits_mean_nothing():
    """Every exchange of suits commutes with the rules, and all eight differ."""
    ours = tree("leduc")
    symmetry = LeducSymmetry(ours.game)
    numbers = jnp.arange(symmetry.n_symmetries)

    def both(state, action, i):
        after, reward = ours.game.step(symmetry.apply(state, i), symmetry.map_action(action, i))
        expected, paid = ours.game.step(state, action)
        return (after, reward), (symmetry.apply(expected, i), paid)

    actions = jnp.asarray(ours.legal.argmax(1))
    found, expected = jax.jit(jax.vmap(jax.vmap(both, (None, None, 0)), (0, 0, None)))(ours.states, actions, numbers)
    jax.tree.map(np.testing.assert_array_equal, found, expected)

    @jax.jit
    @jax.vmap
    def exchanged(i):
        deal = ours.game.deal(jnp.int32(0))
        return symmetry.apply(deal, i).cards, symmetry.apply(deal._replace(cards=jnp.array([0, 2, 4])), i).cards

    deals, all_ranks = jax.device_get(exchanged(numbers))
    assert len({tuple(cards) for cards in all_ranks.tolist()}) == 8
    assert (deals // 2 == deals[0] // 2).all()


def test_drawings_hide_what_a_player_does_not_see():
    kuhn, leduc = make("kuhn"), make("leduc")
    state = kuhn.deal(jnp.int32(1))  # a jack and a king
    assert view.board(kuhn, state) == "player 0  jack\nplayer 1  king\nmoves     –"
    assert "king" not in view.board(kuhn, state, 0) and "jack" in view.board(kuhn, state, 0)
    step, state = jax.jit(leduc.step), leduc.deal(jnp.int32(3))._replace(cards=np.array([0, 3, 4]))
    assert view.board(leduc, state, 1).split("\n")[:3] == ["player 0  ?", "player 1  queen of hearts", "public    ?"]
    for action in (2, 1):
        state, _ = step(state, np.int32(action))
    assert "public    king of spades" in view.board(leduc, state) and "raise, call" in view.board(leduc, state)
    letters = [element.text for element in ElementTree.fromstring(view.svg(leduc, state, 0)).iter() if element.text]
    assert "K" in letters and "J" in letters and "?" in letters and "Q" not in letters
