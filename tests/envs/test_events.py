"""Events: with the opening they say what the present position would, in the tokenizer's tokens, and leak nothing."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games import text as texts
from envs.games.borders import MergeError
from envs.games.bots import UniformBot
from envs.games.hanabi import short_text
from envs.games.hanabi.rules import Hanabi
from envs.games.registry import make, make_text
from envs.games.roles import EXECUTOR, TwoRole
from envs.games.template import join
from scripts import texts_page
from tests.envs.readers import READERS
from tests.envs.test_template import Words
from tests.envs.test_text import FORMS, MOST, byte_tokenizer, check_tokens, game, jit, one, parts, text, tokenizer

pytestmark = pytest.mark.long

ROWS, TURNS = 6, 40


@functools.cache
def played(name: str):
    """Random games [ROWS, TURNS]: the state before each move, the move, the state after it; they end when over."""
    g = game(name)
    bot = UniformBot(g)

    def turn(state, key):
        action = bot.act(state, key)
        following, _ = g.step(state, action)
        return following, (state, action, following)

    def row(key):
        first, rest = jax.random.split(key)
        return jax.lax.scan(turn, g.reset(first), jax.random.split(rest, TURNS))[1]

    return jit(jax.vmap(row))(jax.random.split(jax.random.key(3), ROWS))


@functools.cache
def numbers(name: str, style: str, notation: int = 0):
    """For every row, turn and seat: the numbers of the observation before the move, after it, and of the event."""
    t, (before, action, after) = notations(name, style)[notation], played(name)

    def seats(b, a, c):
        def seen(seat):
            return t.indices(b, seat), t.indices(c, seat), t.event_indices(b, a, c, seat)

        return jax.vmap(seen)(jnp.arange(t.game.n_players))

    return jax.device_get(jit(jax.vmap(jax.vmap(seats)))(before, action, after))


def notations(name: str, style: str):
    """The text in each of its notations."""
    return text(name, style), *text(name, style).others


@functools.cache
def facts(name: str):
    """Whether each game is over before a move, and who moves next."""
    g = game(name)
    return jax.device_get(jit(jax.vmap(jax.vmap(lambda b, c: (g.done(b), g.player(c)))))(*played(name)[::2]))


# --- Nothing is left out --------------------------------------------------------------------------------------------


@pytest.mark.nightly_for(
    "hanabi 5-*",
    "hanabi*-full",
    "*-compact",
    "sudoku*-full",
    "sokoban*-full",
    "plan_path*-full",
    "connect_four-full",
    "pursuit*-full",
)
@pytest.mark.parametrize("style", texts.STYLES)
@pytest.mark.parametrize("name", [name for name in MOST if name.split()[0] in READERS])
def test_opening_and_events_say_what_the_position_says(name, style):
    """Readers open at every fifth turn of a game and are compared with the observation after every event."""
    over, following = facts(name)
    compared = 0
    for notation, t in enumerate(notations(name, style)):
        observed, later, events = numbers(name, style, notation)
        for row, seat in np.ndindex(ROWS, t.game.n_players):
            for start in range(0, TURNS, 5):
                reader = None
                for turn in range(start, min(start + 12, TURNS)):
                    if over[row, turn]:
                        break
                    if reader is None:
                        opening = t.observation.text(observed[row, turn, seat])
                        reader = READERS[t.game.name](t, seat, opening)
                    reader.read(t.events.text(events[row, turn, seat]))
                    # a local view depends on the proposal, so it is complete only when the executor is asked
                    if not waits_for_a_proposal(t.game, seat) or following[row, turn] == EXECUTOR:
                        reader.expect(t.observation.text(later[row, turn, seat]))
                        compared += 1
    every = ROWS * game(name).n_players * game(name).max_turns  # fewer than 20 in games with one answer
    assert compared > min(40 if game(name).max_turns > 3 else 20, every - 1)


def waits_for_a_proposal(g, seat: int) -> bool:
    return isinstance(g, TwoRole) and g.view == "local" and seat == EXECUTOR


@pytest.mark.parametrize(
    ("name", "redundant"),
    [
        ("hanabi", set()),
        ("sokoban", {1}),  # the direction follows from the place
        ("sudoku full", set()),
        ("plan_path local", {5}),  # "You see:"
    ],
)
def test_a_reader_notices_what_is_wrong(name, redundant):
    """Each table of an event in turn shows the wrong variant, and some reader's facts are then wrong: none is idle."""
    t = text(name, "full")
    observed, later, events = numbers(name, "full")
    over, following = facts(name)
    noticed = set()
    for table in range(events.shape[-1]):
        if len(set(t.events.tables[table].variants)) == 1 or t.events.tables[table].linked:
            continue
        for row, turn, seat in np.ndindex(*events.shape[:3]):
            if over[row, turn] or (waits_for_a_proposal(t.game, seat) and following[row, turn] != EXECUTOR):
                continue
            event = events[row, turn, seat].copy()
            event[table] = (event[table] + 1) % len(t.events.tables[table].variants)
            try:
                reader = READERS[t.game.name](t, seat, t.observation.text(observed[row, turn, seat]))
                reader.read(t.events.text(event))
                reader.expect(t.observation.text(later[row, turn, seat]))
            except (AssertionError, IndexError):
                noticed.add(table)
                break
    varied = {i for i, table in enumerate(t.events.tables) if len(set(table.variants)) > 1 and not table.linked}
    assert varied - noticed == redundant, [t.events.tables[i].variants[:3] for i in varied - noticed]


def test_events_are_about_the_reader():
    """The same hint and the same play, as both players read them."""
    g = Hanabi(colors=2, ranks=3, hand_size=2, max_information_tokens=3, max_life_tokens=2)
    start = g.reset_from_deck(jnp.array([0, 4, 3, 1, 0, 0, 1, 2, 3, 3, 4, 5]))  # R1 Y2 | Y1 R2 | …
    t = make_text(g)
    step = jit(g.step)
    hint, play = (jnp.int32(g.action_texts.index(a)) for a in ("tell player +1 about yellow", "play card 1"))
    told, _ = step(start, hint)
    built, _ = step(told, play)
    hand = "What hints tell about this hand: 1: (yellow, any rank); 2: (red, any rank).\n"
    event = event_of(t)
    assert event(start, hint, told, 0) == f"You told player +1 about yellow: card 1. Information tokens: 2. {hand}"
    assert event(start, hint, told, 1) == f"Player +1 told you about yellow: card 1. Information tokens: 2. {hand}"
    shown = "The hand now: 1: red 2 (red, any rank); 2: red 1 (any colour, any rank).\n"
    own = "What hints tell about this hand: 1: (red, any rank); 2: (any colour, any rank).\n"
    start = "played card 1: yellow 1, which was built. Cards in the deck: 7."
    assert event(told, play, built, 0) == f"Player +1 {start} {shown}"
    assert event(told, play, built, 1) == f"You {start} {own}"


def event_of(t):
    """From a state, the move, the state after it and a seat to what that seat reads; compiled once."""
    indices = jit(t.event_indices)
    return lambda before, action, after, seat: t.events.text(jax.device_get(indices(before, action, after, seat)))


# --- Nothing is given away ------------------------------------------------------------------------------------------


@pytest.mark.nightly_for("hanabi 5", "hanabi small")
@pytest.mark.parametrize("name", ["hanabi", "hanabi small", "hanabi 5"])
def test_events_show_nothing_hidden(name):
    """The own hand and the order of the deck can be anything, before and after the move: the event stays the same."""
    g: Hanabi = game(name)
    before, action, after = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played(name))
    seats = jnp.arange(len(action)) % g.players
    keys = jax.random.split(jax.random.key(1), len(action))

    def hidden(state, seat, key):
        own = jnp.where(state.hands[seat] >= 0, jax.random.randint(key, (g.hand_size,), 0, g.max_score), -1)
        deck = jnp.where(jnp.arange(g.n_cards) < state.dealt, state.deck, jax.random.permutation(key, state.deck))
        return state._replace(deck=deck, hands=state.hands.at[seat].set(own.astype(jnp.int8)))

    t = text(name)
    events = jit(jax.vmap(t.event_indices))
    seen = np.asarray(events(before, action, after, seats))
    disguised = [jit(jax.vmap(hidden))(state, seats, keys) for state in (before, after)]
    assert not np.array_equal(disguised[1].hands, after.hands)
    assert np.array_equal(seen, events(disguised[0], action, disguised[1], seats))
    shown = (np.asarray(action) < 2 * g.hand_size) & (np.asarray(before.seat) != np.asarray(seats))
    changed = after._replace(hands=jnp.where(after.hands >= 0, (after.hands + 1) % g.max_score, after.hands))
    assert ((seen != np.asarray(events(before, action, changed, seats))).any(axis=1) == shown).all()


def test_another_deal_of_the_own_hand_reads_the_same():
    """Two games that differ in the reader's hand only, as long as nobody tells or plays any of it."""
    g = game("hanabi")
    t, step = text("hanabi", "compact"), jit(g.step)
    event = event_of(t)
    rng = np.random.default_rng(0)
    deck = np.asarray(g.reset(jax.random.key(5)).deck)
    other = deck.copy()
    other[: g.hand_size] = np.roll(deck[: g.hand_size], 1)
    states = [g.reset_from_deck(jnp.asarray(cards)) for cards in (deck, other)]
    legal_of = jit(g.legal)
    for turn in range(12):
        legal = np.asarray(legal_of(states[0]))
        kinds = slice(2 * g.hand_size, None) if turn % 2 == 0 else slice(0, 2 * g.hand_size)
        allowed = np.arange(g.n_actions)[kinds][legal[kinds]]
        action = jnp.int32(rng.choice(allowed))
        following = [step(state, action)[0] for state in states]
        read = [event(*pair, 0) for pair in zip(states, (action, action), following, strict=True)]
        assert read[0] == read[1]
        states = following
        if bool(g.done(states[0])) or int(states[0].information) == 0:
            break
    assert turn >= 4


@pytest.mark.parametrize("puzzle", ["plan_path", "sokoban", "sudoku"])
def test_the_local_executor_reads_only_what_it_sees(puzzle):
    """Cells out of sight do not affect the executor's events, but the planner's."""
    name = f"{puzzle} local"
    g, t = game(name), text(name)
    before, action, after = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), played(name))
    field = {"plan_path": "distance", "sokoban": "ground", "sudoku": "grid"}[puzzle]

    def disguise(state, old, new):
        seen = (g.visible(old, EXECUTOR) | g.visible(new, EXECUTOR)).reshape(g.shape)
        values = getattr(state.inner, field)
        other = jnp.where(seen, values, 0 if puzzle == "sudoku" else 1).astype(values.dtype)
        return state._replace(inner=state.inner._replace(**{field: other}))

    both = jit(jax.vmap(lambda b, a, c: (disguise(b, b, c), disguise(c, b, c))))(before, action, after)
    events = jit(jax.vmap(lambda b, a, c: t.event_indices(b, a, c, EXECUTOR)))
    proposed = np.asarray(before.phase) != EXECUTOR
    plain, disguised = np.asarray(events(before, action, after)), np.asarray(events(both[0], action, both[1]))
    assert np.array_equal(plain[proposed], disguised[proposed])
    assert not np.array_equal(getattr(both[1].inner, field), getattr(after.inner, field))


# --- Tokens ---------------------------------------------------------------------------------------------------------

SOME = [
    "tic_tac_toe", "connect_four", "hanabi", "hanabi small", "leduc", "plan_path", "sokoban full", "sudoku",
    "sudoku local",
]  # fmt: skip


@pytest.mark.nightly_for(
    "sudoku local-*-compact", "*-digits by three-*", "hanabi-*", "hanabi small-byte-*", "sokoban full-byte-brief"
)
@pytest.mark.parametrize(("kind", "style"), [
    ("byte", "brief"), ("byte", "compact"), ("smollm2", "compact"), ("digits by three", "full"),
])  # fmt: skip
@pytest.mark.parametrize("name", SOME)
def test_tokens_of_events_equal_the_tokenizers(name, kind, style):
    tok = tokenizer(kind)
    prompt = text(name, style).compile(tok, parts() if style == "full" else None, context="history")
    notation = [t is prompt.text for t in notations(name, style)].index(True)
    events = numbers(name, style, notation)[2]
    check_tokens(prompt.history.event, events.reshape(-1, events.shape[-1]), tok.encode, every=7)


@pytest.mark.nightly_for("*-digits by three-*", "*-sentencepiece-*", "hanabi*", "plan_path local-byte-*")
@pytest.mark.parametrize(("kind", "style", "wrapped"), [
    ("byte", "brief", False), ("smollm2", "compact", True), ("digits by three", "full", True),
    ("sentencepiece", "compact", False),
])  # fmt: skip
@pytest.mark.parametrize("name", ["tic_tac_toe", "hanabi small", "plan_path local"])
def test_a_whole_conversation(name, kind, style, wrapped):
    """Every seat's row, grown inside jit from opening, answers and pending events, is its text's encoding."""
    tok, g = tokenizer(kind), game(name)
    prompt = text(name, style).compile(tok, parts() if wrapped else None, context="history")
    before, action, after = one(played(name), 0)
    over = facts(name)[0][0]
    width = 4 * prompt.event_length
    seats = jnp.arange(g.n_players)
    opening, following = jit(jax.vmap(prompt.opening, (None, 0))), jit(jax.vmap(prompt.next))
    happen = jit(lambda pending, n, *move: jax.vmap(
        lambda p, k, s: join([(p, k), prompt.event(*move, s)], prompt.pad_id, width))(pending, n, seats))  # fmt: skip
    pending, n = jnp.zeros((g.n_players, width), jnp.int32), jnp.zeros(g.n_players, jnp.int32)
    rows, said, heard = {}, {}, [""] * g.n_players
    for turn in range(min(TURNS, 8)):
        if over[turn]:
            break
        state, a, then = one(before, turn), int(action[turn]), one(after, turn)
        seat = int(g.player(state))
        if seat not in rows:
            rows[seat], said[seat] = [], prompt.opening_text(state, seat)
            tokens, lengths = opening(state, seats)
        else:
            said[seat] += prompt.close_text + heard[seat] + prompt.ask_text(seat)
            tokens, lengths = following(pending, n, seats)
        assert tokens.shape[1] == (prompt.opening_length if len(rows[seat]) == 0 else
                                   len(prompt.close_ids) + width + prompt.ask_length)  # fmt: skip
        rows[seat] += tokens[seat, : lengths[seat]].tolist()
        assert tok.encode(said[seat]) == rows[seat]
        rows[seat] += prompt.action_ids[a, : prompt.action_lengths[a]].tolist()
        said[seat] += prompt.text.names[a]
        heard[seat], n = "", n.at[seat].set(0)
        pending, n = happen(pending, n, state, jnp.int32(a), then)
        heard = [text_ + prompt.event_text(state, a, then, s) for s, text_ in enumerate(heard)]
    assert any(row for row in rows.values())


def test_history_is_the_models_own_chat():
    """Opening, answer, and what follows read like the chat template's rendering of the same messages."""
    tok, t = byte_tokenizer(), text("connect_four")
    prompt = t.compile(tok, parts(), context="history")
    before, action, after = one(played("connect_four"), 1)
    first, second, third = (one(before, i) for i in range(3))
    happened = prompt.event_text(first, action[0], second, 0) + prompt.event_text(second, action[1], third, 0)
    messages = [
        {"role": "system", "content": f"{t.rules}\n{t.roles[0]}"},
        {"role": "user", "content": t.observe(first, 0) + t.questions[0]},
        {"role": "assistant", "content": t.names[3]},
        {"role": "user", "content": happened + t.asks[0]},
    ]
    grown = prompt.opening_text(first, 0) + t.names[3] + prompt.close_text + happened + prompt.ask_text(0)
    assert grown == tok.chat(messages)


@pytest.mark.nightly
@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=4), st.booleans())
@settings(max_examples=8, deadline=None)
def test_join(sizes, wider):
    parts_ = [(np.arange(1, 1 + width, dtype=np.int32) + 10 * i, min(n, width)) for i, (width, n) in enumerate(sizes)]
    expected = [int(token) for tokens, n in parts_ for token in tokens[:n]]
    width = sum(len(tokens) for tokens, _ in parts_) + 3 if wider else None
    row, length = join([(jnp.asarray(tokens), jnp.int32(n)) for tokens, n in parts_], -7, width)
    assert row.shape[0] == (width or sum(len(tokens) for tokens, _ in parts_))
    assert int(length) == len(expected)
    assert row.tolist() == expected + [-7] * (row.shape[0] - len(expected))


@pytest.mark.parametrize(("merge", "border"), [
    ("9\n", "answer and close"), ("\nY", "close and event"), (".\nY", "event and event"), (".\nW", "event and ask"),
    ("\nW", "close and ask"), ("?\n9", "ask and answer"), ("cell 9", "inside an event"),
])  # fmt: skip
def test_every_border_is_checked(merge, border):
    with pytest.raises(MergeError):
        text("tic_tac_toe").compile(Words(merge), context="history")


def test_free_answers_may_end_with_anything():
    prompt = text("tic_tac_toe").compile(Words("é\n"), context="history")
    assert prompt.close_text == "\n"
    with pytest.raises(MergeError, match="'é' followed by"):
        text("tic_tac_toe").compile(Words("é\n"), context="history", free=True)
    text("tic_tac_toe").compile(tokenizer("smollm2"), parts(), context="history", free=True)


def test_events_need_the_history_context():
    prompt = text("tic_tac_toe").compile(byte_tokenizer())
    with pytest.raises(ValueError, match="compiled for 'turn'"):
        prompt.ask(0)
    silent = dataclasses.replace(text("tic_tac_toe"), events=None)
    with pytest.raises(ValueError, match="context is 'history', but the text of tic_tac_toe has no events"):
        silent.compile(byte_tokenizer(), context="history")


# --- Compact --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["smollm2", "qwen2.5"])
def test_compact_words_are_single_tokens(kind):
    """Every word of the notation, every letter of a colour, and the names of the actions."""
    encode = tokenizer(kind).encode
    words = dataclasses.asdict(short_text.WORDS)
    words = [w for w in (*words["players"], *(w for w in words.values() if isinstance(w, str))) if w.isalpha()]
    for word in (*(w for w in words if w != "fireworks"), *"RYGWB", *"rygwb"):
        assert len(encode("\n " + word)) - len(encode("\n")) == 1, word


def test_compact_is_short():
    """The full game of Hanabi for two, over random games: two fifths of full or less, events of a few dozen tokens."""
    encode = tokenizer("smollm2").encode

    def mean(style, which):
        t, found = text("hanabi", style), numbers("hanabi", style)[which]
        template = t.events if which == 2 else t.observation
        rows = found.reshape(-1, found.shape[-1])[::9]
        return np.mean([len(encode(template.text(row))) for row in rows])

    assert mean("compact", 0) < 0.4 * mean("full", 0)
    assert 12 < mean("compact", 2) < 40


@pytest.mark.parametrize("name", FORMS)
def test_the_notation_suits_the_tokenizer(name):
    """For bytes signs; for byte-pair encodings words, where signs would merge."""
    t = text(name, "compact")
    if not t.others:
        pytest.skip(f"{name} has one notation for all tokenizers")
    assert t.compile(byte_tokenizer()).text is t.others[-1]
    assert t.compile(tokenizer("smollm2")).text is not t.others[-1]
    with pytest.raises(MergeError):
        t.others[-1].compile(tokenizer("smollm2"))


def test_make_knows_every_style():
    for style in texts.STYLES:
        assert make_text(make("tic_tac_toe"), style).style == style


@pytest.mark.nightly
def test_the_page_shows_the_texts_as_they_are():
    """docs/texts.md is what its script writes."""
    assert texts_page.PAGE.read_text() == texts_page.page(), "run `python -m scripts.texts_page`"
