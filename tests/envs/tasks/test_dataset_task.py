"""Tasks from datasets: all forms of reward functions and their failures, workflows, and data."""

import json
import os
import re

import numpy as np
import pytest

from envs.tasks import scripted
from envs.tasks.data import DataError, from_list, prepare_tfds
from envs.tasks.dataset_task import DatasetTask, dataset_task
from envs.tasks.replies import CallTimeout
from envs.tasks.task import SPLITS
from tests.envs.tasks import reward_functions as rewards
from tests.marl_jax.tiny_host import FakeSampler, make_rollout

WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")
ROWS = [{"answer": word, "prompt": f"Say {word}."} for word in WORDS]


def run(task, example=ROWS[0], answers=("one",), candidates=1):
    """Play an episode with given replies; return the outcome and the rewards of the replies."""
    left = list(answers)
    outcome, ask = scripted.play(task, example, lambda *_: left.pop(0), candidates)
    return outcome, [reply for *_, reply in ask.replies]


def episodes(task, n=3, **settings):
    """Return (metrics, reasons) of a step of a real rollout, with verifiers in other processes."""
    rollout = make_rollout(task, FakeSampler(), n_examples=n, samples=1, **settings)
    try:
        _, _, metrics = rollout({}, rollout.init(None, None))
    finally:
        rollout.close()
    return metrics


# ---------------------------------------------------------------------------------------------------- functions


@pytest.mark.parametrize("function", [rewards.right, rewards.as_trl, lambda completion, answer: completion == answer])
def test_functions_of_both_kinds_reward_the_same(function):
    make = dataset_task(ROWS, {"right": function})
    for answer, value in (("one", 1), ("two", 0)):
        outcome, (reply,) = run(make(), answers=[answer])
        assert outcome.success == reply.rewards.team == value and outcome.metrics == {"reward_right": value}
        assert reply.verdict["right"] == value and reply.verdict["reason"] == f"right {value}"


def test_several_functions_with_weights_and_the_one_that_counts():
    task = dataset_task(ROWS, [rewards.right, lambda completion: len(completion)], weights=(1.0, -0.1))()
    outcome, (reply,) = run(task, answers=["one"])
    assert reply.rewards.team == pytest.approx(1 - 0.3) and outcome.success == 1
    task = DatasetTask(ROWS, [rewards.right, rewards.waits], success="waits", pays="agent")
    outcome, (reply,) = run(task, answers=["one"])
    assert outcome.success == 0.5 and reply.rewards.agent == 1.5 and reply.rewards.team == 0


def test_functions_are_named_by_their_places(tmp_path):
    (tmp_path / "mine.py").write_text("def right(completion, answer):\n    return float(completion == answer)\n")
    for place in ("tests.envs.tasks.reward_functions:right", f"{tmp_path}/mine.py:right"):
        outcome, _ = run(DatasetTask(ROWS, place), answers=["one"])
        assert outcome.metrics == {"reward_right": 1}
        assert episodes(DatasetTask(ROWS, {"mine": place}), n=2)["task/reward_mine"] == 0  # in other processes
    for place, message in (
        ("right", "unknown reward 'right'"),
        ("json:right", "rewards has 'json:right', which cannot"),
    ):
        with pytest.raises(ValueError, match=message):
            DatasetTask(ROWS, place)


@pytest.mark.parametrize("prompt", ["Say one.", [{"role": "user", "content": "Say one."}]])
def test_without_functions_a_completion_must_equal_the_reference(prompt):
    rows = [{"prompt": prompt, "completion": "one", "n": i} for i in range(4)]
    task = DatasetTask(rows, completion="{completion}!")
    assert task.gold_reply(rows[0]) == "one!" and DatasetTask(rows, rewards.waits).gold_reply(rows[0]) is None
    for answer, value in (("one! ", 1), ("one", 0)):
        outcome, (reply,) = run(task, rows[0], answers=[answer])
        assert outcome.success == reply.rewards.team == value
    with pytest.raises(DataError, match="word"):
        DatasetTask(rows, completion="{word}").examples("train")
    with pytest.raises(ValueError, match="data is empty, but must be a JSONL file"):
        DatasetTask("", completion="{completion}")


def test_objects_that_are_called_and_the_ids_of_completions():
    class Judge:
        async def __call__(self, completions, completion_ids, **columns):
            return [len(text) + len(ids) for text, ids in zip(completions, completion_ids, strict=True)]

    assert run(DatasetTask(ROWS, Judge()))[1][0].rewards.team == 3


def test_candidates_are_scored_together_and_the_best_is_kept():
    for function in (rewards.right, rewards.as_trl):
        outcome, replies = run(DatasetTask(ROWS, function), answers=["two", "one", "three"], candidates=3)
        assert [reply.rewards.team for reply in replies] == [0, 1, 0] and outcome.success == 1


def test_numbers_of_numpy_will_do():
    functions = {"a": lambda completions, **_: np.ones(len(completions)), "b": lambda completion: np.float32(2)}
    task = DatasetTask(ROWS, functions)
    assert run(task)[1][0].rewards.team == 3


def test_prompts_of_messages_are_conversations_for_trl():
    rows = [{"prompt": [{"role": "system", "content": "S"}, {"role": "user", "content": f"U{i}"}]} for i in range(9)]
    seen = []
    task = DatasetTask(rows, rewards.chatty)
    outcome, ask = scripted.play(task, rows[0], lambda seat, messages, k: seen.append(list(messages)) or "four")
    assert seen[0] == [{"role": "system", "content": "S"}, {"role": "user", "content": "U0"}]
    assert ask.replies[0][2].rewards.team == 4 and outcome.success == 1, "success is cut to 1"
    rows[3]["prompt"].append({"role": "assistant", "content": "A"})
    with pytest.raises(DataError, match="row 3: the prompt has messages of"):
        task.examples("train")


# ---------------------------------------------------------------------------------------------------- failures


@pytest.mark.parametrize(
    ("function", "problem"),
    [
        (lambda completion: float("nan"), "returned nan, but must return a finite number"),
        (lambda completion: None, "returned None, but must return a finite number"),
        (lambda completion: "high", "returned 'high', but must return a finite number"),
        (lambda completions: [1.0, 2.0], r"returned .1.0, 2.0., but must return 1 numbers in a list"),
        (lambda completions: [None], "returned None, but must return a finite number"),
        (lambda completions: 1.0, "must return 1 numbers in a list"),
        (lambda completion: object(), "not JSON serializable"),
        (rewards.raises, "ZeroDivisionError: no luck"),
        (rewards.exits, "ended without a response"),
    ],
)
def test_a_function_that_fails_costs_its_episode_and_is_counted(function, problem, caplog):
    metrics = episodes(DatasetTask(ROWS, {"f": function}), n=2)
    assert metrics["episodes/failed/reward_failed"] == 2 and metrics["episodes/finished"] == 0
    assert re.search(f"reward 'f' .*{problem}", caplog.text)


def test_others_are_not_lost_with_the_one_that_fails():
    def picky(completion, answer):
        if answer == "one":
            raise ValueError("I do not like it")
        return 1.0

    parts = {"train": ROWS[:6], "validation": ROWS[6:7], "test": ROWS[7:]}
    metrics = episodes(DatasetTask(parts, picky), n=6)
    assert metrics["episodes/failed/reward_failed"] == 1 and metrics["episodes/finished"] == 5


def test_a_function_that_never_ends_is_ended_in_its_process():
    metrics = episodes(DatasetTask(ROWS, rewards.hangs, limit=0.2), n=2)
    assert metrics["episodes/failed/call_timeout"] == 2

    async def hangs(completion):
        import asyncio

        await asyncio.sleep(3600)

    with pytest.raises(CallTimeout):
        run(DatasetTask(ROWS, hangs, limit=0.05))


def test_functions_of_a_module_run_in_another_process():
    metrics = episodes(
        DatasetTask(ROWS, {"here": lambda completion: float(os.getpid()), "there": rewards.process}), n=2
    )
    assert metrics["task/reward_here"] == os.getpid() != metrics["task/reward_there"]


# ---------------------------------------------------------------------------------------------------- workflows

WORKFLOW = [
    {"role": "writer", "prompt": "{prompt}", "system": "You write."},
    {"role": "critic", "prompt": "Asked: {prompt}\nWritten: {writer}\nIs it good?"},
    {"role": "writer", "prompt": "The critic: {critic}", "when": {"critic": "(?i)no"}},
]


def test_a_workflow_of_roles_and_turns():
    task = DatasetTask(ROWS, rewards.right, workflow=WORKFLOW)
    assert task.roles == ("writer", "critic")
    seen = []

    def answer(texts):
        return lambda seat, messages, k: seen.append((seat, [m["content"] for m in messages])) or texts.pop(0)

    outcome, ask = scripted.play(task, ROWS[0], answer(["two", "No!", "one"]))
    assert outcome.success == 1 and [seat for seat, _ in seen] == [0, 1, 0]
    assert seen[0][1] == ["You write.", "Say one."] and seen[1][1] == ["Asked: Say one.\nWritten: two\nIs it good?"]
    assert seen[2][1] == ["You write.", "Say one.", "two", "The critic: No!"]
    assert [reply.rewards.team for *_, reply in ask.replies] == [0, 0, 1]


def test_a_step_that_is_not_taken_leaves_the_last_word_to_the_one_before():
    def kind(completion, answer):
        return float("Yes" in completion)

    outcome, replies = run(DatasetTask(ROWS, kind, workflow=WORKFLOW), answers=["one", "Yes."])
    assert outcome.success == 1 and [reply.rewards.team for reply in replies] == [0, 1]


def test_a_role_that_has_not_spoken_has_said_nothing():
    steps = [
        {"role": "a", "prompt": "{prompt}"},
        {"role": "b", "prompt": "{a}", "when": {"a": "never"}},
        {"role": "a", "prompt": "b says: {b}."},
    ]
    task, seen = DatasetTask(ROWS, rewards.right, workflow=steps), []
    scripted.play(task, ROWS[0], lambda seat, messages, k: seen.append(messages[-1]["content"]) or "")
    assert seen == ["Say one.", "b says: ."]


def test_steps_with_rewards_of_their_own_and_conditions_in_python():
    def shouts(completion):
        return float(completion.isupper())

    steps = [
        {"role": "a", "prompt": "{prompt}", "rewards": ["shouts"]},
        {"role": "b", "prompt": "{a}", "when": lambda values, _: values["a"].isupper(), "rewards": ["right"]},
        {"role": "b", "prompt": "{a} is quiet", "when": "is_quiet", "rewards": ["right", "shouts"]},
    ]
    conditions = {"is_quiet": lambda values, scores: scores["a"] == {"shouts": 0.0} and scores["b"] is None}
    task = DatasetTask(ROWS, [rewards.right, shouts], workflow=steps, conditions=conditions, weights=[2.0, 1.0])
    outcome, replies = run(task, answers=["ONE", "one"])
    assert [reply.rewards.team for reply in replies] == [1, 2] and outcome.success == 1
    outcome, replies = run(task, answers=["one", "ONE"])
    assert [reply.rewards.team for reply in replies] == [0, 1] and outcome.success == 0


# ---------------------------------------------------------------------------------------------------- data and settings


def test_every_kind_of_data(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    parts = {"train": from_list(ROWS[:6]), "validation": from_list(ROWS[6:7]), "test": from_list(ROWS[7:])}
    folder = prepare_tfds("words", parts, tmp_path)
    for data in (ROWS, str(path), from_list(ROWS), f"tfds:{folder}", parts):
        task = dataset_task(data, rewards.right)()
        rows = [row for part in SPLITS for row in task.examples(part)]
        assert sorted(map(str, rows)) == sorted(map(str, ROWS)) and len(task.examples("train")) == 6
    with pytest.raises(DataError, match="data has the splits test"):
        DatasetTask({"test": ROWS}, rewards.right).examples("test")
    with pytest.raises(ValueError, match="part is 'dev'"):
        task.examples("dev")


def test_params_of_a_config_change_the_settings():
    assert dataset_task(ROWS, rewards.right)(limit=3.0, prompt="Now: {prompt}").limit == 3.0


A, CLASH = {"role": "a", "prompt": ""}, [{"role": "answer", "prompt": ""}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: dataset_task(ROWS, []), "rewards is empty"),
        (lambda: dataset_task(ROWS, 5), "reward 'int' is 5, but must be a function"),
        (lambda: dataset_task(ROWS, lambda answer: 1), "has neither a parameter completion nor completions"),
        (lambda: dataset_task(ROWS, lambda *texts: 1), "takes positional arguments"),
        (lambda: dataset_task(ROWS, [rewards.right, rewards.right]), "two reward functions have the same name"),
        (lambda: dataset_task(ROWS, rewards.right, weights=[1, 2]), "must have one value for each of: right"),
        (lambda: dataset_task(ROWS, rewards.right, success="left"), "success is 'left', but must be one of: right"),
        (lambda: dataset_task(ROWS, rewards.right, pays="all"), "pays is 'all', but must be one of: team"),
        (lambda: dataset_task(ROWS, rewards.right, workflow=[{**A, "rewards": ["x"]}]), "a step's reward is 'x'"),
        (
            lambda: dataset_task(ROWS, rewards.right, workflow=[{**A, "rewards": []}]),
            "no step .* has the reward 'right'",
        ),
        (lambda: dataset_task(ROWS, rewards.right, workflow=[{**A, "when": {"b": "x"}}]), "is about 'b'"),
        (lambda: DatasetTask(ROWS, lambda completion, gold: 1).examples("train"), "row 0: no field 'gold'"),
        (lambda: DatasetTask(ROWS, rewards.right, prompt="{question}").examples("train"), "no field 'question'"),
        (lambda: DatasetTask(ROWS, rewards.right, workflow=CLASH).examples("train"), "the name of a role"),
    ],
)
def test_what_cannot_work_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()
