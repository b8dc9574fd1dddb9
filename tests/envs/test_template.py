"""Templates: the same text as a string and as tokens inside jit, and refusal where tokens would cross a border."""

import itertools
import lzma

import jax
import numpy as np
import pytest
import tokenizers
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from envs.games.borders import MergeError
from envs.games.template import Fixed, Table, Template, check_neighbors, token_table
from tests.conftest import examples, shared_data

pytestmark = pytest.mark.quick


class Bytes:
    """Every byte is a token."""

    pad_id = 256

    def encode(self, text):
        return list(text.encode())


class Words(Bytes):
    """Bytes, but some strings are one token, found from left to right; and maybe a space in front of a sequence."""

    def __init__(self, *words, space=False):
        self.words, self.space = words, space

    def encode(self, text):
        text = " " + text if self.space and text else text
        tokens = []
        while text:
            word = next((i for i, word in enumerate(self.words) if text.startswith(word)), None)
            tokens.append(ord(text[0]) if word is None else 1000 + word)
            text = text[1 if word is None else len(self.words[word]) :]
        return tokens


class Rust:
    """A tokenizer of the Rust library, with another way to split the text first if one is given."""

    pad_id = 0

    def __init__(self, file, split=None):
        self.tokenizer = tokenizers.Tokenizer.from_str(lzma.decompress(file.read_bytes()).decode())
        if split is not None:
            self.tokenizer.pre_tokenizer = split

    def encode(self, text):
        return self.tokenizer.encode(text, add_special_tokens=False).ids


LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(
    scope="module", params=["qwen2.5", "digits apart as in SmolLM2", "digits by three as in Llama 3", "gpt-2"]
)
def bpe(request):
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    split = {
        "qwen2.5": None,
        "gpt-2": byte_level,
        "digits apart as in SmolLM2": pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), byte_level]
        ),
        "digits by three as in Llama 3": pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex(LLAMA3), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    }[request.param]
    return Rust(shared_data("tokenizers/qwen2.5_tokenizer.json.xz"), split)


def rendered(compiled, indices):
    """The tokens of a rendering without their padding, which is checked."""
    tokens, length = compiled.render(np.asarray(indices, np.int32))
    assert tokens.shape == (compiled.max_length,)
    assert compiled.min_length <= length <= compiled.max_length
    assert set(np.asarray(tokens[length:]).tolist()) <= {compiled.pad_id}
    return np.asarray(tokens[:length]).tolist()


def test_example():
    cell = Table(("-", "X", "oh"))
    template = Template((Fixed("Board: "), cell, Fixed(" "), cell))
    assert template.text([1, 2]) == "Board: X oh"
    compiled = template.compile(Bytes())
    assert rendered(compiled, [1, 2]) == list(b"Board: X oh")
    assert bytes(compiled.head) == b"Board: "
    assert (compiled.min_length, compiled.max_length) == (10, 12)
    assert len(compiled.store) == 1 + 3 * 2, "equal tables are stored once"


def test_batches():
    template = Template((Table(("", "a", "bb")), Fixed("-"), Table(("cccc", "")), Table(("x", "yz"))) * 5)
    compiled = template.compile(Bytes())
    sizes = [len(table.variants) for table in template.tables]
    indices = np.random.default_rng(0).integers(sizes, size=(64, len(sizes))).astype(np.int32)
    tokens, lengths = jax.jit(jax.vmap(compiled.render))(indices)
    for row, length, picks in zip(np.asarray(tokens), np.asarray(lengths), indices, strict=True):
        assert bytes(row[:length].tolist()) == template.text(picks).encode()
        assert (row[length:] == Bytes.pad_id).all()


PIECES = st.one_of(
    st.builds(Fixed, st.text("ab \n", max_size=3)),
    st.builds(lambda texts: Table(tuple(texts)), st.lists(st.text("ab1é", max_size=4), min_size=1, max_size=4)),
)


@pytest.mark.nightly
@given(st.lists(PIECES, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=12, deadline=None)
def test_any_template_in_bytes(pieces, random):
    template = Template(tuple(pieces))
    indices = [random.randrange(len(table.variants)) for table in template.tables]
    assert rendered(template.compile(Bytes()), indices) == list(template.text(indices).encode())


@given(st.data())
@settings(max_examples=examples(40), deadline=None)
def test_pairs_are_enough(bpe, data):
    """What passes the check of pairs also passes whole, and what does not is named."""
    texts = st.text("aX1 \n.,'s", max_size=4)
    tables = data.draw(st.lists(st.lists(texts, min_size=2, max_size=3, unique=True), max_size=4))
    template = Template(tuple(Table(tuple(table)) for table in tables))
    try:
        compiled = template.compile(bpe)
    except MergeError as error:
        assert "followed by" in str(error)
        return
    assert compiled.max_length >= compiled.min_length
    for indices in itertools.product(*(range(len(table)) for table in tables)):
        whole = template.text(indices)
        apart = [token for text in template.strings(indices) for token in bpe.encode(text)]
        assert apart == bpe.encode(whole), whole


def test_refuses_a_merge():
    with pytest.raises(MergeError, match=r"'a' followed by 'b'"):
        Template((Table(("x", "a")), Table(("c", "b")))).compile(Words("ab"))
    with pytest.raises(MergeError, match=r"'a' followed by 'b'"):  # through empty variants
        Template((Table(("x", "a")), Table(("", "y")), Table(("", "z")), Table(("c", "b")))).compile(Words("ab"))
    with pytest.raises(MergeError, match=r"'a' followed by 'b'"):
        Template((Table(("x", "a")),)).compile(Words("ab"), followed_by=("b",))
    Template((Table(("x", "a")), Fixed("y"), Table(("c", "b")))).compile(Words("ab"))


def test_linked_tables_are_shown_together():
    """Borders with only a part of them shown do not come up; all others are checked."""

    def template(linked):
        return Template((Fixed("a"), Table(("", "b")), Table(("", "c"), linked=linked), Fixed("d")))

    for merge in ("ac", "bd"):
        template(True).compile(Words(merge))
        with pytest.raises(MergeError):
            template(False).compile(Words(merge))
    for merge in ("ab", "bc", "cd", "ad"):
        with pytest.raises(MergeError):
            template(True).compile(Words(merge))
    with pytest.raises(ValueError, match="table 1 is linked, so its first variant"):
        Template((Table(("", "b")), Table(("c", "d"), linked=True))).compile(Bytes())
    with pytest.raises(ValueError, match="table 0 is linked"):
        Template((Fixed("b"), Table(("", "d"), linked=True))).compile(Bytes())


def test_refuses_what_merges_between_templates():
    """Fixed texts that are rendered separately are not joined first."""
    a, b = Template((Fixed("a"),)), Template((Fixed("b"), Table(("", "c"))))
    check_neighbors(Words("ac"), [a, b, a])
    for merge in ("ab", "ba", "ca"):
        with pytest.raises(MergeError):
            check_neighbors(Words(merge), [a, b, a])
    with pytest.raises(MergeError):
        check_neighbors(Words("ax"), [b, a], followed_by=("x",))


def test_refuses_a_merge_of_three():
    """A tokenizer that is not a byte-pair encoding can merge three pieces; complete renderings detect it."""
    with pytest.raises(MergeError, match="full text"):
        Template((Table(("a", "x")), Table(("b", "y")), Table(("c", "z")))).compile(Words("abc"))


def test_space_in_front_of_a_sequence():
    tokenizer = Words(" X", space=True)
    template = Template((Fixed("X"), Table(("X", " X")), Fixed("!")))
    assert rendered(template.compile(tokenizer), [0]) == tokenizer.encode("XX!")
    assert rendered(template.compile(tokenizer), [1]) == tokenizer.encode("X X!")
    later = template.compile(tokenizer, continues=True)
    assert rendered(later, [1]) == tokenizer.encode("\nX X!")[2:], "no space where the text follows other text"
    ids, lengths = token_table(tokenizer, ("X", "ab"))
    assert ids.tolist() == [[ord("X"), -1], [ord("a"), ord("b")]]
    assert lengths.tolist() == [1, 2]
    with pytest.raises(ValueError, match="first piece must never be empty"):
        Template((Table(("", "X")), Fixed("!"))).compile(tokenizer)


def test_corner_cases():
    assert rendered(Template(()).compile(Bytes()), []) == []
    assert rendered(Template((Fixed("ab"),)).compile(Bytes()), []) == list(b"ab")
    one = Template((Table(("a",)), Table(("b", "c")), Table(("d", "d"))))
    assert rendered(one.compile(Bytes()), [0, 1, 1]) == list(b"acd")
    joined = Template((Fixed("a"),)) + Template((Table(("b", "c")),))
    assert joined.text([1]) == "ac"


def test_bad_indices():
    template = Template((Fixed("a"), Table(("b", "c"))))
    with pytest.raises(ValueError, match="the number of indices is 2, but must be 1, one per table"):
        template.text([0, 0])
    with pytest.raises(ValueError, match="the index of table 0 is 2, but the table has 2 variants: 'b', 'c'"):
        template.text([2])
    with pytest.raises(ValueError, match="table 1 has no variants"):
        Template((Table(("a",)), Table(()))).compile(Bytes())
