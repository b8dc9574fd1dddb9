"""Datasets: files and their errors, tensorflow-datasets, the Hub, the order of examples, and disjoint splits."""

import collections
import gzip
import http.server
import json
import lzma
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.data import (
    DataError,
    check_disjoint,
    check_fields,
    cut,
    find,
    fingerprint_of,
    from_hub,
    from_jsonl,
    from_list,
    from_tfds,
    make_splits,
    open_dataset,
    order,
    prepare_tfds,
)
from envs.tasks.data.__main__ import main
from envs.tasks.data.hub import files_of
from tests.conftest import examples, shared_data

ROWS = [{"id": f"q{i}", "question": f"{i} + {i}?", "answer": 2 * i} for i in range(40)]
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
TABLES = st.lists(st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES, max_size=3), min_size=1, max_size=6)


def write(path: Path, rows) -> Path:
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


# ---------------------------------------------------------------------------------------------------- the order


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(1, 400), st.integers(0, 2**40), st.integers(0, 2**20))
def test_the_order_is_a_permutation_of_every_size(size, seed, epoch):
    assert sorted(order(seed, epoch, i, size) for i in range(size)) == list(range(size))


def test_the_order_is_a_permutation_of_all_small_sizes():
    for size in range(1, 130):
        assert {order(3, 1, i, size) for i in range(size)} == set(range(size))


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = {(s, e): tuple(order(s, e, i, 50) for i in range(50)) for s in range(4) for e in range(4)}
    assert len(set(orders.values())) == 16 and tuple(range(50)) not in orders.values()


@pytest.mark.parametrize("size", [3, 5, 16, 17])
def test_every_example_is_as_likely_at_every_place(size):
    """χ² with d = (size − 1)² degrees of freedom has the mean d and the deviation √2d; allow five deviations."""
    epochs = 600
    counts = collections.Counter((i, order(0, epoch, i, size)) for epoch in range(epochs) for i in range(size))
    expected = epochs / size
    found = sum((counts[i, j] - expected) ** 2 / expected for i in range(size) for j in range(size))
    freedom = (size - 1) ** 2
    assert abs(found - freedom) < 5 * (2 * freedom) ** 0.5


def test_neighbours_are_not_kept_together():
    places = [order(7, 0, i, 10_000) for i in range(2000)]
    near = sum(abs(a - b) < 100 for a, b in zip(places, places[1:], strict=False))
    assert near < 80, "about 40 of 2000 would be by chance"


def test_a_huge_dataset_needs_no_list_and_no_index_outside_it_is_accepted():
    assert 0 <= order(1, 2, 10**12 - 1, 10**12) < 10**12
    for index in (-1, 5):
        with pytest.raises(ValueError, match=f"index is {index}, but must be 0 to 4"):
            order(0, 0, index, 5)


# ---------------------------------------------------------------------------------------------------- files


def test_the_same_rows_have_the_same_fingerprint_wherever_they_lie(tmp_path):
    plain = write(tmp_path / "rows.jsonl", ROWS)
    packed, squeezed = tmp_path / "rows.jsonl.gz", tmp_path / "rows.jsonl.xz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    squeezed.write_bytes(lzma.compress(plain.read_bytes()))
    halves = [write(tmp_path / f"{i}.jsonl", part) for i, part in enumerate((ROWS[:7], ROWS[7:]))]
    for source in (plain, packed, squeezed, str(plain), halves):
        data = from_jsonl(source)
        assert len(data) == 40 and list(data) == ROWS and data[-1] == ROWS[-1] and data[33] == ROWS[33]
        assert data.fingerprint == from_list(ROWS).fingerprint == fingerprint_of(data)
    assert from_jsonl(halves).where(8) == f"{halves[1]}:2" and from_jsonl(plain).name == "rows"
    swapped, changed = [ROWS[1], ROWS[0], *ROWS[2:]], [*ROWS[:-1], {**ROWS[-1], "answer": 1}]
    prints = {from_list(rows).fingerprint for rows in (ROWS, swapped, changed, ROWS[:-1])}
    assert len(prints) == 4 and all(len(one) == 64 for one in prints)
    with pytest.raises(IndexError, match="index is 40, but rows has 40 rows"):
        from_jsonl(plain)[40]


@settings(max_examples=examples(50), deadline=None)
@given(TABLES)
def test_rows_come_back_as_they_were(tmp_path_factory, rows):
    path = write(tmp_path_factory.getbasetemp() / "rows.jsonl", rows)
    assert list(from_jsonl(path)) == rows and from_jsonl(path).fingerprint == from_list(rows).fingerprint


def test_bad_lines_are_named_by_file_and_line(tmp_path):
    good, path = b'{"a": 1}\n', tmp_path / "bad.jsonl"
    path.write_bytes(
        b"\xef\xbb\xbf" + good + b"\n" + b'{"a": \n' + b'{"a": "\xff"}\n' + b"[1]\n" + b'{"a": "\\ud800"}\n'
        + b"[" * 100_000 + b"\n" + b'{"a": ' + b"9" * 5000 + b"}\n" + good[:-1]
    )  # fmt: skip
    with pytest.raises(DataError) as error:
        from_jsonl(path)
    lines = str(error.value).split("\n")
    for number, (line, what) in enumerate(
        [
            (3, "invalid JSON: Expecting value at column"),
            (4, "invalid UTF-8: byte 0xff at column 8"),
            (5, "[1] is not a JSON object"),
            (6, "half of a surrogate pair"),
            (7, "nested too deeply"),
        ]
    ):
        assert lines[number].startswith(f"{path}:{line}: ") and what in lines[number]
    assert lines[5] == "and 1 more"
    path.write_bytes(b"\xef\xbb\xbf" + good + b"  \n" + good[:-1])
    assert [from_jsonl(path).where(i) for i in (0, 1)] == [f"{path}:1", f"{path}:3"] and len(from_jsonl(path)) == 2


@pytest.mark.parametrize("depth", [100, 900, 5000])
def test_rows_that_are_nested_deeply_are_a_line(depth, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": ' + "[" * 99 + "]" * 99 + '}\n{"a": ' + "[" * depth + "]" * depth + "}\n")
    with pytest.raises(DataError, match="rows.jsonl:2: .*nested too deeply"):
        from_jsonl(path)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_any_damage_to_a_packed_file_is_one_error(suffix, tmp_path):
    rng = random.Random(0)
    whole = (gzip if suffix == ".gz" else lzma).compress(b"".join(b'{"a": %d}\n' % i for i in range(3000)))
    path, refused = tmp_path / f"rows.jsonl{suffix}", 0
    for _ in range(60):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        try:
            from_jsonl(path)
        except DataError as error:
            assert str(error).startswith(str(path))
            refused += 1
    assert refused > 30


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_a_file_that_is_cut_short_or_absent_is_refused(tmp_path, suffix):
    path = tmp_path / f"x.jsonl{suffix}"
    whole = (gzip if suffix == ".gz" else lzma).compress(b'{"a": 1}\n' * 1000)
    for content in (whole[:-20], b"no archive"):
        path.write_bytes(content)
        with pytest.raises(DataError, match=f"x.jsonl{suffix}: not a complete {suffix} file"):
            from_jsonl(path)
    with pytest.raises(DataError, match="No such file"):
        from_jsonl(tmp_path / f"absent.jsonl{suffix}")


def test_an_answer_of_a_megabyte_is_a_row_like_others(tmp_path):
    rows = [{"answer": "x" * 10**6}, {"answer": "y"}]
    assert list(from_jsonl(write(tmp_path / "long.jsonl", rows))) == rows


def test_rows_of_a_list_are_dicts_of_json_values_and_are_not_shared():
    with pytest.raises(DataError, match="list, row 1 is 'x', but must be a dict"):
        from_list([{}, "x"])
    with pytest.raises(DataError, match="list, row 0: .*bytes.*values must be JSON"):
        from_list([{"a": b"x"}])
    data = from_list([{"a": [1]}])
    data[0]["a"].append(2)
    assert data[0] == {"a": [1]}
    mapped = data.map(lambda row: {"b": row["a"][5]})
    with pytest.raises(DataError, match="list, row 0: IndexError"):
        mapped[0]


# ---------------------------------------------------------------------------------------------------- fields and splits


def test_missing_fields_and_empty_answers_are_named(tmp_path):
    rows = [*ROWS[:2], {"id": "x", "question": "?"}, {"question": "?", "answer": " ", "id": "y"}, {"id": "z"}]
    data = from_jsonl(write(tmp_path / "rows.jsonl", rows))
    with pytest.raises(DataError) as error:
        check_fields(data, ("question",), filled=("answer",))
    assert str(error.value).split("\n") == [
        f"{tmp_path}/rows.jsonl:3: no field 'answer'; the fields are: id, question",
        f"{tmp_path}/rows.jsonl:4: the field 'answer' is empty: ' '",
        f"{tmp_path}/rows.jsonl:5: no field 'question'; the fields are: id",
    ]
    for value in (None, "", "\n", [], ["", None]):
        with pytest.raises(DataError, match="the field 'answer' is empty"):
            check_fields(from_list([{"answer": value}]), (), ("answer",))
    check_fields(from_list([{"answer": value} for value in (0, False, "0", ["", "x"])]), (), ("answer",))


def test_an_id_in_two_parts_is_refused_with_its_places(tmp_path):
    train, test = write(tmp_path / "train.jsonl", ROWS), write(tmp_path / "test.jsonl", [{"id": "new"}, {"id": "q7"}])
    with pytest.raises(DataError) as error:
        check_disjoint(from_jsonl(train), from_jsonl(test), "id")
    assert str(error.value) == f'id "q7" is in train ({train}:8) and in test ({test}:2)'
    with pytest.raises(DataError, match=r'"q3" is in train .* and in validation'):
        make_splits(from_list(ROWS), validation=from_list(ROWS[3:4]), test=from_list([{"id": "new"}]), key="id")
    with pytest.raises(DataError, match="and 35 more"):
        check_disjoint(from_list(ROWS), from_list(ROWS))
    with pytest.raises(DataError, match="row 0: no field 'uid'"):
        check_disjoint(from_list(ROWS), from_list(ROWS), "uid")


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.integers(0, 60), min_size=12, max_size=60), st.randoms())
def test_parts_are_disjoint_whole_and_do_not_depend_on_the_order_of_rows(ids, random):
    rows = [{"id": i, "n": n} for n, i in enumerate(ids)]
    try:
        parts = make_splits(from_list(rows), key="id")
    except DataError as error:
        assert len(set(ids)) < 12 and "too few to cut the split" in str(error)
        return
    found = {name: {row["id"] for row in part} for name, part in parts.items()}
    assert set.union(*found.values()) == set(ids) and sum(map(len, found.values())) == len(set(ids))
    assert sum(map(len, parts.values())) == len(rows)
    random.shuffle(rows)
    again = make_splits(from_list(rows), key="id")
    assert {name: {row["id"] for row in part} for name, part in again.items()} == found


def test_the_size_of_a_part_that_is_cut():
    rest, part = cut(from_list([{"id": i} for i in range(10_000)]), "id")
    assert (len(rest), len(part)) == (9500, 500)
    rest, part = cut(from_list(ROWS), "id")
    assert (len(rest), len(part)) == (36, 4)
    with pytest.raises(DataError, match="list: 1 rows, 1 different: too few"):
        cut(from_list(ROWS[:1]))


# ---------------------------------------------------------------------------------------------- tensorflow-datasets


def test_importing_the_package_imports_neither_tfds_nor_tensorflow():
    code = (
        "import sys, envs.tasks, envs.tasks.data\n"
        "bad = {'tensorflow_datasets', 'tensorflow', 'pyarrow', 'huggingface_hub', 'jax'} & set(sys.modules)\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_a_builder_is_prepared_once_and_read_by_number_without_tensorflow(tmp_path):
    odd = [{"id": "n1", "choices": ["a", "b"], "score": 0.5}, {"id": "n2", "choices": None}, {"id": "n3", "score": 1}]
    parts = {"train": from_list(ROWS), "test": from_list(ROWS[:3])}
    folder = prepare_tfds("sums", parts, tmp_path, description="Sums, written for a test.")
    train = from_tfds(folder, "train")
    assert list(train) == ROWS and train.fingerprint == from_list(ROWS).fingerprint
    assert list(open_dataset(f"tfds:{folder}", "test")) == ROWS[:3] == list(from_tfds(folder.parent, "test"))
    assert list(from_tfds(prepare_tfds("odd", {"train": from_list(odd)}, tmp_path), "train")) == odd
    assert "tensorflow" not in sys.modules and list(folder.glob("*.array_record*"))
    before = sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    assert prepare_tfds("sums", parts, tmp_path) == folder
    assert before == sorted((p.name, p.stat().st_mtime_ns) for p in folder.iterdir())
    with pytest.raises(DataError, match="holds different data"):
        prepare_tfds("sums", {"train": from_list(ROWS[:5])}, tmp_path)
    with pytest.raises(DataError, match="sums has no split 'validation'; the splits are: train, test"):
        from_tfds(folder, "validation")
    with pytest.raises(DataError, match="no such folder"):
        from_tfds(tmp_path / "absent", "train")
    with pytest.raises(DataError, match="rows, but need at least 1"):
        prepare_tfds("none", {"train": from_list([])}, tmp_path)


# ---------------------------------------------------------------------------------------------------- the hub


@pytest.fixture
def hub(tmp_path):
    """Start a server like the Hub with one dataset; return its address and the folder of its files."""
    folder, sha = tmp_path / "files", "c0ffee" + "0" * 34

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self, status, body=b"", **headers):
            self.send_response(status)
            for name, value in {"Content-Length": len(body), **headers}.items():
                self.send_header(name.replace("_", "-"), str(value))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body)

        def do_GET(self):
            path = self.path.split("?")[0]
            if path.startswith(f"/datasets/me/sums/resolve/{sha}/"):
                content = (folder / path.partition(f"{sha}/")[2]).read_bytes()
                etag = f'"{abs(hash(content))}"'
                headers = dict(ETag=etag, X_Repo_Commit=sha, Accept_Ranges="bytes", Content_Type="text/plain")
                return self.answer(200, content, **headers)
            if path.startswith("/api/datasets/me/sums"):
                files = [{"rfilename": str(p.relative_to(folder))} for p in folder.rglob("*") if p.is_file()]
                found = {"id": "me/sums", "_id": "1", "sha": sha, "siblings": files, "tags": [], "downloads": 0}
                return self.answer(200, json.dumps(found).encode(), Content_Type="application/json")
            return self.answer(404, b'{"error": "Repository not found"}', X_Error_Code="RepoNotFound")

        do_HEAD = do_GET

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def test_a_split_of_the_hub_is_fetched_and_read(hub, tmp_path, monkeypatch):
    import pyarrow
    from huggingface_hub import constants
    from pyarrow import parquet

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    address, folder = hub
    (folder / "data").mkdir(parents=True)
    for i, rows in enumerate((ROWS[:15], ROWS[15:])):
        parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "data" / f"train-0000{i}-of-00002.parquet")
    write(folder / "data" / "dev.jsonl", ROWS[:2])
    (folder / "README.md").write_text("Sums.")
    (folder / "run.py").write_text("raise SystemExit('code of a dataset was run')")
    train = from_hub("me/sums", "train", endpoint=address)
    assert list(train) == ROWS and train.fingerprint == from_list(ROWS).fingerprint
    assert list(from_hub("me/sums", "validation", endpoint=address)) == ROWS[:2]
    assert not list((tmp_path / "cache").rglob("run.py")), "only the files of the split are fetched"
    assert list(open_dataset(f"hub:{folder}", "train")) == ROWS, "a copy in a folder will do"
    with pytest.raises(DataError, match="no Parquet or JSONL file of the split 'test'; files: data/dev.jsonl"):
        from_hub("me/sums", "test", endpoint=address)
    with pytest.raises(DataError, match="you/absent: the Hub returned no dataset"):
        from_hub("you/absent", "train", endpoint=address)
    with pytest.raises(DataError, match="me/sums: the Hub"):
        from_hub("me/sums", "train", endpoint="http://127.0.0.1:1")


def test_bad_values_in_parquet_are_named(tmp_path):
    import pyarrow
    from pyarrow import parquet

    broken = pyarrow.array([b"fine", b"\xff"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"a": broken}), tmp_path / "train.parquet")
    parquet.write_table(pyarrow.table({"a": [b"bytes"]}), tmp_path / "test.parquet")
    with pytest.raises(DataError, match=r"\(train\), row 1: invalid UTF-8: byte 0xff"):
        list(from_hub(str(tmp_path), "train"))
    with pytest.raises(DataError, match=r"\(test\), row 0: .*bytes.*values must be JSON"):
        _ = from_hub(str(tmp_path), "test").fingerprint


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (["train.jsonl", "test.jsonl"], ["train.jsonl"]),
        (["data/train-00001-of-00002.parquet", "data/train-00000-of-00002.parquet"], 2),
        (["data/train-00000-of-00001-0123456789abcdef.parquet", "data/test-00000-of-00001.parquet"], 1),
        (["main/train/0000.parquet", "main/train/0001.parquet", "main/test/0000.parquet"], 2),
        (["gsm8k_train.jsonl.gz", "gsm8k_test.jsonl.gz"], ["gsm8k_train.jsonl.gz"]),
        (["retrain.jsonl", "train.txt", "train_metadata.jsonl", "train.py", "train.jsonl.xz"], ["train.jsonl.xz"]),
    ],
)
def test_the_files_of_a_split_go_by_their_names(files, found):
    chosen = files_of(files, "train", None, "me/sums")
    assert chosen == sorted(chosen) and (len(chosen) == found if isinstance(found, int) else chosen == found)
    assert not [file for file in chosen if "test" in file]


def test_a_dataset_of_several_configurations_asks_for_one(tmp_path):
    for config, rows in (("main", ROWS[:5]), ("socratic", ROWS[:6])):
        (tmp_path / config).mkdir()
        write(tmp_path / config / "train.jsonl", rows)
    with pytest.raises(DataError, match="choose one of: main, socratic"):
        from_hub(str(tmp_path), "train")
    assert len(open_dataset(f"hub:{tmp_path}@socratic", "train")) == 6


# ---------------------------------------------------------------------------------------------------- places


def test_files_are_found_in_the_data_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MARL_JAX_DATA", raising=False)
    assert find("sums") is None
    with pytest.raises(DataError, match=r"sums: no such file, here or in \$MARL_JAX_DATA \(not set\)"):
        open_dataset("sums", "train")
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    (tmp_path / "open").mkdir()
    path = write(tmp_path / "open" / "sums.jsonl", ROWS)
    assert find("sums") == find("sums.jsonl") == find("open/sums") == path and find("other") is None
    assert len(open_dataset("sums", "train")) == 40


def test_the_published_files_are_read_and_their_parts_are_disjoint():
    train, test = (from_jsonl(shared_data(f"open/gsm8k_{part}.jsonl.gz")) for part in ("train", "test"))
    parts = make_splits(train, test=test, key="question")
    assert {name: len(part) for name, part in parts.items()} == {"train": 6973, "validation": 500, "test": 1319}
    check_fields(train, (), ("question", "answer"))


def test_a_dataset_is_prepared_from_the_command_line(tmp_path, capsys):
    path = write(tmp_path / "sums.jsonl", ROWS)
    assert main(["sums", f"train={path}", f"test={path}", f"--folder={tmp_path}"]) == 0
    name = capsys.readouterr().out.split("\n")[-2]
    assert name == f"tfds:{tmp_path}/sums/1.0.0" and list(open_dataset(name, "test")) == ROWS
    assert main(["sums", f"train={tmp_path}/absent.jsonl"]) == 1 and "no such file" in capsys.readouterr().err
