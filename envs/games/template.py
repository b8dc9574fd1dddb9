"""Text made of pieces, rendered twice: as a string on the host, and as token ids inside jit.

A template is a sequence of pieces: `Fixed` text, and `Table`s of strings of which a number picks one. What a game shows
is one int32 array, a number per table:

    cell = Table(("-", "X", "O"))
    template = Template((Fixed("Board: "), cell, Fixed(" "), cell))
    template.text([1, 0])                         # "Board: X -"
    compiled = template.compile(tokenizer)
    tokens, length = compiled.render(indices)     # int32[T], int32[]; T = compiled.max_length; pure, for jit and vmap

Pieces are tokenised once, when the template is compiled, so the tokens of a text are the tokens of its pieces only if
no token crosses a border. Compiling checks that and refuses, naming the two strings that merge.
"""

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.borders import Encoder, Part, Tokenizer, check_borders, check_first, check_renderings, shown


@dataclasses.dataclass(frozen=True)
class Fixed:
    """Text that is always there."""

    text: str


@dataclasses.dataclass(frozen=True)
class Table:
    """One of several strings; the empty string is a fine variant.

    `linked`: the first variant is empty, and is chosen where and only where the table before it shows its own first,
    empty one. So a part of a text that is shown or not can have many pieces, and borders that cannot come up are fine.
    """

    variants: tuple[str, ...]
    linked: bool = False


Piece = Fixed | Table

Rendered = tuple[jax.Array, jax.Array]
"""Tokens int32[T], right-padded, and how many of them are real, int32[]."""

CHUNK = 8
"""Gaps compared at once: on a CPU XLA makes vector code of a sum over 8, of one over 60 a loop ten times slower."""


@dataclasses.dataclass(frozen=True)
class Template:
    """A sequence of pieces; `Template(p) + Template(q)` joins them, and so do their indices."""

    pieces: tuple[Piece, ...]

    def __add__(self, other: "Template") -> "Template":
        return Template(self.pieces + other.pieces)

    @property
    def tables(self) -> tuple[Table, ...]:
        """The tables in order; an observation has one index for each."""
        return tuple(piece for piece in self.pieces if isinstance(piece, Table))

    def text(self, indices: Sequence[int] | np.ndarray) -> str:
        """The text that `indices` (one per table) describe; host only."""
        return "".join(self.strings(indices))

    def strings(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """The string that each piece contributes, in order."""
        indices = [int(i) for i in indices]
        tables = self.tables
        if len(indices) != len(tables):
            raise ValueError(f"template: found {len(indices)} indices, expected one for each of {len(tables)} tables")
        for position, (index, table) in enumerate(zip(indices, tables, strict=True)):
            if not 0 <= index < len(table.variants):
                raise ValueError(
                    f"template: index {index} of table {position} is out of range; "
                    f"it has {len(table.variants)} variants, {shown(table.variants)}"
                )
        picks = iter(indices)
        return [piece.text if isinstance(piece, Fixed) else piece.variants[next(picks)] for piece in self.pieces]

    def compile(
        self, tokenizer: "Tokenizer | Encoder", *, continues: bool = False, followed_by: Sequence[str] = ()
    ) -> "Compiled":
        """Tokenise the pieces and check every border.

        `continues` says that the text follows other text instead of starting a sequence: some tokenizers
        (SentencePiece) put a space in front of the first word of a sequence only. `followed_by` are strings that may
        stand behind the text; the border with them is checked as well.
        """
        return _compile(self, tokenizer, continues, tuple(followed_by))


@dataclasses.dataclass(frozen=True, eq=False)
class Compiled:
    """A template for one tokenizer; W slots hold every piece at its longest, V tables have variants of unequal length.

    The tokens of all variants lie in `store`, each table once, every variant padded to the longest of its table. A slot
    finds its token at `base + stride · indices[table]`. Where variants differ in length, output position t reads slot
    t + (the gaps that earlier short variants left): a few comparisons per token instead of a scatter per piece.
    """

    template: Template
    head: tuple[int, ...]  # tokens of the fixed beginning, the same in every rendering
    pad_id: int
    store: np.ndarray  # int32[tokens of all variants]
    base: np.ndarray  # int32[W]
    stride: np.ndarray  # int32[W], zero for fixed text
    table: np.ndarray  # int32[W], which index the slot depends on
    gap_store: np.ndarray  # int32[variants of all V tables], longest minus own length
    gap_base: np.ndarray  # int32[V]
    gap_table: np.ndarray  # int32[V], which index
    gap_end: np.ndarray  # int32[V], the slot after the table's last

    @property
    def max_length(self) -> int:
        """T: the number of tokens of the longest rendering."""
        return len(self.head) + len(self.base)

    @property
    def min_length(self) -> int:
        """The number of tokens of the shortest rendering."""
        if not len(self.gap_base):
            return self.max_length
        return self.max_length - int(np.maximum.reduceat(self.gap_store, self.gap_base).sum())

    def render(self, indices: jax.Array) -> Rendered:
        """Indices int32[tables] to tokens int32[T], right-padded with `pad_id`, and their length int32[]."""
        tokens, length = self.render_tail(indices)
        return jnp.concatenate([jnp.asarray(self.head, jnp.int32), tokens]), length + len(self.head)

    def render_tail(self, indices: jax.Array) -> Rendered:
        """Like `render`, without the tokens of `head`: int32[W], int32[]."""
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
    """The tokens of N strings that stand after other text: int32[N, longest] padded with -1, and lengths int32[N]."""
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
    """Refuse templates that merge where they stand one behind the other, after other text.

    Each is compiled by itself, so the border between two of them is checked even where both sides are fixed text.
    """
    encode = Encoder.of(tokenizer)
    parts = [part for template in templates for part in _merge_fixed(template)]
    check_borders([*parts, Part(tuple(followed_by))] if followed_by else parts, encode, continues=True)
    check_renderings(parts, encode, continues=True)


def join(parts: Sequence[Rendered], pad_id: int, width: int | None = None) -> Rendered:
    """Right-padded rows (int32[W], int32[]) one behind the other in one row, for jit.

    The result holds all of them at their longest unless `width` is given, which then has to be enough.
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
    if parts and parts[0].index is None:
        head, parts, tokens = tuple(tokens[0][0]), parts[1:], tokens[1:]
    store, starts = _Store(), _Store()
    base, stride, table = [], [], []
    gap_base, gap_table, gap_end = [], [], []
    for (_, index, _), variants in zip(parts, tokens, strict=True):
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
    """A flat list to which equal tuples are added once."""

    def __init__(self):
        self.values: list[int] = []
        self.known: dict[tuple[int, ...], int] = {}

    def add(self, values: tuple[int, ...], shared: bool = True) -> int:
        """Where `values` start."""
        if not shared or values not in self.known:
            self.known[values] = len(self.values)
            self.values += values
        return self.known[values]


def _merge_fixed(template: Template) -> list[Part]:
    """The pieces, with neighbouring fixed texts joined and empty ones dropped."""
    parts: list[Part] = []
    tables = 0
    for piece in template.pieces:
        if isinstance(piece, Table):
            if not piece.variants:
                raise ValueError(f"template: table {tables} has no variants, expected at least one")
            part = Part(piece.variants, tables, piece.linked)
            tables += 1
            if part.linked and (part.variants[0] or not parts or parts[-1].variants[0]):
                raise ValueError(
                    f"template: table {part.index} is linked, so its first variant and that of the table before it "
                    f"must be empty; found {shown(part.variants)}"
                )
            if len(set(part.variants)) == 1:
                part = Part(part.variants[:1])
        else:
            part = Part((piece.text,))
        if part.index is None and parts and parts[-1].index is None:
            parts[-1] = Part((parts[-1].variants[0] + part.variants[0],))
        elif any(part.variants):
            parts.append(part)
    return parts
