"""Discovery: laws of the sample, R² against scikit-learn, programs that cheat, splits and bad input."""

import json
import math

import pytest

from envs.tasks import make_task
from envs.tasks.data import DataError
from envs.tasks.discovery import sources, tables
from envs.tasks.discovery.sample import FAMILIES
from envs.tasks.discovery.task import read_predictions, tried
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from tests.conftest import shared_data

R_SQUARED = [  # sklearn.metrics.r2_score of scikit-learn
    ([1, 2, 3], [1, 2, 3], 1.0),
    ([1, 2, 3], [2, 2, 2], 0.0),
    ([1, 2, 4, 8], [1.5, 2, 3, 9], 0.92173913),
    ([1, 2, 4, 8], [8, 4, 2, 1], -2.68695652),
    ([-3, 0.5, 7, 2], [-2.9, 0.4, 6.5, 2.2], 0.99400242),
]


@pytest.fixture(scope="module")
def task():
    return make_task("discovery", dataset="sample", sandbox="process")


def trial(row, program):
    settings = shared_sandbox("process").settings
    return tried(settings, f"```python\n{program}\n```", row["known"], row["probe"], row["hidden"], row["target"], 1.0)


@pytest.mark.parametrize(("expected", "predicted", "score"), R_SQUARED)
def test_r_squared_equals_that_of_scikit_learn(expected, predicted, score):
    assert tables.r_squared(expected, predicted) == pytest.approx(score, abs=1e-8)


def test_r_squared_of_values_that_do_not_vary_or_overflow():
    assert tables.r_squared([2, 2], [2, 2]) == tables.r_squared([1, 2], [1e300, 2]) == -math.inf


def test_the_laws_of_the_sample_predict_perfectly_and_the_mean_does_not(task):
    for row in task.examples("test")[: len(FAMILIES)]:
        gold = tried(shared_sandbox("process").settings, task.gold_reply(row),
                     row["known"], row["probe"], row["hidden"], row["target"], 3.0)  # fmt: skip
        assert gold["kind"] == "right" and gold["right"] > 0.999999, row["solution"]
        mean = trial(row, f"m = sum(r[{row['target']!r}] for r in ROWS) / len(ROWS)\ndef predict(row): return m")
        assert mean["kind"] == "partial" and mean["right"] < 0.1


def test_splits_share_no_law_and_hidden_values_are_not_known(task):
    laws = [{row["solution"] for row in task.examples(part)} for part in SPLITS]
    assert [len(law) for law in laws] == [96, 24, 48] and not laws[0] & laws[1] | laws[0] & laws[2] | laws[1] & laws[2]
    for row in task.examples("test"):
        inputs = [
            {tuple(v for k, v in r.items() if k != row["target"]) for r in row[part]}
            for part in ("known", "probe", "hidden")
        ]
        assert [len(part) for part in inputs] == [tables.KNOWN, tables.PROBE, tables.HIDDEN]
        assert not inputs[0] & inputs[1] | inputs[0] & inputs[2] | inputs[1] & inputs[2]


FAILING = {
    "no function": "x = 1",
    "not a number": "def predict(row): return 'many'",
    "nothing": "def predict(row): return None",
    "a boolean": "def predict(row): return True",
    "not finite": "def predict(row): return float('nan')",
    "infinite": "def predict(row): return float('inf')",
    "too large": "def predict(row): return 10 ** 400",
    "a syntax error": "def predict(row) return 1",
    "an exception": "def predict(row): return row['nothing']",
    "the hidden column": "def predict(row): return row[TARGET]",
    "an endless loop": "while True: pass",
    "an early end": "import sys\ndef predict(row): return 1\nsys.exit(0)",
    "an end without code": "import os\ndef predict(row): return 1\nos._exit(0)",
    "printed predictions": "print([1.0] * 90)\nimport os\nos._exit(0)",
    "too few printed": "print('\\n' + _DATA['mark'] + '[1.0]')\nimport os\nos._exit(0)",
    "a replaced print": "print = lambda *a: None\ndef predict(row): return 1",
    "a deleted row list": "_DATA['rows'].clear()\ndef predict(row): return 1",
}
WORTHLESS = {
    "a constant": "def predict(row): return 5",
    "huge values": "def predict(row): return 1e200",
    "the mean of known rows for all": "def predict(row): return sum(r[TARGET] for r in ROWS) / len(ROWS)",
    "the first known row": "def predict(row): return ROWS[0][TARGET]",
    "a row of the same index": "n = iter(ROWS * 9)\ndef predict(row): return next(n)[TARGET]",
    "a replaced serializer": "_json.dumps = lambda x: '[' + ', '.join(['1.0'] * 90) + ']'\ndef predict(row): return 1",
}


@pytest.mark.parametrize("cheat", FAILING)
def test_programs_without_finite_predictions_fail_with_a_message(cheat, task):
    row = task.examples("test")[0]
    result = trial(row, FAILING[cheat].replace("TARGET", repr(row["target"])))
    assert result["right"] == 0 and result["kind"] == "error" and result["shown"].startswith("The program failed: ")


@pytest.mark.parametrize("cheat", WORTHLESS)
def test_predictions_without_a_law_are_worth_nothing(cheat, task):
    row = task.examples("test")[0]
    result = trial(row, WORTHLESS[cheat].replace("TARGET", repr(row["target"])))
    assert result["right"] < 0.1 and result["kind"] == "partial"


def test_hidden_values_never_enter_the_sandbox(task):
    """A program that prints everything it can reach shows neither probe nor hidden targets."""
    row = task.examples("test")[0]
    sandbox = shared_sandbox("process")
    seen = []
    run = sandbox.run_sync

    class Spy:
        def run_sync(self, program, *, stdin="", limits=None):
            seen.append(program + stdin)
            return run(program, stdin=stdin, limits=limits)

    import envs.tasks.discovery.task as module

    original, module.same_sandbox = module.same_sandbox, lambda settings: Spy()
    try:
        trial(row, "def predict(row): return 1")
    finally:
        module.same_sandbox = original
    sent = json.loads(seen[0][seen[0].index('{"known"') :])
    assert all(row["target"] not in r for r in sent["rows"]) and len(sent["rows"]) == tables.PROBE + tables.HIDDEN


def test_predictions_are_read_after_the_last_mark():
    assert read_predictions("x\nMARK[1]\nMARK[2, 3.5]\n", "MARK", 2) == [2.0, 3.5]
    for text in ("[1, 2]", "MARK[1]", "MARK[1, null]", "MARK[1, NaN]", "MARK{}", "MARK" + "[" * 100_000, "MARK[1, 2"):
        assert read_predictions(text, "MARK", 2) is None


def test_one_agent_and_roles_see_the_r_squared_of_probe_rows(task):
    row = task.examples("train")[0]
    for form in ("single", "roles"):
        played = make_task("discovery", dataset="sample", sandbox="process", form=form)
        texts = iter(["```python\ndef predict(row): return 5\n```", played.gold_reply(row)])
        seen = []

        def answer(seat, messages, k, texts=texts, seen=seen):
            seen.append(messages[-1]["content"])
            return next(texts)

        outcome, ask = play(played, row, answer)
        assert outcome.success > 0.999 and outcome.metrics["kind_right"] and outcome.metrics["right_first"] == 0
        assert f"How does {row['target']} follow" in seen[0] and "have an R² of -" in seen[1]
        assert [seat for seat, *_ in ask.replies] == ([0, 0] if form == "single" else [0, 1])
        assert [reply.rewards.process for *_, reply in ask.replies] == ([0, 0.1] if form == "single" else [0.1, 0.1])


def test_targets_vary_and_depend_on_another_column():
    rows = [{"x": n % 17, "y": 2.0 * (n % 17), "constant": 1, "noise": (n * 7919) % 101, "name": "abc"[n % 3]}
            for n in range(400)]  # fmt: skip
    assert tables.targets(rows) == ["x", "y"]
    assert tables.divide(rows[:100], "y", "t") is None
    assert tables.read_csv("a,b,c,d\n1,2.5,True,\nx,inf,False,nan\n") == [
        {"a": 1, "b": 2.5, "c": True, "d": None}, {"a": "x", "b": None, "c": False, "d": None},
    ]  # fmt: skip


@pytest.mark.nightly
def test_published_tables_are_read(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/discoverybench_synth36.jsonl.gz").parent))
    parts = sources.load(sources.BENCH)
    assert [len(parts[part]) for part in SPLITS] == [41, 6, 19]
    domains = [{sources.domain(row) for row in parts[part]} for part in SPLITS]
    assert not domains[0] & domains[1] | domains[0] & domains[2] | domains[1] & domains[2]


def test_bad_parameters_and_files_are_refused(tmp_path, monkeypatch, caplog):
    with pytest.raises(ValueError, match="dataset is 'kaggle', but must be one of: discoverybench, sample"):
        make_task("discovery", dataset="kaggle")
    with pytest.raises(ValueError, match="wall is 0.0, but must be between 0.1 and 600"):
        make_task("discovery", wall=0.0)
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    assert len(make_task("discovery").examples("test")) == 48
    assert "python -m envs.tasks.data.prepare discoverybench" in caplog.text
    row = {"split": "real", "name": "a_0_0", "metadata": [], "csv": {"data.csv": "x,y\n1,2\n"}}
    (tmp_path / "discoverybench_synth.jsonl").write_text(json.dumps(row) + "\n")
    sources._load.cache_clear()
    with pytest.raises(DataError, match="split is 'real', but must be one of: synth_train, synth_dev"):
        make_task("discovery").examples("test")
    sources._load.cache_clear()
