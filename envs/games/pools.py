"""Pools of puzzle levels with disjoint train and test splits.

A level is a row of a few named arrays, which each game defines (`envs/games/<game>/levels.py`). Runs record the
fingerprints of their pools.

The split of a generated level depends only on the level: it follows from a hash of its `key`, which is the same for all
equivalent levels (mirror images, relabeled digits). A train pool therefore never contains a level of a test pool,
whatever their seeds and sizes.
"""

import dataclasses
import functools
import hashlib
import json
import logging
import os
import time
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

PARTS = ("train", "test")
MOST_LEVELS = 1_000_000
"""Maximum size of a generated split, so that a typo raises an error instead of running for hours."""
TEST_EVERY = 5
"""One key in this many belongs to the test split."""
SILENT, EVERY = 5.0, 15.0
"""Seconds before the first progress message, and between messages."""
log = logging.getLogger(__name__)

Arrays = Mapping[str, np.ndarray]
Schema = Mapping[str, tuple[str, str]]
"""Array name -> (dtype, letters of the axes after the first), e.g. {"cells": ("uint8", "hw")}.

Axes with the same letter have the same size.
"""


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Levels:
    """One split of a pool: immutable arrays with one row per level.

    Equality and hash depend on the contents.
    """

    arrays: Arrays
    fingerprint: str = dataclasses.field(init=False)

    def __post_init__(self):
        frozen = {}
        for name in sorted(self.arrays):
            frozen[name] = np.array(self.arrays[name], order="C")
            frozen[name].setflags(write=False)
        object.__setattr__(self, "arrays", frozen)
        object.__setattr__(self, "fingerprint", fingerprint(frozen))

    def __len__(self) -> int:
        return len(next(iter(self.arrays.values())))

    def __getitem__(self, name: str) -> np.ndarray:
        return self.arrays[name]

    def __eq__(self, other) -> bool:
        return isinstance(other, Levels) and self.fingerprint == other.fingerprint

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        return f"Levels({len(self)}, {self.fingerprint[:12]})"


@dataclasses.dataclass(frozen=True)
class Pool:
    """Train and test levels of one game.

    Attributes:
        game: Name of the game.
        train: Train split.
        test: Test split.
        source: Description of the origin, ignored in comparisons.
    """

    game: str
    train: Levels
    test: Levels
    source: str = dataclasses.field(default="", compare=False)

    def part(self, name: str) -> Levels:
        """Return the split called "train" or "test"."""
        if name not in PARTS:
            raise ValueError(f"{self.game}: part is {name!r}, but must be one of: {', '.join(PARTS)}")
        levels = getattr(self, name)
        if not len(levels):
            raise ValueError(f"{self.game}: the {name} split of the pool ({self.source}) has no levels")
        return levels

    @functools.cached_property
    def fingerprint(self) -> str:
        """SHA-256 of the game's name and both splits."""
        text = "\n".join((self.game, self.train.fingerprint, self.test.fingerprint))
        return hashlib.sha256(text.encode()).hexdigest()


def fingerprint(arrays: Arrays) -> str:
    """Return the SHA-256 of names, dtypes, shapes and contents, independent of the machine."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        array = array.astype(array.dtype.newbyteorder("<"), copy=False)
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def side(key: bytes) -> str:
    """Return the split of a level with this key, the same in every pool."""
    return "test" if int.from_bytes(hashlib.sha256(key).digest()[:8], "little") % TEST_EVERY == 0 else "train"


def generate(
    game: str,
    source: str,
    draw: Callable[[np.random.Generator], tuple[Arrays, list[bytes]]],
    n_train: int,
    n_test: int,
    seed: int | tuple[int, int],
    patience: int = 40,
) -> Pool:
    """Generate a pool of distinct levels.

    Args:
        game: Name of the game.
        source: Description of the levels.
        draw: Function `draw(rng) -> (arrays, keys)` that returns a batch of candidates.
        n_train: Number of train levels.
        n_test: Number of test levels.
        seed: Random seed.
        patience: Maximum number of consecutive draws without a new level.

    Raises:
        ValueError: If there are not enough levels.
    """
    wanted = {"train": n_train, "test": n_test}
    for part, count in wanted.items():
        if isinstance(count, bool) or not isinstance(count, int) or not 0 <= count <= MOST_LEVELS:
            raise ValueError(f"{game}: n_{part} is {count!r}, but must be an integer from 0 to {MOST_LEVELS:,}")
    if not n_train + n_test:
        raise ValueError(f"{game}: n_train and n_test are both 0, but there must be at least one level")
    rng = np.random.default_rng(seed)
    rows: dict[str, list[dict]] = {part: [] for part in PARTS}
    seen = set()
    barren = 0
    progress = _Progress(game, n_train + n_test)
    while barren < patience:
        before = len(seen)
        arrays, keys = draw(rng)
        empty = {name: array[:0] for name, array in arrays.items()}
        for i, key in enumerate(keys):
            part = side(key)
            row = {name: array[i] for name, array in arrays.items()}
            content = b"|".join(row[name].tobytes() for name in sorted(row))
            if content not in seen and len(rows[part]) < wanted[part]:
                seen.add(content)
                rows[part].append(row)
        barren = 0 if len(seen) > before else barren + 1
        progress.update(len(seen))
        if all(len(rows[part]) == wanted[part] for part in PARTS):
            break
    else:
        counts = ", ".join(f"{len(rows[part])} of {wanted[part]} {part}" for part in PARTS)
        raise ValueError(
            f"{game}: found only {counts} levels ({source}); request fewer levels, or a wider range of levels"
        )

    def stack(part: str) -> Levels:
        made = rows[part]
        return Levels({name: np.stack([row[name] for row in made]) if made else none for name, none in empty.items()})

    return Pool(game, stack("train"), stack("test"), source)


class _Progress:
    """Logs the number of generated levels and the estimated time left."""

    def __init__(self, game: str, wanted: int):
        self._game, self._wanted, self._begin = game, wanted, time.monotonic()
        self._next = self._begin + SILENT

    def update(self, made: int) -> None:
        """Log if the last message is old enough."""
        now = time.monotonic()
        if now >= self._next and made < self._wanted:
            self._next = now + EVERY
            left = (now - self._begin) * (self._wanted - made) / max(made, 1)
            log.info("%s: %d of %d levels generated, about %.0f s left", self._game, made, self._wanted, left)


def grade_seed(seed: int, number: int, difficulty_levels: int) -> int | tuple[int, int]:
    """Return the seed of a difficulty level.

    Each level has a separate stream; the hardest one uses the seed of the pool.
    """
    return seed if number == difficulty_levels else (seed, number)


def from_parts(game: str, source: str, train: Arrays, test: Arrays, key: Callable[[Arrays], list[bytes]]) -> Pool:
    """Build a pool from levels with a given split.

    Train levels that are equivalent to a test level are dropped.
    """
    tested = set(key(test))
    keep = np.array([k not in tested for k in key(train)], bool)
    return Pool(game, Levels({name: array[keep] for name, array in train.items()}), Levels(test), source)


def from_levels(game: str, source: str, levels: Arrays, key: Callable[[Arrays], list[bytes]]) -> Pool:
    """Build a pool from levels without a given split."""
    test = np.array([side(k) == "test" for k in key(levels)], bool)
    train = {name: array[~test] for name, array in levels.items()}
    return Pool(game, Levels(train), Levels({name: array[test] for name, array in levels.items()}), source)


def graded(easier: Sequence[Pool], pool: Pool) -> Pool:
    """Prepend the train levels of easier pools to those of `pool`.

    Duplicates are dropped, and the test split does not change.
    """
    if not easier:
        return pool
    parts = [*easier, pool]
    train = {name: np.concatenate([part.train[name] for part in parts]) for name in pool.train.arrays}
    first: dict[bytes, int] = {}
    for i in range(sum(len(part.train) for part in parts)):
        first.setdefault(b"|".join(train[name][i].tobytes() for name in sorted(train)), i)
    kept, source = list(first.values()), "; ".join(part.source for part in parts)
    return Pool(pool.game, Levels({name: array[kept] for name, array in train.items()}), pool.test, source)


def check_arrays(arrays: Arrays, schema: Schema, where: str) -> None:
    """Raise a ValueError unless names, dtypes and shapes match the schema.

    The message starts with `where`.
    """
    if set(arrays) != set(schema):
        raise ValueError(f"{where}: arrays are {sorted(arrays)}, but must be {sorted(schema)}")
    sizes: dict[str, int] = {}
    for name, (dtype, letters) in schema.items():
        array, axes = arrays[name], "N" + letters
        if array.dtype != np.dtype(dtype):
            raise ValueError(f"{where}: {name} has dtype {array.dtype}, but must have {dtype}")
        if array.ndim != len(axes):
            raise ValueError(f"{where}: {name} has shape {array.shape}, but must have axes [{', '.join(axes)}]")
        for letter, size in zip(axes, array.shape, strict=True):
            if sizes.setdefault(letter, size) != size:
                raise ValueError(f"{where}: {name} has size {size} on axis {letter}, but must have {sizes[letter]}")


def save(pool: Pool, path: str | os.PathLike) -> None:
    """Write a pool to an .npz file, atomically."""
    header = json.dumps({"game": pool.game, "source": pool.source, "fingerprint": pool.fingerprint})
    arrays = {f"{part}/{name}": array for part in PARTS for name, array in getattr(pool, part).arrays.items()}
    path = Path(path)
    scratch = path.with_name(path.name + ".partial")
    with open(scratch, "wb") as file:
        np.savez_compressed(file, header=np.array(header), **arrays)
    os.replace(scratch, path)


def read_npz(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Read all arrays of an .npz file.

    Raises:
        ValueError: If it is not a valid .npz file. The message names the file.
    """
    if not zipfile.is_zipfile(path):
        reason = "not an .npz file" if Path(path).exists() else "no such file"
        raise ValueError(f"{path}: {reason}")
    try:
        with np.load(path, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except (ValueError, OSError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{path}: damaged .npz file ({error})") from error


def load(path: str | os.PathLike, game: str, schema: Schema) -> Pool:
    """Read a pool written by `save` and verify game, schema and fingerprint."""
    arrays = read_npz(path)
    if "header" not in arrays:
        raise ValueError(f"{path}: not a level pool: it has no header, only the arrays {sorted(arrays)}")
    try:
        header = json.loads(str(arrays.pop("header")))
        stored_game, source, expected = header["game"], header["source"], header["fingerprint"]
    except (json.JSONDecodeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: cannot read the header of the level pool ({error})") from error
    if stored_game != game:
        raise ValueError(f"{path}: the pool is for {stored_game!r}, but must be for {game!r}")
    parts = {}
    for part in PARTS:
        split = {name.split("/", 1)[1]: array for name, array in arrays.items() if name.startswith(part + "/")}
        check_arrays(split, schema, f"{path} ({part})")
        parts[part] = Levels(split)
    pool = Pool(game, parts["train"], parts["test"], source)
    if pool.fingerprint != expected:
        raise ValueError(f"{path}: corrupt pool: its fingerprint is {pool.fingerprint}, but must be {expected}")
    return pool


def mirror_key(boards: np.ndarray) -> list[bytes]:
    """Return a key per board [N, h, w], equal for rotated and mirrored boards."""
    turns = [np.rot90(boards, k, axes=(1, 2)) for k in range(4)]
    images = turns + [board[:, :, ::-1] for board in turns]
    rows = [[f"{image.shape[1:]}".encode() + board.tobytes() for board in image] for image in images]
    return [min(same) for same in zip(*rows, strict=True)]
