"""Table of debates: its runs, the statistics of episodes, and its claims."""

import csv
import json
import random
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.tasks.debate import votes
from experiments.tables import debate, intervals, runs
from experiments.tables import debate_records as read
from experiments.tables.debate_rows import ROWS, config_of
from marl_jax.evaluation import intervals as stats
from marl_jax.schema import validate
from marl_jax.schema.flags import parse as parse_flags

pytestmark = pytest.mark.nightly

MODEL = "qwen2.5-coder-1.5b"


def flags_of(tmp_path, *more):
    return debate.parse([f"--workdir={tmp_path}", *more])[0]


# ---------------------------------------------------------------------------------------------------------------- runs


@pytest.mark.parametrize(("task", "model"), [("gsm8k", ""), ("gsm8k", MODEL), ("anli", MODEL)])
def test_every_row_can_run_and_learns_from_as_many_answers(tmp_path, task, model):
    flags = flags_of(tmp_path, f"--model={model}", "--steps=3", "--scorer=http://127.0.0.1:1", f"--only={task}")
    wanted = debate.rows_of(flags)
    debate.check_budgets(flags, wanted)
    training, tests = debate.plan(flags, wanted, ["--config.optim.lr=1e-5", "--config.seed=3"])
    assert set(training) == {f"{task}/{row}" for row, about in ROWS.items() if about.untuned}
    assert len(tests) == 5 * 4 + 2
    for name, (command, done) in training.items():
        config = parse_flags(["launch.py", *command], ("train", "eval")).config
        validate.check(config)
        assert not done and config.steps == 3 and config.optim.lr == 1e-5
        assert config.task.params.scorer == ("http://127.0.0.1:1" if "verifier" in name else "gold")
        assert config.task.params.min_words == (40 if "verifier" in name and (task, model) == ("gsm8k", MODEL) else 0)
    agents_turns = {"samples": (9, 1), "refine": (1, 9)} if model else {"samples": (6, 1), "refine": (1, 6)}
    for name, (command, _) in tests.items():
        config = parse_flags(["launch.py", *command], ("train", "eval")).config
        _, row, _, test = name.split("/")
        places = {f"{tmp_path}/{task}/{row}@best"} if ROWS[row].untuned else {""}
        given = {config.model.init_from, *(p.model.init_from for p in config.policies.values() if p.model)}
        assert given == places and config.seed == 3 and config.optim.lr != 1e-5 and config.eval.split == "test"
        for chosen in (config.model, *(p.model for p in config.policies.values() if p.model)):
            chosen.init_from = ""  # there is no such run yet
        validate.check(config, "eval")
        expected = agents_turns.get(test, (3, 3 if model else 2))
        assert (config.task.params.eval_agents, config.task.params.turns) == expected and config.eval.temperature > 0
        dataset = {"gsm8k": "gsm8k" if model else "sample", "anli": "nli"}
        assert config.task.params.dataset == dataset[debate.OTHER[task] if test == "transfer" else task]
        assert (config.task.params.scorer != "gold") == (test == "samples")


def test_rows_that_cannot_run_are_refused(tmp_path, monkeypatch):
    assert {row for _, row in debate.rows_of(flags_of(tmp_path))} == set(ROWS) - {"verifier", "single_verifier"}
    with pytest.raises(SystemExit, match="a verifier judges one task; add --only=gsm8k or anli"):
        debate.rows_of(flags_of(tmp_path, "--scorer=http://127.0.0.1:1"))
    with pytest.raises(SystemExit, match="the row 'verifier' needs --scorer"):
        debate.rows_of(flags_of(tmp_path, "--only=gsm8k/verifier"))
    with pytest.raises(
        SystemExit,
        match="'math', but must be one of: gsm8k, anli, .*: untuned",
    ):
        debate.rows_of(flags_of(tmp_path, "--only=math"))
    with pytest.raises(SystemExit, match="has no evaluations to collect"):
        debate.main([f"--workdir={tmp_path}/nothing", "--collect"])
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    with pytest.raises(SystemExit, match="no files gsm8k_train, gsm8k_test, anli_dev, anli_test"):
        debate.main([f"--workdir={tmp_path}", f"--model={MODEL}"])
    fewer = flags_of(tmp_path, "--only=gsm8k/single,gsm8k/pair", "--tests=debate,samples")
    assert debate.files_of(fewer, debate.rows_of(fewer)) == ["gsm8k_train", "gsm8k_test"]
    assert [name.rpartition("/")[2] for name in debate.plan(fewer, debate.rows_of(fewer))[1]] == [
        "debate", "samples", "debate",
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        flags_of(tmp_path, "--tests=debate,sample")
    monkeypatch.setattr(debate.forms, "answers_of", lambda config: config["task"]["n_episodes"])
    with pytest.raises(SystemExit, match="budgets of gsm8k differ"):
        debate.check_budgets(flags_of(tmp_path), debate.rows_of(flags_of(tmp_path)))


# ------------------------------------------------------------------------------------------------------------- records


def record(example, table, tokens=10, scores=None, gold="5"):
    """Return an episode with the answers table[turn][agent]; "-" is a missing answer."""
    given = [[None if a == "-" else a for a in row] for row in table]
    verdicts = [[{"right": float(a == gold), "answer": a, "reason": ""} for a in row] for row in given]
    turns = [
        {
            "role": f"agent_{a}", "turn": t, "tokens": tokens, "context": 100 * (t + 1), "verdict": verdict,
            "text": verdict["answer"] or "",
        }
        for t, row in enumerate(verdicts)
        for a, verdict in enumerate(row)
    ]  # fmt: skip
    if scores is not None:
        for turn, score in zip(turns, scores, strict=True):
            turn["verdict"]["score"] = score
    return {
        "example": example, "id": f"q{example}", "success": votes.vote(verdicts[-1]), "failed": None, "turns": turns,
        "metrics": votes.metrics(verdicts, len(table)),
    }  # fmt: skip


def test_transitions_and_costs():
    records = [record(0, ["54-", "554"]), record(1, ["555", "554"])]
    assert read.transitions(records) == [{"RR": 3 / 6, "RW": 1 / 6, "WR": 1 / 6, "WW": 1 / 6}]
    found = read.cost(records)
    assert (found.answers, found.written, found.processed) == (6, 60, 3 * 210)
    assert read.cost(records, 2).processed == 2 * 110
    assert [one.value for one in read.by_turn(records, "vote", 2)] == pytest.approx([0.75, 1])


@given(st.lists(st.sampled_from("45-"), min_size=1, max_size=9), st.integers(1, 9))
def test_votes_of_samples_are_those_of_debates(answers, n):
    """The rule is that of `envs.tasks.debate.votes`, which experiments do not import."""
    verdicts = [{"right": a == "5", "answer": None if a == "-" else a, "reason": ""} for a in answers]
    assert read.majority(record(0, [answers]), n) == votes.vote(verdicts[:n])


def test_the_best_sample_is_the_verifiers_choice():
    assert read.best_of(record(0, ["455"], scores=[0.1, 0.9, 0.3])) == 1
    assert read.best_of(record(0, ["455"], scores=[0.9, 0.9, 0.3])) == 0.5
    assert read.best_of(record(0, ["-55"], scores=[0.99, 0.9, 0.3])) == 1 and read.best_of(record(0, ["---"])) == 0
    assert read.best_of(record(0, ["4"]) | {"failed": "score_missing"}) == 0
    assert read.weighted_vote(record(0, ["4455"], scores=[0.5, 0.3, 0.3, 0.6])) == 1
    assert read.weighted_vote(record(0, ["455"], scores=[0.75, 0.25, 0.5])) == 0.5
    assert read.weighted_vote(record(0, ["4-5"], scores=[0.5, 0.9, 0.6])) == 1
    assert read.weighted_vote(record(0, ["--"], scores=[0, 0])) == 0
    some = [record(0, ["455"]), record(1, ["455"], scores=[0, 1, 0])]
    assert read.scored(some) == some and not read.scored(some[:1])


def test_as_many_tokens_as_the_debate():
    samples = [record(i, ["455455455"], tokens=10) for i in range(3)]
    assert [read.equal_tokens(samples, written) for written in (0, 9, 52, 90, 500)] == [1, 1, 5, 9, 9]


@given(st.lists(st.floats(0, 1), min_size=2, max_size=50))
def test_intervals_of_rates_are_those_of_runs(values):
    ours, theirs = intervals.rate(values), stats.wilson(min(sum(values), len(values)), len(values))
    assert (ours.value, ours.low, ours.high) == pytest.approx(tuple(theirs), abs=1e-6)


def test_paired_differences_have_the_width_that_theory_says():
    rng = np.random.default_rng(0)
    theirs = rng.integers(0, 2, 1000).astype(float)
    ours = np.where(rng.random(1000) < 0.1, 1.0, theirs)
    found = intervals.difference(ours, theirs)
    half = 1.96 * (ours - theirs).std() / np.sqrt(1000)
    assert found.value == pytest.approx((ours - theirs).mean())
    assert (found.high - found.value, found.value - found.low) == pytest.approx((half, half), rel=0.1)
    same = intervals.difference(ours, ours)
    assert same.value == 0 and -0.01 < same.low < 0 < same.high < 0.01
    few = intervals.difference([1.0] * 3, [0.0] * 3)
    assert few.value == 1 and few.low < 0, "three questions prove nothing"
    assert intervals.difference([1.0] * 30, [0.0] * 30).low > 0.5
    with pytest.raises(ValueError, match="3 and 2 values"):
        intervals.difference([1, 0, 1], [1, 0])


@pytest.mark.parametrize(
    ("rate", "words"),
    [
        (runs.Rate(0.02, 0.01, 0.03), "**beats** maj@9"),
        (runs.Rate(-0.02, -0.03, -0.01), "is **worse than** maj@9"),
        (runs.Rate(0.02, -0.01, 0.05), "does **not** beat maj@9; no difference was shown"),
        (runs.Rate(0, 0, 0), "does **not** beat maj@9"),
    ],
)
def test_nothing_is_claimed_that_was_not_shown(rate, words):
    assert words in read.verdict(rate, "maj@9")


def test_only_questions_of_both_are_compared():
    ours = [record(i, ["555"]) for i in range(4)]
    theirs = [record(i, ["444444"]) for i in (1, 3, 9)]
    difference, n = read.paired(ours, theirs, lambda record: record["success"])
    assert n == 2 and difference.value == 1 and read.paired(ours[:1], theirs, lambda record: 1.0) is None


# ---------------------------------------------------------------------------------------------------------------- page


@pytest.fixture
def finished(tmp_path):
    """Write evaluations of three rows of GSM8K with the embedded model, with 200 questions each."""
    flags, rng = flags_of(tmp_path, "--steps=5"), random.Random(0)
    for row, right in (("untuned", 0.4), ("correctness", 0.8), ("single", 0.6)):
        for test in ROWS[row].tests:
            agents, turns = {"samples": (6, 1), "refine": (1, 6)}.get(test, (3, 2))
            folder = tmp_path / debate.test_folder(flags, "gsm8k", row, test)
            (folder / "answers").mkdir(parents=True)
            (folder / "evaluation.json").write_text("{}")
            draw = lambda: "5" if rng.random() < right else "4"  # noqa: B023, E731
            scores = [0.1 * k for k in range(6)] if (row, test) == ("single", "samples") else None
            tables = [[[draw() for _ in range(agents)] for _ in range(turns)] for _ in range(200)]
            records = [record(i, table, scores=scores) for i, table in enumerate(tables)]
            text = "".join(json.dumps(one) + "\n" for one in records)
            (folder / "answers" / "test_00000005.jsonl").write_text(text)
        if ROWS[row].untuned:
            (tmp_path / "gsm8k" / row / "config.json").write_text(config_of(flags, "gsm8k", row).to_json())
    return tmp_path


def test_finished_rows_are_collected_and_written(finished, capsys):
    command = [f"--workdir={finished}", "--only=gsm8k", "--steps=5", "--collect"]
    assert debate.main(command) == 0
    text = (finished / "debate.md").read_text()
    assert text == capsys.readouterr().out
    assert "| | vote, turn 1 | vote, turn 2 | one agent, first turn | one agent, last turn |" in text
    assert "| two models, untuned | – | – | – | – |" in text
    assert text.count("| best-of-6 by the verifier |") == 1, "only what a verifier has scored"
    assert text.count("| vote of 6, weighted by the verifier |") == 1
    assert "best-of-6 by the verifier of the model trained as a single agent (+" in text
    assert "| trained for correct answers | maj@6 |" in text and "| self-refinement, 6 turns |" in text
    assert "- trained for correct answers: the debate **beats** maj@6 of the untuned model (+" in text
    assert "- trained for correct answers: the debate is **worse than** maj@6 of the same model (-" in text
    assert "self-refinement of the same model" in text
    assert "points on 200 questions)" in text and "### Transfer: debates on ANLI" in text
    with (finished / "debate.csv").open() as file:
        rows = {(row["row"], row["what"]): row for row in csv.DictReader(file)}
    one = rows["correctness", "maj@6"]
    assert float(one["low"]) < float(one["value"]) < float(one["high"]) and float(one["answers"]) == 6
    assert ("single", "transfer vote 2") in rows and ("pair", "maj@6") not in rows
    drawn = ElementTree.fromstring((finished / "debate.svg").read_text())
    words = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert "GSM8K (built-in examples): maj@6" in words and "trained as a single agent" in words

    path = finished / "gsm8k" / "single" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"steps": 50}))
    with pytest.raises(SystemExit, match="the runs of gsm8k have different budgets"):
        debate.main(command)


def test_only_what_is_missing_runs(finished, monkeypatch, capsys):
    launched = []
    monkeypatch.setattr(runs, "launch", lambda folder, name, *rest: launched.append(name) or 0)
    (finished / debate.test_folder(flags_of(finished), "gsm8k", "untuned", "refine") / "evaluation.json").unlink()
    assert debate.main([f"--workdir={finished}", "--only=gsm8k/untuned,gsm8k/single", "--steps=5"]) == 0
    assert launched == ["gsm8k/single", "gsm8k/untuned/test/refine"]
