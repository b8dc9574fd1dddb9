"""Hanabi against OpenSpiel and recorded games, its hidden information, its bot, its symmetries and its drawings."""

import itertools
import operator
import re
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot
from envs.games.game import check_action
from envs.games.hanabi import draw
from envs.games.hanabi.bots import ConventionBot
from envs.games.hanabi.rules import COLOR_NAMES, Hanabi, copies
from envs.games.hanabi.symmetry import HanabiSymmetry
from envs.games.registry import make, make_text
from tests.conftest import shared_data

pyspiel = pytest.importorskip("pyspiel")

PLAYOUTS = 200
CONFIGS = {
    "full-2": {"players": 2},
    "full-3": {"players": 3},
    "full-4": {"players": 4},
    "full-5": {"players": 5},
    "small": {"preset": "small"},
    "very-small": {"preset": "very_small"},
    "odd": {"players": 3, "colors": 4, "ranks": 2, "hand_size": 1, "max_information_tokens": 1, "max_life_tokens": 2},
    "one-rank": {"colors": 2, "ranks": 1, "hand_size": 2, "max_information_tokens": 2, "max_life_tokens": 1},
}


def make_oracle(game: Hanabi):
    fields = ("players", "colors", "ranks", "hand_size", "max_information_tokens", "max_life_tokens")
    return pyspiel.load_game("hanabi", {f: getattr(game, f) for f in fields})


def record(game: Hanabi, rng: np.random.Generator) -> dict:
    """Random games of OpenSpiel: per step and game the player, legal set, action, and the reward and end after it.

    A third of the games is uniformly random, a third rarely plays cards (to reach the last round), and a third looks
    at the hidden cards to play right (to complete colours and the whole).
    """
    oracle = make_oracle(game)
    shape = (PLAYOUTS, game.max_turns)
    out = {
        "deck": np.zeros((PLAYOUTS, game.n_cards), np.int8),
        "player": np.zeros(shape, int),
        "legal": np.zeros((*shape, game.n_actions), bool),
        "action": np.zeros(shape, np.int32),
        "reward": np.zeros(shape, np.float32),
        "done": np.ones(shape, bool),
        "live": np.zeros(shape, bool),
        "returns": np.zeros(PLAYOUTS, np.float32),
        "view": [[] for _ in range(PLAYOUTS)],
    }
    cards = np.repeat(np.arange(game.max_score), np.tile(copies(game.ranks), game.colors))
    hand = game.hand_size
    for g in range(PLAYOUTS):
        state, t = oracle.new_initial_state(), 0
        out["deck"][g] = rng.permutation(cards)
        deck = iter(out["deck"][g].tolist())

        def deal(state, deck=deck):
            while state.is_chance_node():
                state.apply_action(next(deck))

        deal(state)
        while not state.is_terminal():
            legal = state.legal_actions()
            plays = [a for a in legal if hand <= a < 2 * hand]
            right = [a for a in plays if state.child(a).rewards()[0] > 0] if g % 3 == 2 else []
            rest = [a for a in legal if a not in plays or g % 3 == 0 or rng.random() < 0.05]
            action = rng.choice(right or rest or legal)
            out["live"][g, t] = True
            out["player"][g, t] = state.current_player()
            out["legal"][g, t, legal] = True
            out["action"][g, t] = action
            state.apply_action(action)
            out["reward"][g, t] = state.rewards()[0]
            assert len(set(state.rewards())) == 1
            deal(state)
            out["done"][g, t] = state.is_terminal()
            if not state.is_terminal():  # a finished game of OpenSpiel draws no last card
                out["view"][g].append(str(state))
            t += 1
        out["returns"][g] = state.returns()[0]
    return out


def as_open_spiel(game: Hanabi, state, at: tuple) -> str:
    """Our state number `at` written as OpenSpiel writes its own, less what the hints have literally named."""
    letters = "RYGWB"
    state = jax.tree.map(operator.itemgetter(at), state)

    def card(c):
        return f"{letters[c // game.ranks]}{c % game.ranks + 1}"

    lines = [f"Life tokens: {state.lives}", f"Info tokens: {state.information}"]
    lines.append("Fireworks: " + "".join(f"{letters[c]}{n} " for c, n in enumerate(state.fireworks)))
    lines.append("Hands:")
    for p in range(game.players):
        lines += ["-----"] if p else []
        for c, colors, ranks in zip(state.hands[p], state.colors[p], state.ranks[p], strict=True):
            if c >= 0:
                known = "".join(letters[i] for i in range(game.colors) if colors >> i & 1)
                lines.append(f"{card(c)} || {known}" + "".join(str(i + 1) for i in range(game.ranks) if ranks >> i & 1))
    lines.append(f"Deck size: {game.n_cards - state.dealt}")
    discards = sorted(card(c) for c, n in enumerate(state.discards.ravel()) for _ in range(n))
    return "\n".join([*lines, "Discards: " + " ".join(discards)])


def normal(view: str) -> str:
    """OpenSpiel's text without the marker of the player to move, the named values, and the order of the discards."""
    view = re.sub(r"\|\| ..\|", "|| ", view).replace("Cur player\n", "")
    head, discards = view.split("Discards:")
    return head + "Discards: " + " ".join(sorted(discards.split()))


@pytest.mark.nightly_for("full-3", "full-4", "full-5", "odd", "very-small", "one-rank")
@pytest.mark.parametrize("name", CONFIGS)
def test_playouts_equal_open_spiel(name):
    game = make("hanabi", **CONFIGS[name])
    oracle = make_oracle(game)
    games = record(game, np.random.default_rng(0))
    assert game.n_actions == oracle.num_distinct_actions()

    def replay(deck, actions):
        def turn(state, action):
            after, reward = game.step(state, action)
            return after, (game.player(state), game.legal(state), reward, game.done(after), after._replace(deck=()))

        last, steps = jax.lax.scan(turn, game.reset_from_deck(deck), actions)
        return game.score(last), steps

    score, (player, legal, reward, done, states) = jax.jit(jax.vmap(replay))(games["deck"], games["action"])
    live = games["live"]
    np.testing.assert_array_equal(np.asarray(player)[live], games["player"][live])
    np.testing.assert_array_equal(np.asarray(legal)[live], games["legal"][live])
    np.testing.assert_array_equal(reward.team, games["reward"])  # zero after the end: terminal states absorb
    np.testing.assert_array_equal(done, games["done"])
    np.testing.assert_array_equal(score, games["returns"])
    assert not np.any(reward.agent) and not np.any(reward.process)
    states = jax.device_get(states)
    for g in range(0, PLAYOUTS, 19):
        for t, view in enumerate(games["view"][g]):
            assert as_open_spiel(game, states, (g, t)) == normal(view)


def test_recorded_games_end_with_the_same_scores():
    data = np.load(shared_data("open/hanabi_2p_replays.npz"), allow_pickle=False)
    game = Hanabi()
    actions, lengths = data["actions"], data["length"]

    def replay(deck, actions, length):
        def turn(state, inputs):
            t, action = inputs
            legal = game.legal(state)[action] | (t >= length)
            over = game.done(state) == (t >= length)
            return game.step(state, action)[0], legal & over

        last, fine = jax.lax.scan(turn, game.reset_from_deck(deck), (jnp.arange(actions.shape[0]), actions))
        return game.score(last), game.done(last), fine.all()

    score, done, fine = jax.jit(jax.vmap(replay))(data["deck"], np.where(actions == 255, 0, actions), lengths)
    assert len(score) == 10_000 and np.all(done) and np.all(fine)
    np.testing.assert_array_equal(score, data["score"])


# Full two-player games, a batch of ROWS at a time, all compiled once.
GAME, ROWS = Hanabi(), 128
BOT, SYMMETRY = ConventionBot(GAME), HanabiSymmetry(GAME)
KEYS = jax.random.split(jax.random.key(0), ROWS)
RESET, STEP, LEGAL, ACT = (jax.jit(jax.vmap(f)) for f in (GAME.reset, GAME.step, GAME.legal, BOT.act))


@pytest.fixture(scope="module")
def bot_games():
    """ROWS games of the bot with itself: the (states, actions) of every turn, and the last states."""
    states, turns = RESET(KEYS), []
    while not np.all(states.over):
        actions = ACT(states, KEYS)
        turns.append((states, actions))
        states, _ = STEP(states, actions)
    return turns, states


@pytest.mark.nightly
def test_bot_beats_random_by_far(bot_games):
    turns, last = bot_games
    for states, actions in turns:
        assert np.all(np.take_along_axis(np.asarray(LEGAL(states)), np.asarray(actions)[:, None], 1))
    assert np.mean(jax.vmap(GAME.score)(last)) > 20
    states, act = RESET(KEYS), jax.jit(jax.vmap(UniformBot(GAME).act))
    for t in range(GAME.max_turns):
        states, _ = STEP(states, act(states, jax.random.split(jax.random.key(t), ROWS)))
    assert np.all(states.over) and np.mean(jax.vmap(GAME.score)(states)) < 1


def test_bot_does_not_look_at_its_own_cards(bot_games):
    """Shuffling what the player cannot see, its own cards and the rest of the deck, leaves its choice alone."""
    rng = np.random.default_rng(0)
    for states, actions in bot_games[0][:60:3]:
        hands, decks = np.array(states.hands), np.array(states.deck)
        for row, (seat, dealt) in enumerate(zip(np.asarray(states.seat), np.asarray(states.dealt), strict=True)):
            held = hands[row, seat] >= 0
            unseen = rng.permutation(np.concatenate([hands[row, seat, held], decks[row, dealt:]]))
            hands[row, seat, held], decks[row, dealt:] = np.split(unseen, [held.sum()])
        assert np.mean(hands != np.asarray(states.hands)) > 0.2
        np.testing.assert_array_equal(ACT(states._replace(hands=hands, deck=decks), KEYS), actions)


def test_step_commutes_with_renaming_colors(bot_games):
    assert SYMMETRY.n_symmetries == 120
    apply, map_action = jax.jit(jax.vmap(SYMMETRY.apply)), jax.jit(jax.vmap(SYMMETRY.map_action))
    for t, (states, actions) in enumerate(bot_games[0][::7]):
        which = (jnp.arange(ROWS) + 31 * t) % 120
        image, moved = apply(states, which), map_action(actions, which)
        after, reward = STEP(states, actions)
        jax.tree.map(np.testing.assert_array_equal, (apply(after, which), reward), STEP(image, moved))
        assert np.array_equal(LEGAL(image).sum(1), LEGAL(states).sum(1))


@pytest.mark.nightly_for("3", "4", "5", "2")
@pytest.mark.parametrize("players", [2, 3, 4, 5])
def test_prompts_and_scores_of_a_permuted_game_are_permuted_and_the_same(players):
    """Other-Play: a seat that sees renamed colors reads the same words, and its moves, mapped back, score the same."""
    game = Hanabi(players=players)
    bot, symmetry, text = ConventionBot(game), HanabiSymmetry(game), make_text(game)
    which = 1 + 23 * players
    becomes = np.array(list(itertools.permutations(range(5))))[which]

    def turn(carry, _):
        state, image = carry
        action = bot.act(state, jax.random.key(0))
        moved = symmetry.map_action(action, jnp.int32(which))
        (after, reward), (other, same) = game.step(state, action), game.step(image, moved)
        return (after, other), (reward.team, same.team)

    first = jax.jit(game.reset)(jax.random.key(players))
    start = (first, symmetry.apply(first, jnp.int32(which)))
    play = jax.jit(lambda start, n: jax.lax.scan(turn, start, None, n), static_argnums=1)
    (state, image), (scores, same) = play(start, 14)
    np.testing.assert_array_equal(scores, same)
    for seat in range(players):
        shown = text.observe(state, seat)
        renamed = re.sub("|".join(COLOR_NAMES), lambda m: COLOR_NAMES[becomes[COLOR_NAMES.index(m[0])]], shown)
        words, seen = (sorted(re.findall(r"\w+", t)) for t in (renamed, text.observe(image, seat)))
        assert words == seen and renamed != shown


def one(state):
    """A batch of copies, for the functions above; its first row is what the test looks at."""
    return jax.tree.map(lambda x: jnp.broadcast_to(x, (ROWS, *x.shape)), state)


def test_latest_moves_say_what_everybody_saw():
    def step(state, action):
        return jax.tree.map(lambda x: x[0], jax.device_get(STEP(one(state), np.full((ROWS,), action))))

    deck = jnp.asarray(np.repeat(np.arange(25), np.tile(copies(5), 5)))  # R1 R1 R1 R2 R2 | R3 R3 R4 R4 R5 | Y1 …
    state, _ = step(GAME.reset_from_deck(deck), 15 + 3)  # tell about rank 4
    assert state.last.action.tolist() == [18, -1] and state.last.touched.tolist() == [0b01100, 0]
    assert state.ranks[1].tolist() == [0b10111, 0b10111, 0b01000, 0b01000, 0b10111]
    state, reward = step(state, 5)  # plays R3 too early
    assert (int(state.lives), float(reward.team), int(state.discards[0, 2])) == (2, 0, 1)
    assert state.last.card.tolist() == [-1, 2] and state.last.scored.tolist() == [False, False]
    state, reward = step(state, 5)  # plays R1
    assert (int(state.fireworks[0]), float(reward.team)) == (1, 1)
    assert state.last.card.tolist() == [0, 2] and state.last.scored.tolist() == [True, False]
    assert state.hands[0].tolist() == [0, 0, 1, 1, 5] and state.hands[1].tolist() == [2, 3, 3, 4, 5]
    with pytest.raises(ValueError, match=r"action is 14 \(O\), but must be one of: 0 \(A\)"):
        check_action(GAME, state, 10 + 4)  # nobody holds blue


def test_a_lost_game_scores_nothing_and_consoles_at_the_process_level():
    """Three cards lie, the last life goes: the team gives them back, and each player gets the chosen share."""
    game = Hanabi(max_life_tokens=1, consolation=0.25)
    step = jax.jit(game.step)
    deck = jnp.asarray(np.repeat(np.arange(25), np.tile(copies(5), 5)))  # R1 R1 R1 R2 R2 | R3 R3 R4 R4 R5 | Y1 …
    state, paid = game.reset_from_deck(deck), []
    for action in (5, 10, 8, 5, 5):  # player 0 plays R1; a hint; R2; player 1 plays R3; player 0 an R1 too many
        state, reward = step(state, action)
        paid.append(reward)
    assert [float(r.team) for r in paid] == [1, 0, 1, 1, -3]
    assert bool(state.over) and int(game.score(state)) == 0
    assert np.stack([r.process for r in paid]).tolist() == [[0, 0]] * 4 + [[0.75, 0.75]]
    _, reward = step(state, 5)
    assert not np.any(reward.process)
    with pytest.raises(ValueError, match="consolation is 2, but must be between 0 and 1"):
        Hanabi(consolation=2)


def test_shuffles_are_uniform():
    """Every card comes first as often as it occurs in the deck (chi-square with 24 degrees of freedom)."""
    decks = np.asarray(RESET(jax.random.split(jax.random.key(0), 20_000)).deck)
    assert np.all(np.sort(decks, axis=1) == np.repeat(np.arange(25), np.tile(copies(5), 5)))
    expected = np.tile(copies(5), 5) / 50 * len(decks)
    for place in (0, 17, 49):
        counts = np.bincount(decks[:, place], minlength=25)
        assert np.sum((counts - expected) ** 2 / expected) < 60


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"players": 6}, "players is 6, but must be an integer from 2 to 5"),
        ({"colors": 0}, "colors is 0, but must be an integer from 1 to 5"),
        ({"ranks": 2.0}, "ranks is 2.0, but must be of type int"),
        ({"hand_size": 6}, "hand_size is 6, but must be an integer from 1 to 5"),
        ({"max_life_tokens": 0}, "max_life_tokens is 0, but must be an integer from 1 to 50"),
        ({"colors": 1, "players": 5}, "need 20 cards, but 1 colors and 5 ranks make a deck of 10"),
        ({"preset": "tiny"}, "preset is 'tiny', but must be one of: 'full', 'small', 'very_small'"),
        ({"colours": 3}, "hanabi has no parameter 'colours'; its parameters are: colors, consolation, hand_size, max_"),
    ],
)
def test_bad_parameters_are_named(params, message):
    with pytest.raises(ValueError, match=message):
        make("hanabi", **params)


def test_bad_decks_are_named():
    with pytest.raises(ValueError, match=r"deck has shape \(49,\), but must have \(50,\)"):
        Hanabi().reset_from_deck(jnp.zeros(49, jnp.int8))


def test_drawings_hide_the_own_hand():
    game = make("hanabi", preset="small")
    deck = jnp.asarray(np.repeat(np.arange(10), np.tile(copies(5), 2)))  # R1 R1 | R1 R2 | R2 …
    state, _ = jax.jit(game.step)(game.reset_from_deck(deck), jnp.int32(4 + 2 + 1))  # tell about rank 2
    assert draw.board(state).splitlines() == [
        "information 2  lives 1  deck 16",
        "fireworks   R0 Y0",
        "  player 0  R1 R1   knows RY12345 RY12345",
        "> player 1  R1 R2   knows RY1345 RY2",
        "discards    none",
    ]
    assert "player 1  ?? ??   knows RY1345 RY2" in draw.board(state, player=1)
    for player, hidden in ((None, 0), (0, 2), (1, 2)):
        words = [child.text for child in ElementTree.fromstring(draw.svg(state, player))]
        assert words.count("?") == hidden
