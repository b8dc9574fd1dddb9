"""Evaluations of tasks: metrics of several samples, intervals, files and errors."""

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from configs import reasoning
from experiments import multiple_choice, nli, question
from marl_jax import setup as setups
from marl_jax.errors import CheckpointError, ConfigError
from marl_jax.evaluation import intervals
from marl_jax.evaluation.task_scores import best, majority, row
from marl_jax.modes import evaluate, train
from marl_jax.running.metrics import read_json_lines
from marl_jax.schema import validate
from marl_jax.web import completion_changes
from tests.conftest import examples
from tests.marl_jax import tiny_run, tiny_task


def sample(example, success, answer=None, reward=None, score=None, failed=None, turns=(), number=0, step=0):
    reward = success if reward is None else reward
    return dict(example=example, sample=number, id=f"id{example}", success=float(success), reward=float(reward),
                answer=answer, score=score, failed=failed, error="", metrics={}, turns=[*turns], step=step)  # fmt: skip


def turn(role, number, right):
    verdict = None if right is None else dict(right=float(right), answer="x", reason="")
    return dict(role=role, turn=number, verdict=verdict, rewards=dict(team=1.0, agent=0.5, process=0.0),
                prompt="<b>p", text="t<script>", finish="stop", tokens=3, label=None)  # fmt: skip


# ---------------------------------------------------------------------------------------------------- several samples


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        (["a", "a", "b"], 1.0),
        (["b", "b", "a"], 0.0),
        (["a", "b"], 0.5),
        (["a", "b", "c"], 1 / 3),
        ([None, None, "a"], 1.0),
        ([None, None], 0.0),
        (["a", "a", "b", "b", "c"], 0.5),
    ],
)
def test_the_majority_votes(answers, expected):
    """The correct answer is "a"; a missing answer has no vote, and ties are averaged."""
    group = [sample(0, answer == "a", answer) for answer in answers]
    assert majority(group) == pytest.approx(expected)
    assert majority(group[::-1]) == pytest.approx(expected)


def test_a_failed_episode_has_no_vote_and_is_never_the_best():
    failed = [sample(0, 0, failed="error") for _ in range(3)]
    assert majority([*failed, sample(0, 1, "a")]) == 1 and best([*failed, sample(0, 1, reward=-1)], "reward") == 1
    assert majority(failed) == best(failed, "reward") == 0


def test_the_best_goes_by_the_tasks_own_score_where_it_has_one():
    group = [sample(0, 0, score=0.9, reward=0), sample(0, 1, score=0.1, reward=1)]
    assert best(group, "score") == 0 and best(group, "reward") == 1
    assert row(group, 0.95)["best_by_score@2"] == 0 and "best_by_reward@2" not in row(group, 0.95)
    without = [dict(one, score=None) for one in group]
    assert row(without, 0.95)["best_by_reward@2"] == 1
    assert best([sample(0, 1, reward=2), sample(0, 0, reward=2), sample(0, 0, reward=1)], "reward") == 0.5


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=6))
def test_rates_of_several_samples_against_their_definitions(table):
    """pass@1 is the mean and pass@3 the fraction with a correct sample; maj@3 needs two of three."""
    records = [
        sample(i, ok, "right" if ok else "wrong", number=k) for i, line in enumerate(table) for k, ok in enumerate(line)
    ]
    found = row(records, 0.95)
    n = len(table)
    assert found["games"] == 3 * n and found["distinct"] == n
    assert found["success"] == pytest.approx(np.mean(table))
    assert found["pass@3"] == pytest.approx(np.mean([any(line) for line in table]))
    assert found["maj@3"] == pytest.approx(np.mean([sum(line) >= 2 for line in table]))
    for name in ("success", "pass@3", "maj@3", "best_by_reward@3", "reward"):
        assert found[f"{name}_low"] <= found[name] + 1e-9 and found[name] <= found[f"{name}_high"] + 1e-9
    assert found["pass@3_low"] >= found["success_low"] - 0.5 and found["pass@3"] >= found["maj@3"]


def test_one_sample_of_each_has_wilsons_interval_and_no_further_rates():
    found = row([sample(i, i < 3, "a") for i in range(10)], 0.95)
    assert (found["success_low"], found["success_high"]) == pytest.approx(intervals.wilson(3, 10)[1:])
    assert not [name for name in found if "@" in name]


def test_samples_of_one_example_are_not_counted_as_examples():
    """Sixteen equal samples of five examples have the interval of five values, not of eighty."""
    equal = row([sample(i, i < 2, number=k) for i in range(5) for k in range(16)], 0.95)
    one = intervals.bootstrap([0.0, 0.0, 0.0, 1.0, 1.0])
    assert (equal["success_low"], equal["success_high"]) == (one.low, one.high)
    nothing = row([sample(i, 0, number=k) for i in range(5) for k in range(16)], 0.95)
    assert nothing["success_high"] == pytest.approx(intervals.wilson(0, 5).high) and nothing["success_high"] > 0.4


def test_the_interval_of_a_mean_over_samples_covers_the_truth():
    """Of 150 evaluations with 30 examples and 4 samples, about 95 % must contain the mean over all examples."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(150):
        chances = rng.beta(0.7, 0.7, 30)
        table = rng.random((30, 4)) < chances[:, None]
        found = row([sample(i, table[i, k], number=k) for i in range(30) for k in range(4)], 0.95)
        covered += found["success_low"] <= 0.5 <= found["success_high"]
    assert 0.89 <= covered / 150 <= 0.99


def test_rates_per_role_and_turn():
    records = [
        sample(i, 1, turns=[turn("solver", 0, i < 1), turn("checker", 0, i < 3), turn("solver", 1, None)])
        for i in range(4)
    ]
    found = row(records, 0.95)
    assert found["right/solver/turn_1"] == 0.25 and found["right/checker/turn_1"] == 0.75
    assert found["right/checker/turn_1_low"] == pytest.approx(intervals.wilson(3, 4).low)
    assert "right/solver/turn_2" not in found and found["reward/solver/turn_2"] == 1.5
    assert not [k for k in row([sample(0, 1, turns=[turn("a", 0, 1)])], 0.95) if k.startswith("right/")]


def test_a_failed_episode_among_others_is_no_success_and_is_counted_by_its_reason():
    failed = [sample(3, 0, failed="timeout"), sample(4, 0, failed="error")]
    found = row([*(sample(i, 1) for i in range(3)), *failed], 0.95)
    assert found["success"] == pytest.approx(3 / 5) and found["games"] == 5
    assert (found["failed"], found["failed/timeout"], found["failed/error"]) == (2, 1, 1)


@pytest.mark.parametrize("samples", [1, 3])
def test_an_evaluation_whose_episodes_all_failed_has_no_rate(samples):
    records = [
        sample(i, 0, failed="timeout" if i else "error", turns=[turn("a", 0, 1), turn("b", 0, 1)], number=k)
        for i in range(4)
        for k in range(samples)
    ]
    found = row(records, 0.95)
    counts = {"failed": 4 * samples, "failed/error": samples, "failed/timeout": 3 * samples}
    assert found == {"games": 4 * samples, "distinct": 4, **counts}
    assert intervals.describe({"opponent": "self", **found}) == (
        f"self: {4 * samples} of {4 * samples} failed (error: {samples}, timeout: {3 * samples})"
    )


# ---------------------------------------------------------------------------------------------------- what changed


def test_examples_that_changed_are_shown_and_escaped(tmp_path):
    first = [sample(i, i == 0, turns=[turn("solver", 0, i == 0)], step=0) for i in range(4)]
    last = [sample(i, i in (1, 2), turns=[turn("solver", 0, i in (1, 2))], step=9) for i in range(4)]
    last[2]["id"] = "another example by now"
    better, worse, total = completion_changes.changed(first, last)
    assert [pair[1][0]["example"] for pair in better] == [1] and [pair[1][0]["example"] for pair in worse] == [0]
    assert total == 3
    folder = tmp_path / "answers"
    folder.mkdir()
    for step, rows in ((0, first), (5, first), (9, last)):
        (folder / f"validation_{step:08d}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "test_00000009.jsonl").write_text(json.dumps(last[0]) + "\n")
    page = "".join(completion_changes.sections(completion_changes.read(tmp_path)))
    assert "Changes on validation, step 0 to step 9" in page and "on test" not in page
    assert "Of 3 examples, 1 changed from wrong to right and 1 from right to wrong" in page
    assert "example 1" in page and "<script>" not in page and "t&lt;script&gt;" in page


# ---------------------------------------------------------------------------------------------------- whole runs


def small(tmp_path, **params):
    """Return a run on questions from a file."""
    rows = [{"question": f"{i} + {i}", "answer": str(2 * i)} for i in range(40)]
    path = tmp_path / "sums.jsonl"
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    config = tiny_task.get_config("grpo")
    config.task.name = "question"
    config.task.params = dict(train=str(path), comparison="number", **params)
    config.task.max_length = 256
    config.task.update(dict(max_num_seqs=8, n_episodes=2, max_new_tokens=4))
    config.steps, config.optim.warmup = 1, 0
    return config, path


def test_a_run_writes_its_answers_and_is_not_continued_on_other_data(tmp_path):
    config, path = small(tmp_path)
    config.eval.update(dict(every=1, games=3))
    validate.check(config)
    train.train(config, tmp_path / "run")
    files = sorted(p.name for p in (tmp_path / "run" / "answers").iterdir())
    assert files == [f"validation_0000000{step}.jsonl" for step in (0, 1)]
    rows = read_json_lines(tmp_path / "run" / "eval.jsonl")
    assert {one["part"] for one in rows} == {"validation"}, "the test part never chooses a checkpoint"
    assert "Changes on validation" in (tmp_path / "run" / "report.html").read_text()

    config.eval.update(dict(samples=3, temperature=1.0, games=2))
    (found,) = evaluate.main(config, tmp_path / "run")
    assert found["part"] == "test" and found["games"] == 6 and found["distinct"] == 2 and "pass@3" in found
    records = read_json_lines(tmp_path / "run" / "answers" / "test_00000001.jsonl")
    assert [(r["example"], r["sample"]) for r in records] == list(
        itertools.product(sorted({r["example"] for r in records}), range(3))
    )
    for one in records:
        (said,) = one["turns"]
        assert one["calls"]["grade_0#0"]["result"]["reason"] == said["verdict"]["reason"] == "no box"
        assert said["role"] == "solver" and " + " in said["prompt"] and math.isfinite(one["reward"])
    assert len({r["turns"][0]["text"] for r in records}) > 2, "samples have seeds of their own"

    path.write_text(path.read_text().replace("3 + 3", "3 + 4"))
    config.steps = 2
    with pytest.raises(CheckpointError, match=r"task.data is '\d+ examples of train, sha256 .*' there and '.*' here"):
        train.train(config, tmp_path / "run")


@pytest.mark.nightly
def test_a_run_whose_evaluations_all_fail_says_so_and_has_no_best_checkpoint(tmp_path, caplog):
    config, _ = small(tmp_path)
    config.task.max_length = 16  # no question fits
    config.eval.update(dict(every=1, games=3))
    config.checkpoint.best_metric = "self/success"
    with caplog.at_level("INFO", "marl_jax"):
        train.train(config, tmp_path / "run")
    for one in read_json_lines(tmp_path / "run" / "eval.jsonl"):
        assert set(one) - {"step", "time", "opponent", "part"} == {
            "games", "distinct", "failed", "failed/too_long",
        }  # fmt: skip
    assert "every episode failed, so there is no success rate. The first error: ChatFull: a chat of" in caplog.text
    assert "3 of 3 failed (too_long: 3)" in caplog.text
    page = (tmp_path / "run" / "report.html").read_text()
    assert "3 of 3 failed (too_long: 3)" in page and "Changes on" not in page
    config.eval.step = "best"
    with pytest.raises(CheckpointError, match="has no best checkpoint"):
        evaluate.main(config, tmp_path / "run")
    config.eval.step = "newest"
    (found,) = evaluate.main(config, tmp_path / "run")
    assert found["failed"] == 3 and "success" not in found


def test_several_greedy_samples_and_samples_of_games_are_refused(tmp_path):
    config = tiny_task.get_config("grpo")
    config.eval.samples = 4
    with pytest.raises(ConfigError, match="eval.samples is 4 with eval.temperature 0"):
        validate.check(config)
    game = tiny_run.get_config()
    game.eval.samples = 4
    with pytest.raises(ConfigError, match="eval.samples is 4 with env.name"):
        validate.check(game)


def test_bad_data_is_a_line_for_the_user(tmp_path):
    from marl_jax.errors import user_errors

    config, path = small(tmp_path)
    path.write_text(path.read_text() + '{"question": "x"}\n')
    with pytest.raises(user_errors(), match="sums.jsonl:41: no field 'answer'; the fields are: question"):
        setups.make(config).rollout  # noqa: B018


@pytest.mark.parametrize("experiment", [multiple_choice, nli, question])
def test_every_form_of_an_experiment_is_a_config_with_the_same_room_for_answers(experiment):
    for model in ("", "+qwen2.5-0.5b"):
        rooms = set()
        for form in reasoning.FORMS:
            config = experiment.get_config(form + model)
            validate.check(config)
            rooms.add(reasoning.answers_of(config, experiment.ANSWERS, form.startswith("single")))
        assert len(rooms) == 1
