"""Search in Hanabi: the belief against full enumeration, hidden cards, scores, and recorded moves."""

import functools
import itertools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.hanabi import belief, recorded, search_games
from envs.games.hanabi.bots import ConventionBot
from envs.games.hanabi.rules import Hanabi, copies
from envs.games.hanabi.search import Choice, SearchBot
from envs.games.registry import make

SMALL = make("hanabi", preset="small")
BOT = ConventionBot(SMALL)
GAMES = 12


@functools.cache
def watched(game: Hanabi, turns: int, seat: int):
    """The first turns of some games of the bot, as `seat` remembers them: memories, states and a list of moves."""
    bot = ConventionBot(game)

    def turn(carry, _):
        states, memory = carry
        actions = jax.vmap(bot.act, (0, None))(states, jax.random.key(0))
        memory = jax.vmap(functools.partial(belief.observe, game))(memory, states, actions)
        return (jax.vmap(game.step)(states, actions)[0], memory), (states, actions)

    @jax.jit
    def play(keys):
        states = jax.vmap(game.reset)(keys)
        memory = jax.vmap(lambda s: belief.begin(game, s, seat))(states)
        return jax.lax.scan(turn, (states, memory), None, turns)

    (states, memory), moves = jax.device_get(play(jax.random.split(jax.random.key(3), GAMES)))
    return memory, states, moves


def enumerated(row: int, moves, state) -> dict[tuple[int, int], float]:
    """The exact belief of seat 0 about its two cards, by replaying every pair of kinds with the bot."""
    past, actions = jax.tree.map(lambda x: x[:, row], moves)
    pairs = np.array(list(itertools.product(range(10), repeat=2)))
    left = np.tile(copies(5), 2) - np.asarray(state.discards).ravel() - np.bincount(state.hands[1], minlength=10)[:10]
    left -= np.concatenate([np.arange(5) < n for n in np.asarray(state.fireworks)])
    weight = left[pairs[:, 0]] * (left[pairs[:, 1]] - (pairs[:, 0] == pairs[:, 1]))
    for place in range(2):
        allowed = [state.colors[0, place] >> k // 5 & 1 and state.ranks[0, place] >> k % 5 & 1 for k in range(10)]
        weight = weight * np.array(allowed)[pairs[:, place]]
    # Which of today's cards was in which place: cards move down when an older one leaves.
    held = {place: place for place in range(2)}
    for t in reversed(range(len(actions))):
        if past.seat[t] == 0 and actions[t] < 4:  # a discard or a play: the newest card was drawn then
            gone = int(actions[t]) % 2
            held = {now: then + (then >= gone) for now, then in held.items() if then != 1}
        elif past.seat[t] == 1:
            hands = np.tile(np.asarray(past.hands[t]), (len(pairs), 1, 1))
            for now, then in held.items():
                hands[:, 0, then] = pairs[:, now]
            same = ACTS(jax.tree.map(lambda x, t=t: x[t], past), hands) == actions[t]
            weight = weight * np.asarray(same)
    return {tuple(pair.tolist()): w / weight.sum() for pair, w in zip(pairs, weight, strict=True) if w > 0}


ACTS = jax.jit(jax.vmap(lambda state, hands: BOT.act(state._replace(hands=hands), jax.random.key(0)), (None, 0)))


@pytest.mark.nightly_for("12")
@pytest.mark.parametrize("turns", [6, 12])
def test_the_belief_is_that_of_full_enumeration(turns):
    memory, states, moves = watched(SMALL, turns, 0)
    keys = jax.random.split(jax.random.key(1), GAMES)
    believe = jax.jit(jax.vmap(lambda m, s, k: belief.believe(SMALL, BOT, m, s, k, 4096)))
    found = jax.device_get(believe(memory, states, keys))
    narrow = 0
    for row in np.flatnonzero(~np.asarray(states.over) & (np.asarray(states.dealt) < 20))[:8]:
        exact = enumerated(row, moves, jax.tree.map(lambda x, r=row: x[r], states))
        assert found.lost[row] == 0
        hands, weights = found.hands[row], found.weights[row] / found.weights[row].sum()
        sampled = {pair: weights[(hands == pair).all(1)].sum() for pair in exact}
        assert sum(sampled.values()) == pytest.approx(1, abs=1e-4)  # none that is impossible
        assert sum(abs(sampled[pair] - exact[pair]) for pair in exact) / 2 < 0.06
        narrow += len(exact) < 40
    assert narrow  # moves and hints have excluded most hands


@pytest.mark.nightly_for("3", "4", "5", "2")
@pytest.mark.parametrize("players", [2, 3, 4, 5])
def test_a_seat_knows_where_its_cards_come_from(players):
    game = Hanabi(players=players, colors=3)
    memory, states, moves = watched(game, 16, players - 1)
    np.testing.assert_array_equal(memory.count, (~moves[0].over & (moves[0].seat != players - 1)).sum(0))
    for row in range(GAMES):
        hand, places = states.hands[row, players - 1], memory.places[row]
        np.testing.assert_array_equal(np.where(places < 0, -1, states.deck[row][places]), hand)


@pytest.mark.nightly
def test_hidden_cards_do_not_matter_and_dealt_positions_are_possible():
    memory, states, _ = watched(SMALL, 6, 0)
    search = SearchBot(SMALL, BOT, hands=64, screening=4, rollouts=8)
    choose = jax.jit(jax.vmap(search.choose))
    keys = jax.random.split(jax.random.key(2), GAMES)
    rng, hands, decks = np.random.default_rng(0), np.array(states.hands), np.array(states.deck)
    for row in range(GAMES):
        unseen = rng.permutation(np.concatenate([hands[row, 0], decks[row, states.dealt[row] :]]))
        hands[row, 0], decks[row, states.dealt[row] :] = np.split(unseen, [2])
    hidden = states._replace(hands=hands, deck=decks)
    jax.tree.map(np.testing.assert_array_equal, choose(memory, states, keys), choose(memory, hidden, keys))

    def deal(memory, state, key):
        hands = belief.believe(SMALL, BOT, memory, state, key, 64)
        return belief.deal(SMALL, memory, state, hands, key, 16)

    dealt = jax.device_get(jax.jit(jax.vmap(deal))(memory, states, keys))
    for row in range(GAMES):
        for number in range(16):
            rest = np.concatenate([dealt.hands[row, number].ravel(), dealt.deck[row, number][states.dealt[row] :]])
            actual = np.concatenate([states.hands[row].ravel(), states.deck[row][states.dealt[row] :]])
            np.testing.assert_array_equal(np.sort(rest), np.sort(actual))


def test_recorded_moves_are_those_of_the_searching_seat(tmp_path):
    _, _, (states, actions) = watched(SMALL, 12, 0)
    actions = np.asarray(actions)
    bare = states._replace(deck=states.deck[..., :0])
    searched, zeros = np.asarray(states.seat) == 0, np.zeros(actions.shape, np.float32)
    choices = Choice(actions, actions, np.where(searched, 0.5, zeros), zeros, zeros.astype(int))
    games = search_games.SearchGames(
        np.arange(GAMES), np.arange(GAMES)[::-1], bare, choices, searched, ~np.asarray(states.over)
    )
    np.savez(tmp_path / "games-00000.npz", **search_games.decisions(games))
    (tmp_path / "search.json").write_text(json.dumps({"game": recorded.rules_of(SMALL)}))
    moves, wanted = recorded.read(tmp_path, SMALL), games.live & searched
    np.testing.assert_array_equal(moves.actions, actions[wanted])
    np.testing.assert_array_equal(moves.states.hands, np.asarray(states.hands)[wanted])
    np.testing.assert_array_equal(moves.states.last.action, np.asarray(states.last.action)[wanted])
    assert set(moves.states.seat.tolist()) == {0} and set(moves.gains.tolist()) == {0.5}
    result = recorded.summary(tmp_path)
    assert result["difference"] == 0 and result["difference_low"] < 0 and result["deviations"] == 0
    with pytest.raises(ValueError, match="has moves of the game .*, but must have moves of"):
        recorded.read(tmp_path, Hanabi())
    with pytest.raises(ValueError, match="has no files games"):
        recorded.read(tmp_path / "other", SMALL)


FLAGS = ["--preset=small", "--batch=32", "--hands=64", "--screening=4", "--finalists=3", "--rollouts=16"]


@pytest.mark.nightly
def test_search_is_no_worse_than_the_bot_and_repeats(tmp_path, capsys):
    assert search_games.main([f"--out={tmp_path}", *FLAGS, "--games=64"]) == 0
    result = recorded.summary(tmp_path)
    assert result["games"] == 64 and result["difference_high"] > 0 and 0 < result["deviations"] < 0.5
    first = (tmp_path / "games-00001.npz").read_bytes()
    (tmp_path / "games-00001.npz").unlink()
    moves = recorded.read(tmp_path, SMALL)
    assert np.all(moves.gains >= 0) and np.any(moves.gains > 0) and set(moves.states.seat.tolist()) == {0}
    legal = jax.vmap(SMALL.legal)(moves.states)
    assert np.all(np.take_along_axis(np.asarray(legal), moves.actions[:, None], axis=1))
    assert search_games.main([f"--out={tmp_path}", *FLAGS, "--games=64"]) == 0  # only the missing file
    head, first_batch, both, *again = capsys.readouterr().out.splitlines()
    assert again[0] == head and [line.split()[1:] for line in again[1:]] == [first_batch.split()[1:], both.split()[1:]]
    assert both.split()[1:4] == ["64", f"{result['bot']:.2f}", f"{result['search']:.2f}"]
    assert (tmp_path / "search.md").read_text().splitlines()[1:-1] == again
    assert (tmp_path / "games-00001.npz").read_bytes() == first
    with pytest.raises(SystemExit):
        search_games.main([f"--out={tmp_path}", *FLAGS, "--games=64", "--seed=1"])


@pytest.mark.nightly
def test_all_seats_search_and_play_the_bots_move_when_they_are_lost(tmp_path):
    assert search_games.main([f"--out={tmp_path}", *FLAGS, "--games=64", "--seats=all"]) == 0
    assert recorded.summary(tmp_path)["difference_high"] > 0
    assert set(recorded.read(tmp_path, SMALL).states.seat.tolist()) == {0, 1}
    data = np.load(tmp_path / "games-00000.npz", allow_pickle=False)
    deviates, lost = data["action"] != data["blueprint"], data["lost"] > 0
    assert np.all(data["searched"]) and np.any(lost) and np.any(deviates) and not np.any(deviates & lost)


@pytest.mark.nightly
@pytest.mark.parametrize("players", [3, 4, 5])
def test_more_players_search_too(players):
    game = Hanabi(players=players, colors=3, hand_size=3)
    search = SearchBot(game, ConventionBot(game), hands=128, screening=4, finalists=3, rollouts=32)
    last_seat = np.arange(players) == players - 1
    games = jax.jit(search_games.play, static_argnums=0)(search, jax.random.split(jax.random.key(0), 16), last_seat)
    assert float(jnp.mean(games.scores - games.of_bot)) > -0.5
    assert np.all(np.asarray(games.choices.lost)[np.asarray(games.live)] == 0)


@pytest.mark.quick
@pytest.mark.parametrize(("field", "value"), [("rollouts", 1), ("finalists", 1), ("threshold", -0.1)])
def test_bad_settings_are_named(field, value):
    with pytest.raises(ValueError, match=f"hanabi search: {field} is {value}, but must be"):
        SearchBot(SMALL, BOT, **{field: value})
