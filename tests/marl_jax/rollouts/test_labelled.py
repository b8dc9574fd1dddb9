"""Labelled answers: the choice of them, their files, `--mode=label`, and the metrics of scores."""

import collections
import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as oracle

from envs.tasks.data import DataError
from envs.tasks.task import Outcome
from marl_jax.algorithms import verifier
from marl_jax.errors import ConfigError, RunError
from marl_jax.evaluation import verifier_scores
from marl_jax.modes import label
from marl_jax.rollouts import labelled
from marl_jax.rollouts.labelled import LabelledCompletion, Question, balance
from marl_jax.schema import validate
from marl_jax.setup.tasks import TaskSetup
from models import tokenizers
from tests.conftest import examples
from tests.marl_jax import tiny_verifier
from tests.marl_jax.tiny_host import FakeAnswer

# -------------------------------------------------------------------------------------------------------- balance


def question(i, right, wrong, gold=False):
    answers = [LabelledCompletion(f"r{k}", True) for k in range(right)] + [
        LabelledCompletion(f"w{k}", False) for k in range(wrong)
    ]
    answers += [LabelledCompletion("gold", True, gold=True)] if gold else []
    return Question(f"train/{i}", ({"role": "user", "content": f"q{i}"},), tuple(answers))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6), st.booleans()), max_size=12),
    st.integers(1, 5), st.booleans(), st.integers(0, 3),
)  # fmt: skip
def test_a_balanced_choice(sizes, per_side, use_gold, seed):
    questions = [question(i, *size) for i, size in enumerate(sizes)]
    chosen = balance(questions, per_side, seed, gold=use_gold)
    by_question = collections.defaultdict(list)
    for number, answer in chosen.chosen:
        assert answer in questions[number].answers
        by_question[number].append(answer)
    used = 0
    for i, (right, wrong, gold) in enumerate(sizes):
        kept = by_question[i]
        helped = use_gold and gold and right < min(wrong, per_side)
        assert sum(a.right for a in kept) == sum(not a.right for a in kept) == min(right + helped, wrong, per_side)
        assert len(set(kept)) == len(kept)
        assert sum(a.gold for a in kept) <= helped
        used += bool(kept)
    counts = chosen.counts
    assert counts.get("used", 0) == used
    dropped = sum(count for name, count in counts.items() if name.startswith("dropped_"))
    assert used + dropped == counts["questions"] == len(sizes)
    assert chosen == balance(questions, per_side, seed, gold=use_gold), "the seed decides, nothing else"


def test_why_questions_are_dropped():
    counts = balance([question(0, 3, 0), question(1, 0, 3), question(2, 0, 0), question(3, 1, 1)], 2, 0).counts
    expected = {"dropped_all_right": 1, "dropped_all_wrong": 1, "dropped_no_answers": 1, "used": 1}
    assert {name: counts[name] for name in expected} == expected
    assert balance([question(1, 0, 3, gold=True)], 2, 0).counts["gold"] == 1


def test_unbalanced_answers_are_as_they_were_sampled():
    questions = [question(0, 6, 1, gold=True), question(1, 0, 4)]
    chosen = balance(questions, 2, 0, balanced=False)
    assert [number for number, _ in chosen.chosen] == [0] * 4 + [1] * 4
    assert not any(answer.gold for _, answer in chosen.chosen)
    assert sum(answer.right for _, answer in chosen.chosen) >= 3


def test_equal_answers_count_once():
    same = Question(
        "x",
        ({"role": "user", "content": "q"},),
        (LabelledCompletion("a", True),) * 5 + (LabelledCompletion("b", False),) * 2,
    )
    assert len(balance([same], 4, 0).chosen) == 2


def test_answers_that_cannot_be_read_are_left_out_before_the_choice():
    """Left out afterwards, they would unbalance their question."""
    answers = (
        LabelledCompletion("x" * 900, False),
        LabelledCompletion("", False),
        LabelledCompletion("w", False),
        LabelledCompletion("r", True),
        LabelledCompletion("s", True),
    )
    asked = Question("x", ({"role": "user", "content": "q"},), answers)
    readable = labelled.Readable(tokenizers.load("tiny"), [asked], 512)
    assert [a.text for a in readable.questions[0].answers] == ["w", "r", "s"] and readable.left_out == 2
    rows = readable.read(balance(readable.questions, 4, 0).chosen)
    assert sorted(one.right for one in rows) == [False, True]
    assert all(one.reading.completion_length == 1 for one in rows)


# ----------------------------------------------------------------------------------------------------------- files


def test_a_file_is_read_back(tmp_path):
    path = tmp_path / "train.jsonl"
    asked = question(0, 1, 2, gold=True)
    path.write_text('{"format": 1, "questions": 2}\n' + asked.to_json() + "\n" + asked.to_json()[:20])
    header, questions = labelled.read_file(path)
    assert questions == [asked] and not labelled.whole(header, questions)


@pytest.mark.parametrize("line", ["{}", "[", '{"id": 1, "messages": [], "answers": [{"text": "x"}]}', "\ud800 "])
def test_damaged_files_are_refused_by_line(tmp_path, line):
    path = tmp_path / "train.jsonl"
    path.write_bytes(b'{"format": 1, "questions": 1}\n' + line.encode("utf-8", "surrogatepass") + b"\n")
    with pytest.raises(DataError, match=r"train.jsonl, line 2"):
        labelled.read_file(path)
    path.write_text('{"format": 9}\n')
    with pytest.raises(DataError, match="format is 9"):
        labelled.read_file(path)


def test_missing_and_unfinished_files_say_what_to_do(tmp_path):
    config = tiny_verifier.get_config()
    with pytest.raises(DataError, match="write it with --mode=label"):
        verifier.read_split(config, tmp_path, "train")
    (tmp_path / "labelled").mkdir()
    (tmp_path / "labelled" / "train.jsonl").write_text('{"format": 1, "questions": 2}\n')
    with pytest.raises(DataError, match="is incomplete; complete it with --mode=label"):
        verifier.read_split(config, tmp_path, "train")
    tiny_verifier.write_files(tmp_path / "other" / "labelled", n=3, held_out=3)
    config.algo.update(dict(data=str(tmp_path / "other"), questions=2, held_out=1))
    assert [q.id for q in verifier.read_split(config, tmp_path, "train")] == ["train/0", "train/1"]
    assert len(verifier.read_split(config, tmp_path, "test")) == 1


# ------------------------------------------------------------------------------------------------------------ label


def solve(text):
    """The number that a question of one operation asks for."""
    a, sign, b = re.search(r"What is (\d+) ([-+*]) (\d+)\?", text).groups()
    return {"+": int(a) + int(b), "-": int(a) - int(b), "*": int(a) * int(b)}[sign]


class Oracle:
    """Answers sums rightly, wrongly or not at all, as the seed says."""

    compile_seconds = 0.0

    def __init__(self):
        self.tokenizer, self.asked = tokenizers.load("tiny"), 0

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None):
        self.asked += 1
        right = solve(self.tokenizer.decode(ids))
        text = [f"answer: {right}", f"answer: {right + 1 + sampling.seed % 5}", f"?{sampling.seed % 7}"]
        kind = 0 if sampling.seed % 5 == 0 else 1 + sampling.seed % 2
        tokens = [*self.tokenizer.encode(text[kind]), self.tokenizer.stop_ids[0]]
        zeros = np.zeros(len(tokens), np.float32)
        return [FakeAnswer(np.array(tokens, np.int32), zeros, "stop", zeros.astype(int))] * n

    def publish(self, weights, version):
        assert set(weights["main"]) == {"model", "critic"}

    def close(self):
        pass


@pytest.fixture
def fake(monkeypatch):
    made = Oracle()
    monkeypatch.setattr(TaskSetup, "sampler", property(lambda setup: made))
    return made


def label_config(**changes):
    config = tiny_verifier.get_config()
    config.algo.update(dict(questions=6, held_out=3, samples=4, per_side=2, **changes))
    config.task.update(dict(n_episodes=8, max_length=256))
    validate.check(config, "label")
    return config


def test_labelling_and_resuming(tmp_path, fake):
    summary = label.main(label_config(), tmp_path / "whole")
    assert fake.asked == (6 + 3 + 3) * 4
    header, questions = labelled.read_file(tmp_path / "whole" / "labelled" / "train.jsonl")
    assert labelled.whole(header, questions) and len({q.id for q in questions}) == 6
    assert header["model"]["model"] == "tiny" and header["samples"] == 4
    for one in questions:
        assert [message["role"] for message in one.messages] == ["system", "user"]
        right = f"answer: {solve(one.messages[-1]['content'])}"
        assert all(answer.right == (answer.text == right) for answer in one.answers)
        sampled = [answer for answer in one.answers if not answer.gold]
        assert len(sampled) == 4
        few = 2 * sum(answer.right for answer in sampled) < 4
        assert sum(answer.gold for answer in one.answers) == few, "gold only where right ones are missing"
    assert summary["train"]["sampled"] == 24 and summary["train"]["right"] == summary["train"]["wrong"] > 0

    # A run that was stopped in the middle of a line writes the same file in the end.
    part = tmp_path / "part" / "labelled"
    part.mkdir(parents=True)
    text = (tmp_path / "whole" / "labelled" / "train.jsonl").read_bytes()
    (part / "train.jsonl").write_bytes(text[: text.index(b"\n", len(text) // 2) + 30])
    label.main(label_config(), tmp_path / "part")
    for name in ("train", "validation", "test"):
        assert (part / f"{name}.jsonl").read_bytes() == (tmp_path / "whole" / "labelled" / f"{name}.jsonl").read_bytes()

    # A complete file is kept, more questions continue it, and other settings are rejected.
    asked = fake.asked
    label.main(label_config(), tmp_path / "whole")
    assert fake.asked == asked
    more = label_config()
    more.algo.questions = 7
    label.main(more, tmp_path / "whole")
    assert fake.asked == asked + 4
    assert (tmp_path / "whole" / "labelled" / "train.jsonl").read_bytes().split(b"\n")[1:7] == text.split(b"\n")[1:7]
    other = label_config()
    other.rollout.temperature = 0.5
    with pytest.raises(RunError, match="temperature 1.0, but it is 0.5 now"):
        label.main(other, tmp_path / "whole")


def test_a_part_of_which_every_episode_fails_ends_the_run(tmp_path, fake):
    config = label_config()
    config.task.max_length = 64
    with pytest.raises(RunError, match="all 8 episodes failed.* the limit is 64"):
        label.main(config, tmp_path)


def test_a_task_with_several_turns_is_refused(tmp_path, fake, monkeypatch):
    async def twice(self, ask, example):
        chat = ask.chat(0)
        await chat.say(example.question)
        await chat.say(example.question)
        return Outcome(1)

    config = label_config()
    monkeypatch.setattr("envs.tasks.arithmetic.Arithmetic.play", twice)
    with pytest.raises(RunError, match="has several turns or conversations"):
        label.main(config, tmp_path)


def test_configs_that_cannot_work():
    def problems(**changes):
        config = tiny_verifier.get_config()
        config.update_from_flattened_dict(changes)
        with pytest.raises(ConfigError) as error:
            validate.check(config)
        return str(error.value)

    assert "per_side is 3, but must be <= algo.samples (2)" in problems(**{"algo.per_side": 3})
    assert "METRIC is one of: accuracy, auc" in problems(**{"checkpoint.best_metric": "self/success"})
    config = tiny_verifier.get_config()
    config.task.name, config.task.params = "solver_checker", {}
    with pytest.raises(ConfigError, match="roles .* must be a task of one role"):
        validate.check(config)
    config = tiny_verifier.get_config()
    config.task.name, config.env.name = "", "tic_tac_toe"
    with pytest.raises(ConfigError, match="must be a task of one role"):
        validate.check(config)


# ---------------------------------------------------------------------------------------------------------- metrics

SCORED = st.lists(st.tuples(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.7, 1.0]), st.booleans()), min_size=1, max_size=30)


@settings(max_examples=examples(100), deadline=None)
@given(SCORED)
def test_auc_is_that_of_mann_and_whitney(rows):
    scores, right = np.array([s for s, _ in rows]), np.array([r for _, r in rows])
    found = verifier_scores.auc(scores, right)
    if right.all() or not right.any():
        assert found is None
        return
    u = oracle.mannwhitneyu(scores[right], scores[~right]).statistic
    assert found == pytest.approx(u / (right.sum() * (~right).sum()))


def test_calibration_by_hand():
    scores = np.array([0.05, 0.05, 0.95, 0.95, 0.55])
    right = np.array([False, True, True, True, False])
    # Bins 0, 5 and 9: |0.05 - 0.5| * 2 + |0.55 - 0| * 1 + |0.95 - 1| * 2, by five answers.
    assert verifier_scores.ece(scores, right) == pytest.approx((0.9 + 0.55 + 0.1) / 5)
    assert verifier_scores.accuracy(scores, right) == pytest.approx(3 / 5)
    assert verifier_scores.brier(np.array([1.0, 0.5]), np.array([True, False])) == pytest.approx(0.125)
    assert verifier_scores.log_loss(np.array([0.5]), np.array([True])) == pytest.approx(np.log(2))


def test_knowing_the_question_alone_gives_no_auc_by_question():
    """Scores that say how hard a question is rank answers of different questions, and none of the same one."""
    questions = np.repeat(np.arange(20), 10)
    share = np.repeat(np.linspace(0.05, 0.95, 20), 10)
    right = np.random.default_rng(0).random(200) < share
    row = verifier_scores.row(share, right, questions, 0.95)
    assert row["auc"] > 0.75 and row["auc_by_question"] == 0.5
    assert row["auc_low"] < row["auc"] < row["auc_high"] and row["distinct"] == 20


def test_metrics_without_a_meaning_are_left_out():
    row = verifier_scores.row(np.array([0.2, 0.4]), np.array([True, True]), np.array([0, 1]), 0.95)
    assert "auc" not in row and "auc_by_question" not in row and row["accuracy"] == 0.0


def test_the_diagram_is_a_document_with_the_numbers():
    import xml.etree.ElementTree as ElementTree

    scores = np.array([0.2, 0.9, 1.0])
    text = verifier_scores.diagram("test <1>", scores, np.array([False, True, True]))
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and "ECE 0.100, 3 answers" in "".join(root.itertext())
