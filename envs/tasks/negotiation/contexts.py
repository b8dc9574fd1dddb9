"""Contexts of negotiations: a generator, and readers of DealOrNoDeal and CaSiNo.

Generated contexts follow the rules of DealOrNoDeal (Lewis et al., 2017): 5 to 7 items of three kinds, 10 points for
each seat if it gets everything, no kind that is worthless to both seats, and one that both want. There are 2,706 of
them, so splits are drawn without replacement. The files of the datasets are found in $MARL_JAX_DATA; none are part of
this project. DealOrNoDeal is under CC BY-NC 4.0 and may not be used commercially, CaSiNo (Chawla et al., 2021) is under
CC BY 4.0.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from envs.tasks.data import Dataset, find, from_jsonl, from_list, make_splits
from envs.tasks.data.dataset import DataError
from envs.tasks.negotiation.deals import Context, points
from envs.tasks.task import SPLITS

SOURCES = ("generated", "dealornodeal", "casino")
FILES = {
    "dealornodeal": {part: f"dealornodeal_{name}" for part, name in zip(SPLITS, ("train", "val", "test"), strict=True)},
    "casino": {part: f"casino_{name}" for part, name in zip(SPLITS, ("train", "valid", "test"), strict=True)},
}
TOYS, CAMPING = ["book", "hat", "ball"], ["food", "water", "firewood"]
TOTAL = 10
LEVELS = {"High": 5, "Medium": 4, "Low": 3}
"""Points of CaSiNo's priorities; there are three packages of each item."""
MAX_DIVISIONS = 1000


def make_context(
    items: Sequence[str], counts: Sequence[int], values: Sequence[Sequence[int]], key: str, **more: Any
) -> Context:
    """Return a checked context.

    The seat that speaks first follows from a hash of its contents.

    Raises:
        ValueError: A number is negative or not an integer, or everything is worthless to a seat.
    """
    lists = [counts, *values]
    if len(values) != 2 or any(len(one) != len(items) for one in lists):
        raise ValueError(f"counts and values are {lists}, but must be three lists of {len(items)} numbers")
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 0 for one in lists for n in one):
        raise ValueError(f"counts and values are {lists}, but must be integers >= 0")
    if not all(points(one, counts) for one in values):
        raise ValueError(f"values are {list(values)}, but each seat must value at least one item")
    if (divisions := functools.reduce(lambda n, count: n * (count + 1), counts, 1)) > MAX_DIVISIONS:
        raise ValueError(f"counts are {list(counts)}: {divisions} divisions, but must be at most {MAX_DIVISIONS}")
    digest = hashlib.sha256(json.dumps([key, *map(list, lists)]).encode()).digest()
    return {"key": key, "items": list(items), "counts": list(counts), "values": [list(one) for one in values],
            "first": digest[0] % 2, **more}  # fmt: skip


# ---------------------------------------------------------------------------------------------------- generator


@functools.cache
def everything() -> tuple[Context, ...]:
    """Return all contexts by the rules of DealOrNoDeal, each in one of its two perspectives."""
    by_key = {}
    for counts in itertools.product(range(1, 5), repeat=len(TOYS)):
        if 5 <= sum(counts) <= 7:
            ranges = (range(TOTAL // count + 1) for count in counts)
            values = [one for one in itertools.product(*ranges) if points(one, counts) == TOTAL]
            for one, other in itertools.combinations_with_replacement(values, 2):
                pairs = list(zip(one, other, strict=True))
                if all(a or b for a, b in pairs) and any(a and b for a, b in pairs):
                    key = _toy_key(counts, one, other)
                    by_key[key] = make_context(TOYS, counts, (one, other), key)
    return tuple(by_key.values())


def _toy_key(counts: Sequence[int], one: Sequence[int], other: Sequence[int]) -> str:
    """Return a key that is the same for both perspectives."""
    return json.dumps([list(counts), *sorted((list(one), list(other)))], separators=(",", ":"))


def generate(seed: int, sizes: Sequence[int]) -> dict[str, Dataset]:
    """Draw the contexts of each split without replacement, each in a random perspective."""
    rng, contexts = random.Random(f"negotiation {seed}"), list(everything())
    if sum(sizes) > len(contexts):
        raise ValueError(f"n_train + n_validation + n_test is {sum(sizes)}, but must be at most {len(contexts)}")
    rng.shuffle(contexts)
    rows = iter([context | {"values": rng.sample(context["values"], 2)} for context in contexts])
    return {
        part: from_list(itertools.islice(rows, n), f"negotiation contexts, seed {seed} ({part})")
        for part, n in zip(SPLITS, sizes, strict=True)
    }


# ---------------------------------------------------------------------------------------------------- readers


def dealornodeal(records: Iterable[dict]) -> Iterator[Context]:
    """Yield the contexts of DealOrNoDeal dialogues, each perspective once."""
    for record in records:
        values = (record["values"], record["partner_values"])
        yield make_context(TOYS, record["counts"], values, _toy_key(record["counts"], *values))


def casino(records: Iterable[dict]) -> Iterator[Context]:
    """Yield the contexts of CaSiNo dialogues: priorities with the reasons that people gave for them."""
    for record in records:
        values, reasons = [], []
        for agent in (record["agents"][number] for number in ("1", "2")):
            level = {item.lower(): name for name, item in agent["value2issue"].items()}
            values.append([LEVELS[level[item]] for item in CAMPING])
            reasons.append([agent["value2reason"][level[item]] for item in CAMPING])
        yield make_context(CAMPING, [3, 3, 3], values, f"casino {record['dialogue_id']}", reasons=reasons)


READERS: dict[str, Callable[[Iterable[dict]], Iterator[Context]]] = {"dealornodeal": dealornodeal, "casino": casino}


def read(source: str, data: Dataset) -> Dataset:
    """Convert the records of a file, without repetitions.

    Raises:
        DataError: A record is invalid; the message names its line.
    """
    rows: dict[str, Context] = {}
    for i in range(len(data)):
        try:
            [context] = READERS[source]([data[i]])
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DataError(f"{data.where(i)}: {type(error).__name__}: {error}") from None
        rows.setdefault(json.dumps([context["key"], context["values"]]), context)
    return from_list(rows.values(), data.name)


@functools.lru_cache(maxsize=8)
def load(source: str, seed: int, sizes: tuple[int, int, int]) -> dict[str, Dataset]:
    """Return the train, validation and test contexts of one of SOURCES.

    Args:
        source: "generated", or the name of a dataset.
        seed: Random seed of generated contexts.
        sizes: Number of generated train, validation and test contexts.
    """
    if source == "generated":
        return make_splits(**generate(seed, sizes), key="key")
    parts = {}
    for part, name in FILES[source].items():
        if (path := find(name)) is None:
            raise DataError(
                f"{name}: no such file in $MARL_JAX_DATA. Set the variable to a folder with it, or use "
                "task.params.source=generated"
            )
        parts[part] = read(source, from_jsonl(path))
    return make_splits(**parts, key="key")
