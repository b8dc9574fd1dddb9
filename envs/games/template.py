"""Text templates that render to strings on the host and to token ids inside jit.

A template is a sequence of pieces: `Fixed` text, and `Table`s of strings from which an index picks one. A rendering is
described by an int32 array with one index per table:

    cell = Table(("-", "X", "O"))
    template = Template((Fixed("Board: "), cell, Fixed(" "), cell))
    template.text([1, 0])                         # "Board: X -"
    compiled = template.compile(tokenizer)
    tokens, length = compiled.render(indices)     # int32[T], int32[]; T = compiled.max_length; pure, for jit and vmap

Pieces are tokenized once, when the template is compiled. The tokens of a text are the tokens of its pieces only if no
token crosses a boundary between pieces. Compiling checks this, and raises an error that names the two strings that
merge.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.borders import Encoder, Part, Tokenizer, check_borders, check_first, check_renderings, shown


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Text that is part of every rendering."""

    text: str


@dataclasses.dataclass(frozen=True)
class Table:
    """One of several strings, any of which may be empty.

    Attributes:
        variants: The strings to choose from.
        linked: Whether the table is empty exactly when the table before it is. The first variant of both must be the
            empty string. An optional part of a text can thus have many pieces, and boundaries that never occur are not
            checked.
    """

    variants: tuple[str, ...]
    linked: bool = False


@dataclasses.dataclass(frozen=True)
class Image:
    """The place of a picture, part of every rendering but never of its fixed beginning.

    A model cannot read this piece without the picture, so it is not in the prefix that all prompts share.

    Attributes:
        text: Special tokens of the model, one of them for each cell of the picture.
    """

    text: str


Piece = Fixed | Table | Image

Rendered = tuple[jax.Array, jax.Array]
"""Right-padded tokens, int32 [T], and their length, int32 []."""

CHUNK = 8
"""Gaps compared at once. On CPU, XLA vectorizes a sum over 8, but compiles one over 60 to a loop ten times slower."""


@dataclasses.dataclass(frozen=True)
class Template:
    """A sequence of pieces; `+` concatenates templates and their indices."""

    pieces: tuple[Piece, ...]

    def __add__(self, other: "Template") -> "Template":
        return Template(self.pieces + other.pieces)

    @property
    def tables(self) -> tuple[Table, ...]:
        """Tables in order; a rendering has one index for each."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Table))

    def text(self, indices: Sequence[int] | np.ndarray) -> str:
        """Render the text for `indices`, one per table (host only)."""
        return "".join(self.strings(indices))

    def strings(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """Return the string of each piece, in order."""
        indices = [int(i) for i in indices]
        tables = self.tables
        if len(indices) != len(tables):
            raise ValueError(
                f"template: the number of indices is {len(indices)}, but must be {len(tables)}, one per table"
            )
        for position, (index, table) in enumerate(zip(indices, tables, strict=True)):
            if not 0 <= index < len(table.variants):
                raise ValueError(
                    f"template: the index of table {position} is {index}, but the table has "
                    f"{len(table.variants)} variants: {shown(table.variants)}"
                )
        picks = iter(indices)
        return [piece.variants[next(picks)] if isinstance(piece, Table) else piece.text for piece in self.pieces]

    def compile(
        self, tokenizer: "Tokenizer | Encoder", *, continues: bool = False, followed_by: Sequence[str] = ()
    ) -> "Compiled":
        """Tokenize the pieces and check every boundary.

        Args:
            tokenizer: Tokenizer, or an encoder of one.
            continues: Whether the text follows other text instead of starting a sequence. Some tokenizers
                (SentencePiece) prepend a space to the first word of a sequence only.
            followed_by: Strings that can follow the text. The boundary with them is checked, too.
        """
        return _compile(self, tokenizer, continues, tuple(followed_by))


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A template compiled for one tokenizer.

    W slots hold every piece at its longest, and V tables have variants of unequal length. `store` holds the tokens of
    all variants, each table once, with every variant padded to the longest of its table. The token of a slot is at
    `base + stride · indices[table]`. If variants differ in length, output position t reads slot t plus the gaps left by
    earlier short variants. This takes a few comparisons per token instead of a scatter per piece.
    """

    template: Template
    head: tuple[int, ...]  # tokens of the fixed beginning, the same in every rendering
    pad_id: int
    store: np.ndarray  # int32[tokens of all variants]
    base: np.ndarray  # int32[W]
    stride: np.ndarray  # int32[W], zero for fixed text
    table: np.ndarray  # int32[W], the index that the slot depends on
    gap_store: np.ndarray  # int32[variants of all V tables], missing tokens compared with the longest
    gap_base: np.ndarray  # int32[V]
    gap_table: np.ndarray  # int32[V], the index of the table
    gap_end: np.ndarray  # int32[V], the slot after the last one of the table

    @property
    def max_length(self) -> int:
        """T: number of tokens in the longest rendering."""
        return len(self.head) + len(self.base)

    @property
    def min_length(self) -> int:
        """Number of tokens in the shortest rendering."""
        if not len(self.gap_base):
            return self.max_length
        return self.max_length - int(np.maximum.reduceat(self.gap_store, self.gap_base).sum())

    def render(self, indices: jax.Array) -> Rendered:
        """Render token ids inside jit.

        Args:
            indices: int32 [tables].

        Returns:
            Tokens int32 [T], right-padded with `pad_id`, and their length int32 [].
        """
        tokens, length = self.render_tail(indices)
        return jnp.concatenate([jnp.asarray(self.head, jnp.int32), tokens]), length + len(self.head)

    def render_tail(self, indices: jax.Array) -> Rendered:
        """Render without the tokens of `head`: int32 [W], int32 []."""
        width = len(self.base)
        if width == 0:
            return jnp.zeros((0,), jnp.int32), jnp.zeros((), jnp.int32)
        indices = jnp.asarray(indices, jnp.int32)
        if not len(self.template.tables):
            return jnp.asarray(self.store[self.base]), jnp.asarray(width, jnp.int32)
        slots = jnp.asarray(self.store)[self.base + self.stride * indices[self.table]]
        if not len(self.gap_end):
            return slots, jnp.asarray(width, jnp.int32)
        gaps = jnp.asarray(self.gap_store)[self.gap_base + indices[self.gap_table]]
        ends = self.gap_end - jnp.cumsum(gaps)
        position = jnp.arange(width, dtype=jnp.int32)
        slot = position
        for v in range(0, len(self.gap_end), CHUNK):
            passed = position[:, None] >= ends[v : v + CHUNK]
            slot += jnp.sum(jnp.where(passed, gaps[v : v + CHUNK], 0), axis=1)
        length = width - jnp.sum(gaps)
        tokens = slots[jnp.minimum(slot, width - 1)]
        return jnp.where(position < length, tokens, self.pad_id), length.astype(jnp.int32)


# --- Compiling ------------------------------------------------------------------------------------------------------


def token_table(
    tokenizer: "Tokenizer | Encoder", strings: Sequence[str], followed_by: Sequence[str] = ()
) -> tuple[np.ndarray, np.ndarray]:
    """Tokenize N strings that follow other text.

    Returns:
        Tokens int32 [N, longest], padded with -1, and lengths int32 [N].
    """
    encode = Encoder.of(tokenizer)
    check_borders([Part(tuple(strings)), Part(tuple(followed_by))], encode, continues=True)
    rows = [encode(text, continues=True) for text in strings]
    lengths = np.array([len(row) for row in rows], np.int32)
    ids = np.full((len(rows), lengths.max()), -1, np.int32)
    for row, tokens in zip(ids, rows, strict=True):
        row[: len(tokens)] = tokens
    return ids, lengths


def check_neighbors(
    tokenizer: "Tokenizer | Encoder", templates: Sequence[Template], followed_by: Sequence[str] = ()
) -> None:
    """Raise an error if adjacent templates merge when they follow other text.

    Each template is compiled separately, so the boundary between two of them is checked even if both sides are fixed
    text.
    """
    encode = Encoder.of(tokenizer)
    parts = [part for template in templates for part in _merge_fixed(template)]
    check_borders([*parts, Part(tuple(followed_by))] if followed_by else parts, encode, continues=True)
    check_renderings(parts, encode, continues=True)


def join(parts: Sequence[Rendered], pad_id: int, width: int | None = None) -> Rendered:
    """Concatenate right-padded rows inside jit.

    Args:
        parts: Rows int32 [W] with their lengths int32 [].
        pad_id: Token that fills the rest of the result.
        width: Length of the result, which must be sufficient. By default all rows fit at their longest.
    """
    position = jnp.arange(sum(tokens.shape[0] for tokens, _ in parts) if width is None else width, dtype=jnp.int32)
    row, end = jnp.full(position.shape, pad_id, jnp.int32), jnp.int32(0)
    for tokens, length in parts:
        if tokens.shape[0]:
            here = position - end
            read = jnp.asarray(tokens, jnp.int32)[jnp.clip(here, 0, tokens.shape[0] - 1)]
            row = jnp.where((here >= 0) & (here < length), read, row)
            end = end + jnp.asarray(length, jnp.int32)
    return row, end


def _compile(
    template: Template, tokenizer: "Tokenizer | Encoder", continues: bool, followed_by: tuple[str, ...]
) -> Compiled:
    parts = _merge_fixed(template)
    encode = Encoder.of(tokenizer)
    check_first(parts, encode, continues)
    check_borders([*parts, Part(followed_by)] if followed_by else parts, encode, continues)
    check_renderings(parts, encode, continues)

    tokens = [
        [encode(text, continues or position > 0) for text in part.variants] for position, part in enumerate(parts)
    ]
    head = ()
    if parts and parts[0].index is None and not parts[0].image:
        head, parts, tokens = tuple(tokens[0][0]), parts[1:], tokens[1:]
    store, starts = _Store(), _Store()
    base, stride, table = [], [], []
    gap_base, gap_table, gap_end = [], [], []
    for (_, index, *_), variants in zip(parts, tokens, strict=True):
        longest = max(map(len, variants))
        start = store.add(tuple(t for ids in variants for t in (*ids, *([-1] * (longest - len(ids))))))
        base += range(start, start + longest)
        stride += [0 if index is None else longest] * longest
        table += [index or 0] * longest
        gaps = tuple(longest - len(ids) for ids in variants)
        if any(gaps):
            gap_base.append(starts.add(gaps, shared=False))
            gap_table.append(index)
            gap_end.append(len(base))
    arrays = [store.values, base, stride, table, starts.values, gap_base, gap_table, gap_end]
    return Compiled(template, head, encode.pad_id, *(np.asarray(a, np.int32) for a in arrays))


class _Store:
    """A flat list that stores equal tuples only once."""

    def __init__(self):
        self.values: list[int] = []
        self.known: dict[tuple[int, ...], int] = {}

    def add(self, values: tuple[int, ...], shared: bool = True) -> int:
        """Add `values` and return their position."""
        if not shared or values not in self.known:
            self.known[values] = len(self.values)
            self.values += values
        return self.known[values]


def _merge_fixed(template: Template) -> list[Part]:
    """Return the pieces with adjacent fixed texts joined and empty ones dropped.

    The place of a picture stays a piece, and so does the text after it.
    """
    parts: list[Part] = []
    tables = 0
    for piece in template.pieces:
        if isinstance(piece, Table):
            if not piece.variants:
                raise ValueError(f"template: table {tables} has no variants, but must have at least one")
            part = Part(piece.variants, tables, piece.linked)
            tables += 1
            if part.linked and (part.variants[0] or not parts or parts[-1].variants[0]):
                raise ValueError(
                    f"template: table {part.index} is linked, so its first variant and that of the table before it "
                    f"must be empty, but its variants are {shown(part.variants)}"
                )
            if len(set(part.variants)) == 1:
                part = Part(part.variants[:1])
        else:
            part = Part((piece.text,), image=isinstance(piece, Image))
        if part.index is None and parts and parts[-1].index is None and not (part.image or parts[-1].image):
            parts[-1] = Part((parts[-1].variants[0] + part.variants[0],))
        elif any(part.variants):
            parts.append(part)
    return parts
