"""Workflows of models: limits, edits, execution, designs and their rewards, and bad JSON."""

import copy
import json
import random

import pytest

from envs.tasks.design import prompts, task
from envs.tasks.design.execution import Execution
from envs.tasks.design.task import Design
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from envs.tasks.workflow.designs import REASONS, SINGLE, DesignError, read_design, read_json
from envs.tasks.workflow.edits import EDITS, apply, random_edit

SMALL = dict(n_examples=12, levels=(1,))
ROW = {"id": "a", "question": "What is 33 - 6?", "answer": "27"}


def fenced(data):
    return f"I suggest:\n```json\n{json.dumps(data)}\n```"


def edited(*edits):
    design = SINGLE
    for edit in edits:
        design = apply(design, edit)
    return design


# ---------------------------------------------------------------------------------------------------- limits


def node(**changes):
    return {"start": "solve", "nodes": {"solve": {**SINGLE["nodes"]["solve"], **changes}}}


def chain(n):
    return [{"role": f"r{i}", "prompt": "{question}"} for i in range(n)]


BAD = [
    ("no_json", "solve it"), ("no_json", ""), ("no_json", "```python\n{}\n```"), ("not_json", "```json\n{'a': 1}\n```"),
    ("not_json", "```json\n" + "[" * 9000 + "\n```"), ("not_allowed", "x" * 30_000),
    ("invalid_graph", fenced(3)), ("invalid_graph", fenced({})), ("invalid_graph", fenced([])),
    ("invalid_graph", fenced({"start": "a", "nodes": {"b": {"role": "r", "prompt": "{question}"}}})),
    ("invalid_graph", fenced(node(role=["r"]))), ("invalid_graph", fenced(node(next="solve"))),
    ("invalid_graph", fenced(node(next=[{"to": "end", "when": "passed"}, "end"]))),
    ("not_allowed", fenced(node(prompt="{question.__class__} {answer} {question}"))),
    ("not_allowed", fenced(node(prompt="Say 42."))), ("not_allowed", fenced(node(prompt="{question}" + "x" * 2000))),
    ("not_allowed", fenced(node(system="Cheat."))), ("not_allowed", fenced(node(rewards=[]))),
    ("invalid_graph", fenced(node(role="question"))), ("not_allowed", fenced(node(role="a b"))),
    ("not_allowed", fenced(node(next=[{"to": "end", "when": {"solver": "(a+)+$"}}, "end"]))),
    ("not_allowed", fenced(chain(9))),
    ("not_allowed", fenced([{"together": chain(8)}, {"together": chain(8)}])),
    ("not_allowed", fenced({**node(next=[{"to": "end", "when": {"solver": "OK"}}, "solve"]), "max_steps": 100})),
]  # fmt: skip


@pytest.mark.parametrize(("reason", "text"), BAD)
def test_bad_designs_have_a_reason(reason, text):
    with pytest.raises(DesignError) as caught:
        read_design(read_json(text))
    assert caught.value.reason == reason and str(caught.value)


def test_designs_may_be_in_a_block_or_alone():
    for text in (
        json.dumps(SINGLE),
        fenced(SINGLE),
        f"```\n{json.dumps(chain(2))}\n```",
        f"{fenced(3)}\n{fenced(SINGLE)}",
    ):
        assert read_design(read_json(text)).roles
    assert read_design(prompts.EXAMPLE).roles == ("solver", "checker")


def test_any_json_is_read_or_rejected():
    """Replace random parts of a valid design by other values."""
    rng = random.Random(0)
    values = [None, True, -1, 1e400, "", "end", "{question}", [], {}, ["solve"], {"to": "solve"}, [[]], {"a": []}]

    def mutate(data):
        places = [(data, key) for key in (data if isinstance(data, dict) else range(len(data)))]
        for holder, key in list(places):
            if isinstance(holder[key], dict | list) and rng.random() < 0.7:
                return mutate(holder[key]) if holder[key] else None
        if places:
            holder, key = rng.choice(places)
            holder[key] = copy.deepcopy(rng.choice(values))

    accepted = 0
    for _ in range(1500):
        data = copy.deepcopy(prompts.EXAMPLE)
        mutate(data)
        try:
            read_design(data)
            accepted += 1
        except DesignError as error:
            assert error.reason in REASONS
    assert 0 < accepted < 1500


# ---------------------------------------------------------------------------------------------------- edits


def test_edits_change_what_they_say():
    review = edited({"edit": "add_review", "node": "solve", "prompt": "Check {solver}: {question}"})
    assert list(review["nodes"]) == ["solve", "solve_review", "solve_revise"]
    assert review["nodes"]["solve_review"]["prompt"] == "Check {solver}: {question}"
    assert apply(review, {"edit": "drop_node", "node": "solve_revise"})["nodes"]["solve_review"]["next"] == "end"
    vote = edited({"edit": "add_vote", "node": "solve", "voters": 5})
    assert read_design(vote).roles == ("voter", "voter_2", "voter_3", "voter_4", "voter_5")
    loop = edited({"edit": "add_loop", "node": "solve"})
    assert read_design(loop).max_steps == 5 and loop["nodes"]["solve_check"]["next"][0]["when"] == {"checker": "OK"}
    words = edited({"edit": "change_prompt", "node": "solve", "prompt": "Now: {question}"})
    assert words["nodes"]["solve"]["prompt"] == "Now: {question}" and SINGLE["nodes"]["solve"]["prompt"] == "{question}"


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        ([], r"edit is \[\], but must be one of: add_review"), ({"edit": []}, "edit is"),
        ({"edit": "shrink"}, "shrink"), ({"edit": "drop_node", "node": "solve", "a": 1}, "has 'a'"),
        ({"edit": "drop_node", "node": "x"}, "node is 'x', but must be one of: solve"),
        ({"edit": "drop_node", "node": "solve"}, "nodes is"),
        ({"edit": "change_prompt", "node": "solve"}, "has no prompt"),
        ({"edit": "change_prompt", "node": "solve", "prompt": 3}, "prompt is 3"),
        ({"edit": "change_prompt", "node": "solve", "prompt": "{reviewer} {question}"}, "reviewer"),
        ({"edit": "add_vote", "node": "solve", "voters": 50}, "voters is 50"),
    ],
)  # fmt: skip
def test_bad_edits_are_rejected(edit, message):
    with pytest.raises(DesignError, match=message):
        apply(SINGLE, edit)


def test_random_edits_give_valid_designs_or_errors():
    rng, sizes, kinds = random.Random(0), set(), set()
    for _ in range(300):
        design = SINGLE
        for _ in range(5):
            edit = random_edit(design, rng)
            try:
                design = apply(design, edit)
                kinds.add(edit["edit"])
            except DesignError:
                continue
            sizes.add(len(read_design(json.loads(json.dumps(design))).nodes))
    assert kinds == set(EDITS) and {1, 3, 5} <= sizes and max(sizes) <= 8


# ---------------------------------------------------------------------------------------------------- execution


def solve(design, replies, candidates=1):
    """Play with replies by role, each a string or the replies of its turns."""
    made = Execution(workflow=design, **SMALL)
    turns = {role: iter(texts) for role, texts in replies.items() if not isinstance(texts, str)}

    def answer(seat, messages, k):
        role = made.roles[seat]
        return replies[role] if isinstance(replies[role], str) else next(turns[role])

    return play(made, ROW, answer, candidates=candidates)


def test_the_last_readable_answer_counts():
    loop = edited({"edit": "add_loop", "node": "solve"})
    outcome, ask = solve(loop, {"solver": ["answer: 26", "answer: 27"], "checker": ["no, wrong", "OK"]})
    assert outcome.success == 1 and outcome.answer == "27" and outcome.metrics["steps"] == 4
    assert [r.rewards.agent for *_, r in ask.replies] == [0, 0, 1, 0]
    outcome, _ = solve(loop, {"solver": "hm", "checker": "no"})
    assert outcome.success == 0 and outcome.answer is None and outcome.reason == "max_steps"


def test_the_most_common_answer_of_a_vote_counts():
    vote = edited({"edit": "add_vote", "node": "solve", "voters": 3})
    for answers, right in (((27, 1, 27), 1), ((1, 27, 1), 0), ((1, 27, 3), 0), (("?", "?", 27), 1)):
        texts = {f"voter{end}": f"answer: {n}" for end, n in zip(("", "_2", "_3"), answers, strict=True)}
        outcome, ask = solve(vote, texts)
        assert outcome.success == right
        assert sum(r.rewards.agent for *_, r in ask.replies) == right * answers.count(27)


def test_every_candidate_is_rewarded():
    made = Execution(workflow=edited({"edit": "add_review", "node": "solve"}), **SMALL)
    outcome, ask = play(made, ROW, lambda seat, messages, k: f"answer: {27 if k == seat else 1}", candidates=2)
    assert [(seat, r.rewards.agent) for seat, _, r in ask.replies] == [(0, 1), (0, 0), (1, 0), (1, 1), (0, 1), (0, 0)]
    assert outcome.success == 0.5, "the share of the deciding step's candidates"


def test_workflows_may_be_json_and_invalid_ones_are_rejected():
    assert Execution(workflow=json.dumps(chain(2)), **SMALL).roles == ("r0", "r1")
    for bad, message in ((dict(workflow=chain(9)), "9 nodes"),
                         (dict(workflow="{"), "is not JSON"),
                         (dict(dataset="aime2024"), "no training split"),
                         (dict(dataset="x"), "dataset is 'x'"), (dict(continuation="x"), "continuation")):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            Execution(**bad)


def test_math_questions_are_graded_by_their_verifier():
    made = Execution(dataset="sample")
    row = made.examples("validation")[0]
    for text, right in ((f"\\boxed{{{row['answer']}}}", 1), ("\\boxed{999999}", 0), ("no", 0)):
        assert play(made, row, lambda seat, messages, k, text=text: text)[0].success == right


# ---------------------------------------------------------------------------------------------------- designs


def design(candidates, solver="answer: 0", **settings):
    made = Design(**SMALL | dict(executions=2, shown=1) | settings)
    example = made.examples("train")[0]

    def answer(seat, messages, k):
        if seat == task.DESIGNER:
            assert example["shown"][0]["question"] in messages[-1]["content"]
            assert not any(row["question"] in messages[-1]["content"] for row in example["questions"])
            return candidates[k]
        return solver(example, messages[-1]["content"], k) if callable(solver) else solver

    outcome, ask = play(made, example, answer, candidates=len(candidates))
    return outcome, *([r for seat, _, r in ask.replies if seat == own] for own in (task.DESIGNER, task.EXECUTOR))


def right_if(words):
    """Solve the first question always and the others if the prompt has the words."""

    def solver(example, prompt, k):
        row = next(row for row in example["questions"] if row["question"] in prompt)
        good = row == example["questions"][0] or words in prompt
        return f"answer: {row['answer'] if good else 'none'}"

    return solver


def test_designers_earn_the_mean_success_and_rejected_designs_are_not_played():
    better = edited({"edit": "change_prompt", "node": "solve", "prompt": "Carefully: {question}"})
    candidates = [fenced(SINGLE), "no idea", fenced(better), json.dumps(SINGLE)]
    outcome, designers, executors = design(candidates, right_if("Carefully"))
    assert [(r.rewards.agent, r.rewards.process) for r in designers] == [(0.5, 0), (0, -0.5), (1, 0), (0.5, 0)]
    assert len(executors) == 2 * 2 * 4, "two distinct designs on two questions with four candidates"
    assert outcome.success == 0.5 and outcome.metrics["accepted"] == 0.75
    assert outcome.metrics["rejected_no_json"] == 0.25 and outcome.metrics["distinct_designs"] == 2
    assert sum(r.rewards.agent for r in executors) == 12


def test_one_design_in_evaluations():
    outcome, [designer], executors = design([fenced(SINGLE)], right_if("x"))
    assert outcome.success == designer.rewards.agent == 0.5 and outcome.reason == "executed"
    assert [r.rewards.agent for r in executors] == [1, 0]
    outcome, [designer], executors = design([fenced(chain(9))])
    assert outcome.success == 0 and outcome.reason == "rejected" and not executors
    assert designer.verdict["reason"].startswith("not_allowed: the workflow has 9 nodes")


def test_examples_are_disjoint_groups():
    made = Design(n_examples=50, levels=(1,))
    seen = [
        row["question"] for part in SPLITS for one in made.examples(part) for row in one["shown"] + one["questions"]
    ]
    assert len(seen) == len(set(seen)) == 3 * 48
    with pytest.raises(ValueError, match="has 3 questions in train, but an example needs 6"):
        Design(n_examples=3, levels=(1,)).examples("train")
