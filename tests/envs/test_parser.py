"""The parser in jit finds in tokens what `answers.parse` finds in their text."""

import functools
import lzma
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import tokenizers as rust
from hypothesis import example, given, settings
from hypothesis import strategies as st

from envs.games import answers
from envs.games import text as texts
from envs.games.parser import make_parser
from envs.games.registry import GAMES, make, make_text
from envs.games.token_codes import RUN, token_codes
from models import tokenizers
from models.tokenizers.bpe import BYTE, CONTROL, NORMAL, UNKNOWN, byte_characters, byte_level_bpe, sentencepiece_bpe
from models.tokenizers.tokenizer import build
from tests.conftest import examples, nightly_cases, published, shared_data

pytestmark = pytest.mark.long

SMALL = {name: dict(n_train=6, n_test=2) for name in ("plan_path", "sokoban", "sudoku")}
WIDTH, ROWS = 64, 4

ADVERSARIAL = {
    "prefixes": ("a", "ab", "abc", "a b", "a b c", "b", "c a"),
    "spaces": ("play red 1", "red 1", "1 red", "red", " red", "red ", "discard 1"),
    "case": ("a", "A", "go", "Go", "GO"),
    "overlap": ("x-x", "x", "-x-", "x-x-x-"),
    "colons": ("a:b", "answer:", "b", ":", "answer", "b: c"),
    "signs": ("=", "==", "=1", "1=", "1=1", ".*", "(a)"),
    "one": ("kiss",),
}


# Bytes that are part of no name, in runs that begin and end with and without a letter.
RUNS = ["zz .", ". zz", "zz\nzz", ".\n.", "zz é", "é zz", "." * 19, "." * 20, "." * 21, "z" * 20, ".z" * 10 + "."]


@functools.cache
def names_of(key: str) -> tuple[str, ...]:
    """An adversarial set, or the names of a game in a style."""
    if key in ADVERSARIAL:
        return ADVERSARIAL[key]
    game, style = key.split("/")
    return make_text(make(game, **SMALL.get(game, {})), style).names


SETS = [*ADVERSARIAL, *(f"{game}/{style}" for game in GAMES for style in texts.STYLES)]


@functools.cache
def tokenizer_of(kind: str):
    """Bytes; a BPE with long tokens full of names and marks; SentencePiece; those of published models."""
    if kind == "bytes":
        return tokenizers.load("tiny")
    if kind == "merged":
        # Every beginning of these is a token, so that names and marks are cut at many places.
        long = [
            "Answer: ", "answer is:\n", "the answer", " my final answer (a cell):", "::a:b::", "x-x-x-x", "red 1 red",
            "answeranswer", "nswer", " 1 2 3 12", "=1=1=", "abc", "up down", "a b c a b", "é:", "\nanswer", " " * 30,
            "answer" + "." * 21, "wer" + "." * 19, "kiss:1", "é1é", "B3=1", *RUNS,
        ]  # fmt: skip
        letters = byte_characters()
        spelled = ["".join(letters[b] for b in text.encode()) for text in long]
        merges = list(dict.fromkeys((word[:i], word[i]) for word in spelled for i in range(1, len(word))))
        tokens = [*letters, *dict.fromkeys(left + right for left, right in merges), "<|1|>", "<|im_end|>"]
        types = [NORMAL] * (len(tokens) - 2) + [CONTROL] * 2
        return build("merged", byte_level_bpe(tokens, types, merges, "whole"), None)
    if kind == "pieces":
        pieces = ["▁", "▁a", "a", "b", "▁▁", "▁red", "▁1", "1", ":", "answ", "er", "▁answer", "▁answer:", "r", "e", "d"]
        tokens = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), *pieces]
        types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * len(pieces)]
        return build("pieces", sentencepiece_bpe(tokens, types, [-float(i) for i in range(len(tokens))]), None)
    if kind == "qwen2.5":
        packed = shared_data("tokenizers/qwen2.5_tokenizer.json.xz").read_bytes()
        return build("qwen2.5", rust.Tokenizer.from_str(lzma.decompress(packed).decode()), None)
    return tokenizers.load(published(kind))


@functools.cache
def bytes_of(kind: str):
    return tokenizer_of(kind).token_bytes(skip_special=True)


@functools.cache
def parser_of(kind: str, key: str, marked: bool = False):
    return jax.jit(make_parser(names_of(key), bytes_of(kind), marked))


def parsed(kind: str, key: str, rows: list[list[int]], legal: np.ndarray, marked: bool = False) -> list[int | None]:
    """Actions parsed inside jit. All calls have the same shapes, with random tokens as padding."""
    tokens = np.full((ROWS, WIDTH), tokenizer_of(kind).encode("1")[-1], np.int32)
    lengths = np.zeros((ROWS,), np.int32)
    for i, row in enumerate(rows):
        tokens[i, : len(row)], lengths[i] = row, len(row)
    allowed = np.zeros((ROWS, len(names_of(key))), bool)
    allowed[: len(legal)] = legal
    found = parser_of(kind, key, marked)(jnp.asarray(tokens), jnp.asarray(lengths), jnp.asarray(allowed)).tolist()
    assert all(action == -1 for action in found[len(rows) :])
    return [None if action < 0 else action for action in found[: len(rows)]]


SIGNS = [
    "", " ", "  ", ".", "\n", ":", ": ", "-", "=", "1", "12", "0", "é", "ſ", "\u212a", "：", "你", "\x00", "\t", "a",
    "Z", "_", "'", "<|1|>", "</s>", "\ufffd", *RUNS,
]  # fmt: skip
MARKS = [
    "answer:", "Answer: ", "ANSWER is: ", "an\u017fwer:", "the final answer (one name):", "answer é:", "answer", "answ",
    "wer:", "answeranswer:", "answer\n:", "answer" + "." * 20 + ":", "answer" + "." * 21 + ":",
]  # fmt: skip

# Every pair of a vocabulary and a set of names is a program to compile, so that large vocabularies have few sets.
FULL = [key for key in SETS if not key.endswith("/brief")]
FEW = ["spaces", "overlap", "colons", "plan_path/full", "tic_tac_toe/full"]
KINDS = {"bytes": SETS, "merged": FULL, "pieces": FEW, "smollm2-135m": FEW[:3], "qwen2.5": FEW[2:4]}


@st.composite
def questions(draw, sets, whole=False):
    """(a set of names, texts, legal [len(texts), A]) with names, parts of names and marks in many contexts.

    `whole`: a text is a list of its parts.
    """
    key = draw(st.sampled_from(sets))
    names = names_of(key)
    name = st.sampled_from(names)
    near = st.builds(lambda word, i, j: word[i:][: len(word) - j], name, st.integers(0, 1), st.integers(0, 1))
    cased = st.builds(lambda word, how: how(word), name, st.sampled_from([str.upper, str.lower, str.swapcase]))
    sign = st.sampled_from(SIGNS)
    part = st.one_of(name, name, near, cased, sign, st.sampled_from(MARKS), st.characters())
    # A mark matters if there are names on both sides of it, and two after it.
    marked = st.tuples(sign, name, sign, st.just("answer"), sign, st.just(":"), sign, name, st.just(" "), name, sign)
    text = st.lists(part, max_size=12) | marked
    n = draw(st.integers(1, ROWS))
    written = [draw(text if whole else text.map("".join)) for _ in range(n)]
    kept = draw(st.sampled_from([0.0, 0.3, 0.7, 1.0]))
    legal = np.random.default_rng(draw(st.integers(0, 99))).random((n, len(names))) < kept
    return key, written, legal


@pytest.mark.nightly_for("smollm2-135m", "merged", "pieces")
@pytest.mark.parametrize("kind", nightly_cases(KINDS, "qwen2.5"))
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_jit_finds_in_tokens_what_is_in_the_text(kind, data):
    key, written, legal = data.draw(questions(KINDS[kind]))
    tokenizer, marked = tokenizer_of(kind), kind == "pieces" and data.draw(st.booleans())  # one kind: all compile twice
    rows = [tokenizer.encode(text.encode(errors="replace").decode())[-WIDTH:] for text in written]
    wanted = [
        answers.parse(names_of(key), tokenizer.decode(row, skip_special=True), allowed, marked)
        if kind != "pieces"  # which decodes ASCII next to broken UTF-8 to U+FFFD; see the test of `token_bytes`
        else answers.parse(names_of(key), bytes_of(kind).join(row), allowed, marked)
        for row, allowed in zip(rows, legal, strict=True)
    ]
    assert parsed(kind, key, rows, legal, marked) == wanted


@pytest.mark.nightly_for("qwen2.5", "smollm2-135m", "merged", "bytes")
@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_any_tokens_are_read_as_their_bytes(kind, data):
    """Also those that no text is encoded to, ids without a token, and broken UTF-8."""
    key, written, legal = data.draw(questions(KINDS[kind], whole=True))
    names, vocabulary, tokenizer = names_of(key), bytes_of(kind), tokenizer_of(kind)
    odd = st.just([]) | st.lists(st.integers(-1, tokenizer.vocab_size + 3), max_size=2)
    rows = [
        [i for part in parts for i in (*tokenizer.encode(part.encode(errors="replace").decode()), *data.draw(odd))]
        for parts in written
    ]
    rows = [row[-WIDTH:] for row in rows]
    pairs = list(zip(rows, legal, strict=True))
    found = parsed(kind, key, rows, legal)
    assert found == [answers.parse(names, vocabulary.join(row), allowed) for row, allowed in pairs]
    if kind != "pieces":
        kept = [[i for i in row if i >= 0] for row in rows]
        decoded = [tokenizer.decode(row, skip_special=True) for row in kept]
        assert found == [answers.parse(names, t, allowed) for t, allowed in zip(decoded, legal, strict=True)]


@settings(max_examples=examples(300), deadline=None)
@given(question=questions(SETS))
@example((("one"), ["KISS \u212aiss kiſs"], np.ones((1, 1), bool)))
def test_the_definition_reads_as_it_is_written(question):
    """`answers.parse` against a slow reading of its docstring, place by place."""
    key, written, legal = question
    for text, allowed in zip(written, legal, strict=True):
        for marked in (False, True):
            assert answers.parse(names_of(key), text, allowed, marked) == plain(names_of(key), text, allowed, marked)


def plain(names, text, legal, marked):
    """The docstring of `answers.py`, one place after the other."""
    text = "".join(c if c.isascii() else "\x80" for c in text)
    fold = (lambda word: word.lower()) if answers.folds(names) else (lambda word: word)

    def name_at(i):
        fits = [
            a for a, name in enumerate(names)
            if legal[a] and fold(text[i : i + len(name)]) == fold(name)
            and not re.match("[A-Za-z0-9]", text[i - 1 : i] if i else "")
            and not re.match("[A-Za-z0-9]", text[i + len(name) :])
        ]  # fmt: skip
        return max(fits, key=lambda a: len(names[a]), default=None)

    def is_mark(i, colon):
        between = text[i + 6 : colon]
        return text[i : i + 6].lower() == "answer" and colon - i - 6 in range(21) and not set(between) & set(":\n\x80")

    ends = [j + 1 for j, c in enumerate(text) if c == ":" for i in range(max(j - 26, 0), j - 5) if is_mark(i, j)]
    after = [name_at(i) for i in range(max(ends), len(text)) if name_at(i) is not None] if ends else []
    if after or marked:
        return after[0] if after else None
    i, last = 0, None
    while i < len(text):
        action = name_at(i)
        last = last if action is None else action
        i += 1 if action is None else len(names[action])
    return last


@pytest.mark.parametrize("kind", ["bytes", "merged", "pieces"])
@pytest.mark.parametrize(
    ("key", "text", "name"),
    [
        ("prefixes", "b answer" + "." * 20 + ": a c", "a"),
        ("prefixes", "b answer" + "." * 21 + ": a b", "a b"),
        ("prefixes", "b answer\n: a, b", "b"),
        ("prefixes", "b answer é: a, b", "b"),
        ("prefixes", "b answer: answer:: a, b", "a"),
        ("prefixes", "answer: a: b", "a"),
        ("prefixes", "answer: a. Answer: b, a", "b"),
        ("prefixes", "b answer" + "." * 21 + "answer: a, b", "a"),
        ("prefixes", "a, b. Answer: none", "b"),
        ("prefixes", "a b c a", "a"),
        ("spaces", "x- red", " red"),
        ("spaces", "x red", "red"),
        ("overlap", "x-x-x", "x"),
        ("case", "go Go gO", "Go"),
        ("one", "KISS", "kiss"),
        ("one", "\u212aiss ki\u017fs", None),
    ],
)
def test_examples(kind, key, text, name):
    wanted = None if name is None else names_of(key).index(name)
    legal = np.ones((1, len(names_of(key))), bool)
    assert answers.parse(names_of(key), text) == wanted
    assert parsed(kind, key, [tokenizer_of(kind).encode(text)[:WIDTH]], legal) == [wanted]


def test_the_space_that_sentencepiece_drops_is_no_part_of_a_name():
    tokenizer, legal = tokenizer_of("pieces"), np.ones((1, 7), bool)
    ids = [tokenizer.rust.token_to_id("▁red")]
    inside = [tokenizer.rust.token_to_id(":"), *ids]
    assert tokenizer.decode(ids) == "red" and tokenizer.decode(inside) == ": red"
    names = names_of("spaces")
    assert [names[parsed("pieces", "spaces", [row], legal)[0]] for row in (ids, inside)] == ["red", " red"]
    nowhere = [*inside, -1, 9999]  # ids that no token has
    assert names[parsed("pieces", "spaces", [nowhere], legal)[0]] == " red"


def test_codes_keep_what_can_be_part_of_a_name_or_mark():
    class Words:
        """Some tokens."""

        def __init__(self, *words):
            self.store = np.frombuffer(b"".join(words), np.uint8)
            self.starts, self.strips_space = np.cumsum([0, *map(len, words)]), False

    def coded(word):
        table, counts = token_codes(("up", "Down"), Words(b"", word))
        assert counts[0] == 0 and (table[1, counts[1] :] == RUN).all()
        return bytes(table[1, : counts[1]])

    def run(size, first=False, last=False):
        return bytes([RUN + 4 * size + 2 * last + first])

    assert coded(b" up") == run(1) + b"up" and coded(b"OW") == b"OW" and coded(b"w") == b"w"
    assert coded(b"soup") == run(4, True, True)  # no name: a letter touches it
    assert coded(b"so up") == run(3, True, False) + b"up"
    assert coded(b"setdefault") == run(10, True, True)
    assert coded(b"linean") == run(4, True, True) + b"an"  # may become "answer"
    assert coded(b" " * 128) == run(21)
    assert coded(b"xx\nyy") == run(0, True, True) == coded("xéy".encode())
    assert coded(b"::::") == b":" + run(0)
    assert coded(b"\n: answer: :") == run(0) + b"answer:" + run(0)


@pytest.mark.nightly
def test_tables_of_large_vocabularies_are_small():
    vocabulary = bytes_of("qwen2.5")
    assert np.diff(vocabulary.starts).max() == 128
    for key in ("plan_path/full", "sudoku/full"):
        codes, counts = token_codes(names_of(key), vocabulary)
        assert codes.shape[1] <= 12 and codes.nbytes + counts.nbytes < 3e6, key


@pytest.mark.parametrize("names", [("a", ""), ("é",), ("a", "a"), ("a\nb",)])
def test_bad_names_are_refused(names):
    with pytest.raises(ValueError, match="must be"):
        make_parser(names, bytes_of("bytes"))
