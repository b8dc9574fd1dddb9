"""Pools: disjoint parts, fingerprints, files that are whole or refused."""

import logging
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.games import pools
from envs.games.plan_path import levels as plan_path
from envs.games.plan_path.rules import PlanPath
from envs.games.registry import make
from envs.games.sokoban import levels as sokoban
from envs.games.sudoku import levels as sudoku
from tests.conftest import examples

SMALL = {"n_train": 20, "n_test": 5}
ROOMS = {"plan_path": plan_path, "sokoban": sokoban, "sudoku": sudoku}


def board_images(board):
    """The eight turned and mirrored images of a board, itself first."""
    for turned in (board, board[:, ::-1]):
        for quarter in range(4):
            yield np.rot90(turned, quarter)


def mirrored(name, arrays, which):
    """The same level seen in a mirror: image number `which`."""
    image = {key: list(board_images(rows[0]))[which][None] for key, rows in arrays.items() if rows.ndim == 3}
    if name == "plan_path":
        height, width = arrays["distance"].shape[1:]
        mark = np.zeros((height, width), bool)
        mark.flat[arrays["start"][0]] = True
        image["start"] = np.array([np.flatnonzero(list(board_images(mark))[which])[0]], np.int32)
    if name == "sokoban":
        image["moves"] = arrays["moves"]
    return image


@settings(max_examples=examples(12), deadline=None)
@given(st.integers(0, 50), st.integers(0, 50), st.sampled_from(sorted(ROOMS)))
def test_train_of_one_seed_never_meets_test_of_another(first, second, name):
    room = ROOMS[name]
    one, two = room.generate(seed=first, **SMALL), room.generate(seed=second, **SMALL)
    assert not set(room.keys(one.train.arrays)) & set(room.keys(two.test.arrays))
    assert (len(one.train), len(one.test)) == (20, 5)
    assert (one == two) == (first == second)


@settings(max_examples=examples(24), deadline=None)
@given(st.integers(0, 19), st.integers(0, 7), st.sampled_from(sorted(ROOMS)))
def test_mirror_images_are_the_same_level(row, which, name):
    room = ROOMS[name]
    level = {key: rows[row : row + 1] for key, rows in room.generate(**SMALL).train.arrays.items()}
    assert room.keys(mirrored(name, level, which)) == room.keys(level)


@settings(max_examples=examples(30), deadline=None)
@given(st.integers(0, 19), st.randoms(use_true_random=False))
def test_sudoku_key_survives_everything_that_keeps_a_sudoku(row, random):
    puzzle = sudoku.generate(**SMALL).train["puzzle"][row]
    digits = random.sample(range(1, 5), 4)
    image = np.array([0, *digits], np.uint8)[puzzle]

    def order():
        bands = random.sample([0, 1], 2)
        return [2 * band + line for band in bands for line in random.sample([0, 1], 2)]

    image = image[order()][:, order()]
    image = image.T if random.random() < 0.5 else image
    assert sudoku.keys({"puzzle": image[None]}) == sudoku.keys({"puzzle": puzzle[None]})


def test_keys_tell_different_levels_apart():
    """Few collisions: a key that is the same for everything would keep parts disjoint too, by leaving one empty."""
    for name, room in ROOMS.items():
        keys = room.keys(room.generate(n_train=200, n_test=5).train.arrays)
        assert len(set(keys)) > 150, name


def test_same_seed_same_pool_other_seed_other_pool():
    fingerprints = []
    for seed in (0, 0, 1):
        plan_path.generate.cache_clear()
        fingerprints.append(plan_path.generate(seed=seed, **SMALL).fingerprint)
    assert fingerprints[0] == fingerprints[1] != fingerprints[2]


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_more_levels_to_evaluate_on_leave_those_of_training_alone(name):
    few, many = (ROOMS[name].generate(**SMALL | {"n_test": n}) for n in (5, 15))
    assert few.train == many.train
    assert few.test == pools.Levels({key: rows[:5] for key, rows in many.test.arrays.items()})


def test_how_many_levels_there_are_to_evaluate_on():
    assert [len(make(name, n_train=1).pool.test) for name in ("plan_path", "sudoku")] == [512, 512]
    assert make("sudoku", size=4, n_train=1, n_test=3, part="test").n_levels == 3


@pytest.mark.parametrize("name", ROOMS)
def test_a_long_generation_says_how_far_it_is(name, monkeypatch, caplog):
    monkeypatch.setattr(pools, "SILENT", 0.0)
    with caplog.at_level(logging.INFO, "envs.games"):
        ROOMS[name].generate.__wrapped__(n_train=600, n_test=150)
    assert re.search(rf"{name}: \d+ of 750 levels generated, about \d+ s left\n", caplog.text)


def test_fingerprint_sees_names_types_shapes_and_contents():
    base = np.arange(6, dtype=np.int32)
    variants = [{"a": base}, {"b": base}, {"a": base.astype(np.int64)}, {"a": base.reshape(2, 3)}, {"a": base + 1}]
    assert len({pools.fingerprint(v) for v in variants}) == len(variants)
    assert pools.fingerprint({"a": base.astype(">i4")}) == pools.fingerprint({"a": base})
    sparse = base.reshape(2, 3)[:, ::2]
    assert pools.fingerprint({"a": sparse}) == pools.fingerprint({"a": sparse.copy()})


def test_games_are_hashable_by_their_levels():
    one, two = (PlanPath(size=5, seed=seed, **SMALL) for seed in (0, 1))
    assert hash(one) == hash(PlanPath(size=5, **SMALL)) and one == PlanPath(size=5, **SMALL)
    assert one != two and one != PlanPath(pool=one.pool, part="test", size=5)
    with pytest.raises(ValueError, match="read-only"):
        one.levels["start"][0] = 3


def test_split_levels_lose_from_train_what_is_in_test():
    part = plan_path.generate(**SMALL).train.arrays
    shown = {name: rows[:4] for name, rows in part.items()}
    pool = pools.from_parts("plan_path", "test", part, shown, plan_path.keys)
    assert len(pool.train) == 16 and len(pool.test) == 4
    pool = pools.from_levels("plan_path", "test", part, plan_path.keys)
    assert len(pool.train) == 20 and len(pool.test) == 0


@pytest.mark.parametrize("name", sorted(ROOMS))
def test_file_round_trip(tmp_path, name):
    pool = ROOMS[name].generate(**SMALL)
    path = tmp_path / "pool.npz"
    pools.save(pool, path)
    again = ROOMS[name].load(path)
    assert again == pool and again.fingerprint == pool.fingerprint and again.source == pool.source
    assert make(name, pool=str(path)).pool == pool
    assert [file.name for file in tmp_path.iterdir()] == ["pool.npz"]


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "pool.npz"
    pools.save(plan_path.generate(**SMALL), path)
    return path


def rewrite(path, **changes):
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: file[name] for name in file.files}
    arrays.update(changes)
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})


def test_changed_contents_are_refused(saved):
    start = np.load(saved)["train/start"].copy()
    start[0] = start[1]
    rewrite(saved, **{"train/start": start})
    with pytest.raises(ValueError, match="pool.npz: corrupt pool: its fingerprint is"):
        pools.load(saved, "plan_path", plan_path.SCHEMA)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train/start": np.zeros(20, np.int64)}, r"pool.npz \(train\): start has dtype int64, but must have int32"),
        ({"train/start": np.zeros((20, 2), np.int32)}, r"start has shape \(20, 2\), but must have axes \[N\]"),
        ({"test/start": np.zeros(3, np.int32)}, r"\(test\): start has size 3 on axis N, but must have 5"),
        ({"test/start": None}, r"arrays are \['distance'\], but must be \['distance', 'start'\]"),
        ({"header": None}, "not a level pool: it has no header"),
        ({"header": np.array("{")}, "cannot read the header"),
        ({"header": np.array('{"game": "plan_path"}')}, "cannot read the header"),
        ({"header": np.array('{"game": "chess", "source": "", "fingerprint": ""}')}, "the pool is for 'chess'"),
    ],
)
def test_wrong_arrays_are_refused(saved, changes, words):
    rewrite(saved, **changes)
    with pytest.raises(ValueError, match=words):
        plan_path.load(saved)


def test_levels_that_cannot_be_solved_are_refused(tmp_path):
    pool = plan_path.generate(**SMALL)
    walls = np.array([np.flatnonzero(d == plan_path.WALL)[0] for d in pool.train["distance"]], np.int32)
    for start in (walls, np.full(20, 64, np.int32)):
        bad = pools.Levels({**pool.train.arrays, "start": start})
        pools.save(pools.Pool("plan_path", bad, pool.test), tmp_path / "pool.npz")
        with pytest.raises(ValueError, match=r"pool.npz \(train\): level 0 has no path from its start"):
            plan_path.load(tmp_path / "pool.npz")


def test_files_that_are_no_pools_are_refused(saved, tmp_path):
    with pytest.raises(ValueError, match="absent.npz: no such file"):
        plan_path.load(tmp_path / "absent.npz")
    (tmp_path / "text.npz").write_text("levels")
    with pytest.raises(ValueError, match="text.npz: not an .npz file"):
        plan_path.load(tmp_path / "text.npz")
    with zipfile.ZipFile(saved) as archive:
        place = archive.getinfo("train/distance.npy").header_offset + 100
    damaged = bytearray(saved.read_bytes())
    damaged[place : place + 40] = bytes(40)
    saved.write_bytes(bytes(damaged))
    with pytest.raises(ValueError, match="pool.npz: damaged .npz file"):
        plan_path.load(saved)


def test_pickled_arrays_are_not_opened(tmp_path):
    np.savez(tmp_path / "pickle.npz", header=np.array([{"a": 1}], dtype=object))
    with pytest.raises(ValueError, match="pickle.npz: damaged .npz file"):
        plan_path.load(tmp_path / "pickle.npz")


def test_pool_of_another_game_is_refused():
    with pytest.raises(ValueError, match="pool has levels of 'sudoku', but must have levels of 'plan_path'"):
        PlanPath(pool=sudoku.generate(**SMALL))
