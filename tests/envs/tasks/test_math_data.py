"""The math datasets: published formats, disjoint splits, and errors that name bad data."""

import json
import logging

import pytest

from envs.tasks.data import DataError
from envs.tasks.math import sample, sources
from envs.tasks.math.sources import MathProblem, problems
from envs.tasks.math.task import Math
from envs.tasks.task import SPLITS
from tests.conftest import shared_data


def write(folder, name, rows):
    (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    sources._load.cache_clear()
    yield tmp_path
    sources._load.cache_clear()


def gsm(n, start=0):
    return [{"question": f"What is {i} + 1?", "answer": f"It is <<{i}+1={i + 1}>>.\n#### {i + 1:,}"}
            for i in range(start, start + n)]  # fmt: skip


def test_published_formats(folder):
    write(folder, "gsm8k_train", gsm(40))
    write(folder, "gsm8k_test", gsm(3, 5000))
    write(folder, "math500_test", [{"problem": "p", "answer": r"\frac12", "unique_id": "test/a/1.json"}])
    write(folder, "math_train4500", [{"problem": f"q{i}", "answer": str(i)} for i in range(20)])
    write(folder, "aime2024", [{"problem": "p", "answer": 204, "url": "u"}])
    write(folder, "olympiadbench_math_en_text", [{"id": 7, "question": "o", "final_answer": ["$2$"]}])
    assert problems("gsm8k", "test")[0] == MathProblem("gsm8k/test/0", "What is 5000 + 1?", "5,001", "gsm8k")
    assert [len(problems("gsm8k", part)) for part in SPLITS] == [36, 4, 3]
    assert problems("math", "test")[0].id == "math/test/a/1.json" and len(problems("math", "train")) == 18
    assert problems("aime2024", "test")[0].answer == "204"
    assert problems("olympiadbench", "test")[0] == MathProblem("olympiadbench/7", "o", "$2$", "olympiadbench")
    mixed = Math(dataset="gsm8k", test_dataset="aime2024")
    assert mixed.examples("test")[0].source == "aime2024" and mixed.examples("validation")[0].source == "gsm8k"


def test_validation_is_cut_the_same_way_whatever_the_order(folder):
    write(folder, "gsm8k_train", gsm(40))
    write(folder, "gsm8k_test", gsm(3, 5000))
    first = {p.question for p in problems("gsm8k", "validation")}
    write(folder, "gsm8k_train", gsm(40)[::-1])
    sources._load.cache_clear()
    assert {p.question for p in problems("gsm8k", "validation")} == first


@pytest.mark.parametrize("name", ["aime2024", "math500", "olympiadbench"])
def test_contests_are_for_testing_only(folder, name):
    file = sources.SOURCES[name].test
    write(folder, file, [{"id": 1, "problem": "p", "question": "p", "answer": "1", "final_answer": ["1"]}])
    for part in ("train", "validation"):
        with pytest.raises(DataError, match=f"{name}.*no {part} split, but must be one of: gsm8k, math, sample"):
            problems(name, part)


def test_without_files_the_sample_is_used_and_the_log_says_so(folder, caplog):
    with caplog.at_level(logging.WARNING):
        assert problems("gsm8k", "test") == problems("sample", "test")
    assert "gsm8k: file gsm8k_train or gsm8k_test not found in" in caplog.text
    assert sum(len(sample.rows(part)) for part in SPLITS) >= 12


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"question": "q"}], "jsonl:1: no field 'answer'"),
        ([*gsm(1), {"question": "q", "answer": "no mark"}], "jsonl:2: no '####'"),
        ([*gsm(1), {"question": "", "answer": "#### 1"}], "'question' is empty"),
        ([*gsm(1), {"question": "q", "answer": "####  "}], "'answer' is empty"),
        ([*gsm(1), {"question": "q", "answer": 5}], "jsonl:2: "),
        (gsm(1, 5000), "What is 5000"),
    ],
)
def test_bad_rows_are_refused_and_named(folder, rows, message):
    write(folder, "gsm8k_train", [*gsm(20, 100), *rows] if "5000" in message else rows)
    write(folder, "gsm8k_test", gsm(3, 5000))
    with pytest.raises(DataError, match=message):
        problems("gsm8k", "train")


def test_invalid_utf8_and_broken_json_name_their_line(folder):
    write(folder, "gsm8k_test", gsm(3, 5000))
    for bad in (b'{"question": "\xff"}\n', b"{not json\n"):
        (folder / "gsm8k_train.jsonl").write_bytes(json.dumps(gsm(1)[0]).encode() + b"\n" + bad)
        with pytest.raises(DataError, match="jsonl:2: "):
            problems("gsm8k", "train")


def test_a_file_of_ones_own(folder):
    rows = [{"id": i, "question": f"q{i}", "answer": i + 1} for i in range(30)]
    write(folder, "own", rows)
    parts = {part: problems("own.jsonl", part) for part in SPLITS}
    assert sum(map(len, parts.values())) == 30 and all(parts.values())
    write(folder, "twice", [*rows, {"id": 3, "question": "another", "answer": 1, "part": "test"}])
    with pytest.raises(DataError, match='id "3" is in train .* and in test'):
        problems("twice.jsonl", "train")
    write(folder, "empty", [*rows, {"id": 99, "question": "q", "answer": " "}])
    with pytest.raises(DataError, match="'answer' is empty"):
        problems("empty.jsonl", "train")
    write(folder, "part", [*rows, {"id": 99, "question": "q", "answer": "1", "part": "dev"}])
    with pytest.raises(DataError, match="part is 'dev', but must be one of: train, validation, test"):
        problems("part.jsonl", "train")
    with pytest.raises(DataError, match="absent.jsonl: no such file"):
        problems("absent.jsonl", "train")


def test_the_published_files_have_the_known_sizes(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/gsm8k_train.jsonl.gz").parents[1]))
    assert [len(problems("math", part)) for part in SPLITS] == [4050, 450, 500]
    assert len(problems("amc2023", "test")) == 40 and len(problems("olympiadbench", "test")) == 675
    assert all(len(problems(f"aime{year}", "test")) == 30 for year in (2024, 2025, 2026))
