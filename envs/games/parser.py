"""Which actions free answers name, inside jit, on token ids: `answers.parse` of the text of the tokens.

    parser = make_parser(text.names, tokenizer.token_bytes(skip_special=True))
    action = parser(tokens, lengths, legal)       # int32 [B], -1 where no legal action is named

Tokens become codes (`token_codes.py`), one behind the other. At every place of all rows at once a trie finds the
longest legal name that begins there and stands alone. The last mark is the last colon that an "answer" comes before,
close enough and with nothing in between that ends it. No loop runs over the text.

Axis letters: B rows, W tokens of an answer, K codes of a token at most, N = W K + 1 codes of an answer, A actions.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.answers import MARK, MARK_GAP, check_names, folds
from envs.games.token_codes import ALNUM, COLON, RUN, TokenBytes, token_codes

ROOT = 1
"""State of the trie before the first letter; 0 is where no name is left."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parser:
    """The names of A actions, ready to be found in the tokens of a vocabulary of V.

    codes         uint8 [V, K], and how many of them are the token's: counts uint8 [V]
    letters       uint8 [256]: the column of each code in the trie; 0: it is in no name
    trie          int32 [states, letters]: the next state
    ends          int32 [states]: the action whose name is complete, or -1
    name_lengths  those that occur, in order
    overlap       whether two names can overlap in a text
    strips_space  as in `TokenBytes`
    marked        only a name behind a mark counts
    """

    codes: np.ndarray
    counts: np.ndarray
    letters: np.ndarray
    trie: np.ndarray
    ends: np.ndarray
    name_lengths: tuple[int, ...]
    overlap: bool
    strips_space: bool
    marked: bool = False

    @jax.named_scope("parse")
    def __call__(self, tokens: jax.Array, lengths: jax.Array, legal: jax.Array) -> jax.Array:
        """int32 [B]: the legal action (bool [B, A]) that each answer, int32 [B, W] of lengths [B], names, or -1."""
        text = self._text(tokens, lengths)
        action, sizes = self._names(text, legal)
        places = jnp.arange(text.shape[1])
        last = text.shape[1] - 1 if self.marked else self._last(action >= 0, sizes)  # at the very end begins no name
        after = (action >= 0) & (places >= _last_mark(text)[:, None])
        chosen = jnp.where(jnp.any(after, axis=1), jnp.argmax(after, axis=1), last)
        return jnp.take_along_axis(action, chosen[:, None], axis=1)[:, 0]

    def _text(self, tokens, lengths):
        """The codes of the answers, uint8 [B, N], `RUN` behind their ends."""
        (batch, width), (vocab, most) = tokens.shape, self.codes.shape
        real = (jnp.arange(width) < lengths[:, None]) & (tokens >= 0) & (tokens < vocab)
        counts = jnp.where(real, jnp.asarray(self.counts)[tokens].astype(jnp.int32), 0)
        starts = jnp.cumsum(counts, axis=1) - counts
        size = width * most + 1
        places = jnp.where(jnp.arange(most) < counts[..., None], starts[..., None] + jnp.arange(most), size)
        text = jnp.full((batch, size), RUN, jnp.uint8)
        text = text.at[jnp.arange(batch)[:, None, None], places].set(jnp.asarray(self.codes)[tokens], mode="drop")
        if self.strips_space:
            text = text.at[:, 0].set(jnp.where(text[:, 0] == ord(" "), jnp.uint8(RUN), text[:, 0]))
        return text

    def _names(self, text, legal):
        """The longest legal name that begins at each place: action int32 [B, N], -1 for none, and its length."""
        follows = jnp.asarray(_STARTS)[text]
        precedes = jnp.pad(jnp.asarray(_ENDS)[text][:, :-1], ((0, 0), (1, 0)))
        letters = jnp.asarray(self.letters)[text]
        trie, ends = jnp.asarray(self.trie).reshape(-1), jnp.asarray(self.ends)
        state = jnp.where(precedes, 0, ROOT)
        action, sizes = jnp.full(text.shape, -1, jnp.int32), jnp.zeros(text.shape, jnp.int32)
        for length in range(1, self.name_lengths[-1] + 1):
            state = trie[state * self.trie.shape[1] + _shifted(letters, length - 1, 0)]
            if length in self.name_lengths:
                named = ends[state]
                allowed = jnp.take_along_axis(legal, jnp.maximum(named, 0), axis=1)
                longer = (named >= 0) & allowed & ~_shifted(follows, length, False)
                action, sizes = jnp.where(longer, named, action), jnp.where(longer, length, sizes)
        return action, sizes

    def _last(self, found, sizes):
        """The place of the last name, int32 [B], where names are taken from the left and do not overlap."""
        n = found.shape[1]
        places = jnp.arange(n)
        if not self.overlap:
            return jnp.max(jnp.where(found, places, 0), axis=1)
        nothing = n - 1  # no name begins at the last place, which is behind every text
        first = jax.lax.cummin(jnp.where(found, places, nothing), axis=1, reverse=True)  # that begins here or later
        following = jnp.take_along_axis(first, jnp.minimum(places + sizes, nothing), axis=1)
        following = jnp.where(following == nothing, places, following)  # the last one leads to itself
        for _ in range((n - 1).bit_length()):
            following = jnp.take_along_axis(following, following, axis=1)
        return jnp.take_along_axis(following, first[:, :1], axis=1)[:, 0]


def make_parser(names: Sequence[str], vocabulary: TokenBytes, marked: bool = False) -> Parser:
    """The parser of answers in the tokens of a vocabulary; with `marked`, only names behind a mark count."""
    check_names(names)
    codes, counts = token_codes(names, vocabulary)
    fold = folds(names)
    words = [(name.lower() if fold else name).encode() for name in names]
    letters = np.zeros((256,), np.uint8)
    for column, byte in enumerate(sorted(set(b"".join(words))), start=1):
        letters[byte] = column
        if fold:
            letters[ord(chr(byte).upper())] = column
    trie, ends = _trie([[letters[byte] for byte in word] for word in words], int(letters.max()) + 1)
    lengths = tuple(sorted(set(map(len, words))))
    return Parser(codes, counts, letters, trie, ends, lengths, _can_overlap(words), vocabulary.strips_space, marked)


def _trie(words: Sequence[Sequence[int]], n_letters: int) -> tuple[np.ndarray, np.ndarray]:
    rows, ends = [[0] * n_letters, [0] * n_letters], [-1, -1]
    for action, word in enumerate(words):
        state = ROOT
        for letter in word:
            if not rows[state][letter]:
                rows[state][letter] = len(rows)
                rows.append([0] * n_letters)
                ends.append(-1)
            state = rows[state][letter]
        ends[state] = action
    return np.array(rows, np.int32), np.array(ends, np.int32)


def _can_overlap(words: Sequence[bytes]) -> bool:
    """Whether a word can begin inside another, which is after a sign that is no letter and no digit."""
    whole, beginnings = set(words), {word[:i] for word in words for i in range(1, len(word) + 1)}
    rests = {word[i:] for word in words for i in range(1, len(word)) if word[i - 1] not in ALNUM}
    return any(rest in beginnings or any(rest[:i] in whole for i in range(1, len(rest))) for rest in rests)


def _last_mark(text: jax.Array) -> jax.Array:
    """int32 [B]: the place behind the last mark; behind the whole text where there is none."""
    n = text.shape[1]
    letters = jnp.asarray(_LOWER)[text]
    word = jnp.ones(text.shape, bool)
    for i, letter in enumerate(MARK):
        word &= _shifted(letters, i, 0) == letter
    ended = jnp.pad(word, ((0, 0), (len(MARK), 0)))[:, :n]  # the word ends before this place
    sizes = jnp.asarray(_SIZES)[text].astype(jnp.int32)
    offsets = jnp.cumsum(sizes, axis=1) - sizes
    colon = text == COLON
    separated = jnp.pad((jnp.asarray(_SEPARATES)[text] | colon)[:, :-1], ((0, 0), (1, 0)))
    # The newest event before each place, as twice its offset, and one more if it is the end of the word.
    newest = jax.lax.cummax(jnp.where(ended, 2 * offsets + 1, jnp.where(separated, 2 * offsets, 0)), axis=1)
    marks = colon & (newest % 2 == 1) & (offsets - newest // 2 <= MARK_GAP)
    place = jnp.max(jnp.where(marks, jnp.arange(1, n + 1), 0), axis=1)
    return jnp.where(place > 0, place, n)


def _shifted(x: jax.Array, by: int, fill) -> jax.Array:
    """x [B, N] read `by` places later."""
    return jnp.pad(x[:, by:], ((0, 0), (0, min(by, x.shape[1]))), constant_values=fill)


# What each code says of itself, [256]; see `token_codes.py`.
_CODE = np.arange(256)
_BYTE = _CODE < RUN
_STARTS = np.where(_BYTE, np.isin(_CODE, list(ALNUM)), _CODE & 1 > 0)
_ENDS = np.where(_BYTE, np.isin(_CODE, list(ALNUM)), _CODE & 2 > 0)
_SEPARATES = ~_BYTE & (_CODE < RUN + 4)
_SIZES = np.where(_BYTE | _SEPARATES, 1, (_CODE - RUN) // 4).astype(np.uint8)
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
