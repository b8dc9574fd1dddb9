"""Texts of the games: jit tokens equal the tokenizer's, nothing hidden is shown, answers are read."""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games import text as texts
from envs.games.bots import UniformBot
from envs.games.hanabi.rules import Hanabi
from envs.games.registry import GAMES, make, make_text
from envs.games.roles import EXECUTOR, PLANNER, TwoRole
from models import chat, tokenizers
from tests.conftest import published, shared_data
from tests.envs.test_template import LLAMA3, Rust
from tests.models.tiny_models import quick_jit as jit

pytestmark = pytest.mark.long

SMALL = {name: dict(n_train=6, n_test=2) for name in ("plan_path", "sokoban", "sudoku")}
ROWS, TURNS = 8, 12


@functools.cache
def game(name: str):
    """A game by its name, or by the name of a form of it."""
    if name in GAMES:
        return make(name, **SMALL.get(name, {}))
    plain, _, form = name.partition(" ")
    if plain == "hanabi":
        return make("hanabi", **({"preset": "small"} if form == "small" else {"players": int(form)}))
    return make(plain, view=form) if plain in ("pursuit", "warehouse") else TwoRole(game(plain), view=form)


@functools.cache
def positions(name: str):
    """States of random play [N], N = ROWS * TURNS; games that end early begin again with the next deal."""
    g = game(name)
    bot = UniformBot(g)

    def turn(state, key):
        following, _ = g.step(state, bot.act(state, key))
        fresh = g.reset(key)
        return jax.tree.map(lambda a, b: jnp.where(g.done(following), b, a), following, fresh), state

    def row(key):
        first, rest = jax.random.split(key)
        return jax.lax.scan(turn, g.reset(first), jax.random.split(rest, TURNS))[1]

    states = jit(jax.vmap(row))(jax.random.split(jax.random.key(0), ROWS))
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), states)


@functools.cache
def text(name: str, style: str = "full"):
    return make_text(game(name), style)


@functools.cache
def numbers(name: str, style: str):
    """The indices of `opening` in every position, for the player to move."""
    prompt, player = byte_prompt(name, style), game(name).player
    return jax.device_get(jit(jax.vmap(lambda s: prompt.opening_indices(s, player(s))))(positions(name)))


@functools.cache
def byte_prompt(name: str, style: str):
    return text(name, style).compile(byte_tokenizer(), parts() if style == "full" else None, context="history")


def one(states, i: int):
    return jax.tree.map(lambda x: x[i], states)


@functools.cache
def byte_tokenizer():
    return tokenizers.load("bytes")


@functools.cache
def tokenizer(kind: str):
    if kind == "byte":
        return byte_tokenizer()
    if kind == "smollm2":
        return tokenizers.load(published("smollm2-135m"))
    if kind == "sentencepiece":
        return tokenizers.load(shared_data("weights/tok512.model"))
    file = shared_data("tokenizers/qwen2.5_tokenizer.json.xz")
    if kind == "qwen2.5":
        return Rust(file)
    import tokenizers as rust

    pre = rust.pre_tokenizers
    byte_level = pre.ByteLevel(add_prefix_space=False, use_regex=kind == "digits apart")
    first = pre.Digits(individual_digits=True) if kind == "digits apart" else pre.Split(rust.Regex(LLAMA3), "isolated")
    return Rust(file, pre.Sequence([first, byte_level]))


TOKENIZERS = ["byte", "qwen2.5", "smollm2"]
OTHERS = ["digits apart", "digits by three", "sentencepiece"]
FORMS = [
    *GAMES,
    "hanabi small",
    "hanabi 5",
    *(f"{puzzle} {view}" for puzzle in ("plan_path", "sokoban", "sudoku") for view in ("full", "local")),
    "pursuit local",
    "warehouse local",
]
# The others say in other words or places what one of these says too.
MOST = [name for name in FORMS if not name.endswith((" full", " small"))]


@functools.cache
def parts():
    return chat.chat_parts(byte_tokenizer())


def check_tokens(compiled, indices, encode, every: int = 4):
    tokens, lengths = jax.device_get(jit(jax.vmap(compiled.render))(indices))
    assert lengths.min() >= compiled.min_length
    for i in range(0, len(indices), every):
        string = compiled.template.text(indices[i])
        assert tokens[i, : lengths[i]].tolist() == list(encode(string)), string
        assert (tokens[i, lengths[i] :] == compiled.pad_id).all()


@pytest.mark.nightly_for(
    "hanabi 5-*", "* local-*", "pursuit-byte", "hanabi-byte", "plan_path-byte", "sokoban-byte", "sudoku-byte"
)
@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("name", MOST)
def test_tokens_equal_the_tokenizers(name, kind):
    """The prompt of a single turn, or of the first turn of a conversation; tests/envs/test_events.py has the rest."""
    tok = tokenizer(kind)
    prompt = byte_prompt(name, "full") if kind == "byte" else text(name).compile(tok, parts())
    first = numbers(name, "full")
    check_tokens(prompt.compiled_opening, first, tok.encode)
    question = prompt.compiled_opening.template.text(first[0])
    for action in range(0, len(prompt.action_ids), 7):
        ids = prompt.action_ids[action, : prompt.action_lengths[action]].tolist()
        assert tok.encode(question + prompt.text.names[action]) == tok.encode(question) + ids


@pytest.mark.nightly
@pytest.mark.parametrize("style", ["full", "compact"])
@pytest.mark.parametrize("kind", OTHERS)
@pytest.mark.parametrize("name", MOST)
def test_texts_suit_other_tokenizers(name, kind, style):
    """Compiling refuses a text with a border that merges, and compares whole renderings."""
    wrapped = None if kind == "sentencepiece" else parts()
    prompt = text(name, style).compile(tokenizer(kind), wrapped, context="history")
    assert prompt.event_length < prompt.opening_length - len(prompt.prefix)


@pytest.mark.nightly_for("hanabi 5", "hanabi", "hanabi small", "plan_path full", "sokoban full", "sudoku full")
@pytest.mark.parametrize("name", FORMS)
def test_brief_tokens_are_bytes(name):
    check_tokens(byte_prompt(name, "brief").compiled_opening, numbers(name, "brief"), byte_tokenizer().encode)


@pytest.mark.parametrize(
    ("name", "limit"),
    [("tic_tac_toe", 12), ("connect_four", 24), ("hanabi small", 80), ("hanabi", 300), ("sudoku", 24)],
)
def test_brief_is_short(name, limit):
    prompt = byte_prompt(name, "brief")
    assert prompt.opening_length < limit
    assert prompt.opening_length == prompt.compiled_opening.min_length, "every field has one width"


def test_prompt_of_a_state():
    """The jitted functions of a prompt, and its strings."""
    g, states = game("tic_tac_toe"), positions("tic_tac_toe")
    prompt = byte_prompt("tic_tac_toe", "full")
    state = one(states, 3)
    player = int(g.player(state))
    tokens, length = jit(prompt.opening)(state, player)
    string = prompt.opening_text(state, player)
    assert byte_tokenizer().decode(tokens[:length].tolist()) == string
    assert prompt.opening_length == tokens.shape[0]
    assert string.startswith("<|im_start|>system\n" + text("tic_tac_toe").rules)
    assert string.endswith("<|im_start|>assistant\n")
    tail, tail_length = jit(prompt.suffix)(state, player)
    assert (*prompt.prefix, *tail[:tail_length].tolist()) == tuple(tokens[:length].tolist())
    assert len(prompt.prefix) > len(text("tic_tac_toe").rules) / 2


@pytest.mark.nightly_for("hanabi 5-full", "hanabi-full")
@pytest.mark.parametrize("style", texts.STYLES)
@pytest.mark.parametrize("name", ["hanabi", "hanabi small", "hanabi 5"])
def test_hanabi_shows_only_what_is_known(name, style):
    """Own cards and the order of the deck can be anything: the prompt stays the same; partners' cards change it."""
    g: Hanabi = game(name)
    states = positions(name)
    seats = jax.vmap(g.player)(states)
    indices = jit(jax.vmap(text(name, style).indices))
    seen = np.asarray(indices(states, seats))

    def shuffled(state, seat, key):
        """A state that looks the same: the seat's hand and the deck are dealt again from the hidden cards."""
        places = jnp.arange(g.n_cards)
        order = jnp.argsort(jnp.where(places >= state.dealt, jax.random.uniform(key, places.shape), -1.0))
        deck = state.deck[jnp.where(places >= state.dealt, order, places)]
        own = jnp.where(state.hands[seat] >= 0, jax.random.randint(key, (g.hand_size,), 0, g.max_score), -1)
        return state._replace(deck=deck, hands=state.hands.at[seat].set(own.astype(jnp.int8)))

    keys = jax.random.split(jax.random.key(1), len(seen))
    other = jit(jax.vmap(shuffled))(states, seats, keys)
    assert not np.array_equal(other.hands, states.hands)
    assert not np.array_equal(other.deck, states.deck)
    assert np.array_equal(seen, indices(other, seats))
    partner = (seats + 1) % g.players
    changed = states._replace(
        hands=jax.vmap(lambda h, p: h.at[p, 0].set((h[p, 0] + 1) % g.max_score))(states.hands, partner)
    )
    assert (seen != np.asarray(indices(changed, seats))).any(axis=1).all()


def test_hanabi_example():
    """A hint and a play, as both players read them."""
    g = Hanabi(colors=2, ranks=3, hand_size=2, max_information_tokens=3, max_life_tokens=2)
    deck = jnp.array([0, 4, 3, 1, 0, 0, 1, 2, 3, 3, 4, 5])  # R1 Y2 | Y1 R2 | …
    state = g.reset_from_deck(deck)
    step = jit(g.step)
    state, _ = step(state, jnp.int32(g.action_texts.index("tell player +1 about yellow")))
    state, _ = step(state, jnp.int32(g.action_texts.index("play card 1")))
    first, second = (make_text(g).observe(state, player) for player in (0, 1))
    for line in (
        "Fireworks: red 0, yellow 1",
        "Information tokens: 2 of 3",
        "Lives: 2 of 2",
        "Cards in the deck: 7",
        "Discarded: red none, yellow none",
    ):
        assert line in first.splitlines() and line in second.splitlines()
    assert "you told player +1 about yellow: card 1" in first
    assert "player +1 played card 1: yellow 1, which was built" in first
    assert "player +1 told you about yellow: card 1" in second
    assert "1: red 2 (red, any rank)\n2: red 1 (any colour, any rank)" in first
    assert "hints tell:\n1: red, any rank\n2: any colour, any rank\n" in second


def test_roles_read_different_things():
    g = game("plan_path local")
    state = g.reset(jax.random.key(0))
    t = text("plan_path local")
    planner = t.observe(state, PLANNER)
    assert "?" not in planner and "proposes" not in planner
    state, _ = jit(g.step)(state, jnp.int32(3))
    executor = t.observe(state, EXECUTOR)
    assert "The planner proposes right.\n" in executor
    assert executor.count("?") == int((~g.visible(state, EXECUTOR)).sum())
    prompt = byte_prompt("plan_path local", "full")
    assert "You are the planner." in prompt.opening_text(state, PLANNER)
    assert "You are the executor. ?" in prompt.opening_text(state, EXECUTOR)


@pytest.mark.parametrize("puzzle", ["plan_path", "sokoban", "sudoku"])
def test_executor_does_not_read_what_it_cannot_see(puzzle):
    """Every cell out of sight reads as hidden."""
    g = game(f"{puzzle} local")
    states = positions(f"{puzzle} local")
    t = text(f"{puzzle} local")
    numbers_of = jit(lambda s: t.indices(s, EXECUTOR))
    cells = g.shape[0] * g.shape[1]
    for i in itertools.islice((i for i in range(ROWS * TURNS) if int(states.phase[i]) == EXECUTOR), 5):
        state = one(states, i)
        hidden = ~np.asarray(g.visible(state, EXECUTOR))
        seen = np.asarray(numbers_of(state))
        assert (seen[:cells][hidden] == seen[:cells].max()).all()
        assert hidden.any() and not hidden.all()


def test_sudoku_tells_givens_from_entries():
    g = game("sudoku")
    state = g.reset(jax.random.key(0))
    entry = int(np.flatnonzero(g.legal(state))[0])
    t = text("sudoku")
    before = t.observe(state, 0)
    state, _ = g.step(state, jnp.int32(entry))
    after = t.observe(state, 0)
    assert "+" not in before
    assert f"+{entry % g.size + 1}" in after or before.splitlines()[:-1] == after.splitlines()[:-1]


@pytest.mark.parametrize(
    ("name", "answer", "action"),
    [
        ("tic_tac_toe", "5", 4),
        ("tic_tac_toe", "I looked at 3 and 7; I take cell 9.", 8),
        ("tic_tac_toe", "cell 10", None),
        ("tic_tac_toe", "", None),
        ("plan_path", "Not up. Right!", 3),
        ("sudoku", "Answer: B3=1", (4 + 2) * 4),
        ("sudoku", "b3 = 1", None),
        ("hanabi 5", "D", 3),
        ("hanabi 5", "I look at A and B. My answer is: D, I think.", 3),
        ("hanabi 5", "the answer is d", 29),
    ],
)
def test_free_answers(name, answer, action):
    assert text(name).parse(answer) == action


def test_free_answers_that_must_be_legal():
    legal = np.ones(9, bool)
    legal[8] = False
    assert text("tic_tac_toe").parse("3 or 9", legal) == 2
    assert text("tic_tac_toe").parse("9", legal) is None


@pytest.mark.parametrize("name", FORMS)
def test_names_can_be_told_apart(name):
    """No name is the beginning of another, so an answer ends by itself."""
    for style in texts.STYLES:
        names = sorted(text(name, style).names)
        assert not any(b.startswith(a) for a, b in itertools.pairwise(names))
        for action, own in enumerate(text(name, style).names):
            assert text(name, style).parse(own) == action


def test_single_tokens():
    """Where names are one sign or word, an answer is one decoding step."""
    for name in ("tic_tac_toe", "connect_four", "hanabi", "hanabi 5", "plan_path", "sokoban"):
        prompt = text(name).compile(tokenizer("qwen2.5"), parts())
        assert prompt.action_ids.shape[1] == 1, name


def test_bad_choices():
    with pytest.raises(ValueError, match="style is 'long', but must be one of: full, compact, brief"):
        make_text(game("tic_tac_toe"), "long")
    with pytest.raises(ValueError, match="context is 'all', but must be one of: turn, history"):
        text("tic_tac_toe").compile(byte_tokenizer(), context="all")


@pytest.mark.parametrize("name", [*GAMES, "plan_path full", "sudoku local"])
def test_a_text_can_ask_for_reasoning_and_reads_the_answer_behind_it(name):
    plain, reasoned = (make_text(game(name), reasoning=on) for on in (False, True))
    for before, after in zip(plain.questions, reasoned.questions, strict=True):
        assert texts.HOW in before and texts.HOW not in after and 'Then write "Answer:" and ' in after
        assert after.startswith(before.split(texts.HOW)[0]) and after.endswith(before.split(texts.HOW)[1])
    assert reasoned.asks == plain.asks and reasoned.rules == plain.rules
    first, *_, last = plain.names
    said = f"{first} looks good, but {first} loses.\nAnswer: {last}, not {first}"
    assert reasoned.parse(said) == len(plain.names) - 1
    unfinished = said.split("Answer:")[0]
    assert reasoned.parse(unfinished) is None and plain.parse(unfinished) == 0
    prompt = reasoned.compile(byte_tokenizer(), parts(), free=True)
    assert reasoned.questions[0] in prompt.opening_text(jax.tree.map(lambda x: x[0], positions(name)), 0)
    bare = dataclasses.replace(plain, questions=plain.asks)
    assert all(q.endswith('Then write "Answer:" and the name of an action.') for q in bare.reasoned().questions)
    with pytest.raises(ValueError, match="style is 'brief', but must be 'full' to ask for reasoning"):
        make_text(game(name), "brief", reasoning=True)
