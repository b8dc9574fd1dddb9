"""Parsing of actions from free-text completions, on token ids inside jit.

Equivalent to `answers.parse` of the decoded tokens:

    parser = make_parser(text.names, tokenizer.token_bytes(skip_special=True))
    action = parser(tokens, lengths, legal)       # int32 [B], -1 if no legal action is named

Tokens are mapped to codes (`token_codes.py`), which are concatenated. At every position of all rows in parallel, a trie
finds the longest legal name that starts there and is delimited on both sides. The last mark is the last colon preceded
by "answer", within the allowed distance and without a separator in between. There is no loop over the text.

Axis letters: B rows, W tokens of a completion, K maximum number of codes per token, N = W K + 1 codes of a completion,
A actions.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.answers import MARK, MARK_GAP, check_names, folds
from envs.games.token_codes import ALNUM, COLON, RUN, TokenBytes, token_codes

ROOT = 1
"""Initial state of the trie. State 0 means that no name matches."""


@dataclasses.dataclass(frozen=True, eq=False)
class Parser:
    """Parser of A action names in the tokens of a vocabulary of size V.

    Attributes:
        codes: uint8 [V, K]. Codes of each token.
        counts: uint8 [V]. Number of codes of each token.
        letters: uint8 [256]. Column of each code in the trie, 0 if it occurs in no name.
        trie: int32 [states, letters]. Next state.
        ends: int32 [states]. Action whose name is complete, or -1.
        name_lengths: Lengths of the names, sorted, without duplicates.
        overlap: Whether two names can overlap in a text.
        strips_space: See `TokenBytes`.
        marked: Whether only a name after a mark counts.
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
        """Return the action that each completion names, or -1: int32 [B].

        Args:
            tokens: int32 [B, W].
            lengths: int [B].
            legal: bool [B, A].
        """
        text = self._text(tokens, lengths)
        action, sizes = self._names(text, legal)
        places = jnp.arange(text.shape[1])
        last = text.shape[1] - 1 if self.marked else self._last(action >= 0, sizes)  # no name starts at the very end
        after = (action >= 0) & (places >= _last_mark(text)[:, None])
        chosen = jnp.where(jnp.any(after, axis=1), jnp.argmax(after, axis=1), last)
        return jnp.take_along_axis(action, chosen[:, None], axis=1)[:, 0]

    def _text(self, tokens, lengths):
        """Return the codes of the completions, padded with `RUN`: uint8 [B, N]."""
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
        """Find the longest legal name that starts at each position.

        Returns:
            Actions int32 [B, N], -1 if there is none, and the lengths of their names.
        """
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

    def _last(self, named, sizes):
        """Return the position of the last name: int32 [B].

        Names are matched from the left and do not overlap.
        """
        n = named.shape[1]
        places = jnp.arange(n)
        if not self.overlap:
            return jnp.max(jnp.where(named, places, 0), axis=1)
        nothing = n - 1  # no name starts at the last position, which is after the text
        # The first name that starts here or later.
        first = jax.lax.cummin(jnp.where(named, places, nothing), axis=1, reverse=True)
        following = jnp.take_along_axis(first, jnp.minimum(places + sizes, nothing), axis=1)
        following = jnp.where(following == nothing, places, following)  # the last name points to itself
        for _ in range((n - 1).bit_length()):
            following = jnp.take_along_axis(following, following, axis=1)
        return jnp.take_along_axis(following, first[:, :1], axis=1)[:, 0]


def make_parser(names: Sequence[str], vocabulary: TokenBytes, marked: bool = False) -> Parser:
    """Build a parser of action names for the tokens of a vocabulary."""
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
    """Return whether a word can begin inside another one.

    It can only begin after a character that is neither a letter nor a digit.
    """
    whole, beginnings = set(words), {word[:i] for word in words for i in range(1, len(word) + 1)}
    rests = {word[i:] for word in words for i in range(1, len(word)) if word[i - 1] not in ALNUM}
    return any(rest in beginnings or any(rest[:i] in whole for i in range(1, len(rest))) for rest in rests)


def _last_mark(text: jax.Array) -> jax.Array:
    """Return the position after the last mark, or N if there is none: int32 [B]."""
    n = text.shape[1]
    letters = jnp.asarray(_LOWER)[text]
    word = jnp.ones(text.shape, bool)
    for i, letter in enumerate(MARK):
        word &= _shifted(letters, i, 0) == letter
    ended = jnp.pad(word, ((0, 0), (len(MARK), 0)))[:, :n]  # the word ends just before this position
    sizes = jnp.asarray(_SIZES)[text].astype(jnp.int32)
    offsets = jnp.cumsum(sizes, axis=1) - sizes
    colon = text == COLON
    separated = jnp.pad((jnp.asarray(_SEPARATES)[text] | colon)[:, :-1], ((0, 0), (1, 0)))
    # Latest event before each position, encoded as twice its offset, plus one if it is the end of the word.
    newest = jax.lax.cummax(jnp.where(ended, 2 * offsets + 1, jnp.where(separated, 2 * offsets, 0)), axis=1)
    marks = colon & (newest % 2 == 1) & (offsets - newest // 2 <= MARK_GAP)
    place = jnp.max(jnp.where(marks, jnp.arange(1, n + 1), 0), axis=1)
    return jnp.where(place > 0, place, n)


def _shifted(x: jax.Array, by: int, fill) -> jax.Array:
    """Shift x [B, N] to the left by `by` positions."""
    return jnp.pad(x[:, by:], ((0, 0), (0, min(by, x.shape[1]))), constant_values=fill)


# Properties of each code, [256]; see `token_codes.py`.
_CODE = np.arange(256)
_BYTE = _CODE < RUN
_STARTS = np.where(_BYTE, np.isin(_CODE, list(ALNUM)), _CODE & 1 > 0)
_ENDS = np.where(_BYTE, np.isin(_CODE, list(ALNUM)), _CODE & 2 > 0)
_SEPARATES = ~_BYTE & (_CODE < RUN + 4)
_SIZES = np.where(_BYTE | _SEPARATES, 1, (_CODE - RUN) // 4).astype(np.uint8)
_LOWER = np.frombuffer(bytes(range(256)).lower(), np.uint8)
