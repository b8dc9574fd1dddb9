"""Workflow search: parents, rounds, equal tokens, tests made once, and searches that continue."""

import json
import math
import random

import pytest

from envs.tasks.workflow.designs import SINGLE, canonical, read_design
from marl_jax.errors import RunError
from marl_jax.evaluation import intervals
from marl_jax.evaluation.workflow_search import Played, Search, choose_parent, parent_weights, table, winner

REVIEW = json.dumps({"edit": "add_review", "node": "solve"})
PROMPT = json.dumps({"edit": "change_prompt", "node": "solve", "prompt": "Well: {question}"})


class Stub:
    """A player whose workflows are right on as many of ten questions as they have nodes, times two."""

    def __init__(self, replies=()):
        self.replies, self.played, self.prompts = iter(replies), [], []

    def play(self, workflow, part, samples):
        assert len(read_design(workflow).nodes)
        self.played.append((canonical(workflow), part, samples))
        right, n = 2 * len(workflow["nodes"]), 10
        groups = [[{"success": float(i < right), "answer": str(i < right), "failed": None}] * samples for i in range(n)]
        return Played(groups, 100 * len(workflow["nodes"]) * samples)

    def question(self, number):
        return f"question {number}"

    def edit(self, editor, prompt, number):
        self.prompts.append(prompt)
        return next(self.replies), 7


def run(tmp_path, player, editors=("policy",), rounds=4):
    search = Search(player, tmp_path / "search.jsonl", "same", editors, rounds, 0)
    search.run()
    return search


def test_parents_are_drawn_as_in_aflow():
    weights = parent_weights([0.5, 0.6, 0.4])
    soft = [math.exp(0.2 * percent) for percent in (50, 60, 40)]
    assert weights == pytest.approx([0.3 / 3 + 0.7 * one / sum(soft) for one in soft])
    assert sum(weights) == pytest.approx(1)
    rounds = [{"round": i + 1, "score": score} for i, score in enumerate([0.0, None, 0.5, 0.1, 0.2, 0.3, 0.4])]
    drawn = {choose_parent(rounds, random.Random(i))["round"] for i in range(500)}
    assert drawn == {1, 3, 5, 6, 7}, "round 1 and the four best, without the rejected one"


def test_the_winner_is_the_best_and_among_equals_the_cheapest():
    rows = [dict(round=i, score=score, tokens=tokens) for i, (score, tokens) in
            enumerate([(0.2, 1), (0.5, 9), (None, 0), (0.5, 3), (0.5, 3)])]  # fmt: skip
    assert winner(rows)["round"] == 3


def test_bad_edits_cost_a_round_and_no_episodes(tmp_path):
    player = Stub(["no", '```json\n{"edit": "grow"}\n```', REVIEW, "{", PROMPT, PROMPT])
    search = run(tmp_path, player, rounds=6)
    rounds = search.of("policy")
    assert [one["problem"].partition(":")[0] for one in rounds[:5]] == ["", "no_json", "invalid_graph", "", "not_json"]
    assert search.spent("policy") == 100 + 300 + 5 * 7 + (rounds[5]["tokens"])
    validated = [played for played in player.played if played[1] == "validation"]
    assert len(validated) == len(set(validated)) == sum(one["score"] is not None for one in rounds)
    assert "answers 20% of the questions right" in player.prompts[0] and "- question 2\n" in player.prompts[0]
    assert '{"edit": "grow"}: rejected' in player.prompts[2]


def test_a_known_workflow_is_a_duplicate(tmp_path):
    back = json.dumps({"edit": "change_prompt", "node": "solve", "prompt": "{question}"})
    search = run(tmp_path, Stub([back]), rounds=2)
    assert search.of("policy")[1]["problem"] == "duplicate: round 1 has the same workflow"


def test_random_edits_get_as_many_tokens(tmp_path):
    search = run(tmp_path, Stub([REVIEW] * 9), ("policy", "random"), rounds=6)
    budget, rounds = search.spent("policy"), search.of("random")
    most = max(one["tokens"] for one in rounds)
    assert budget <= search.spent("random") < budget + most, "at most one round more"


def test_every_workflow_is_tested_once(tmp_path):
    player = Stub([REVIEW, "no", "no"])
    search = run(tmp_path, player, ("policy", "random"))
    tested = [(workflow, samples) for workflow, part, samples in player.played if part == "test"]
    assert len(tested) == len(set(tested)) and (canonical(SINGLE), 1) in tested
    tests = {one["name"]: one for one in search.records if one["kind"] == "test"}
    best = tests["search by policy"]
    votes = tests["maj@N for policy"]["samples"]
    assert votes == best["tokens"] // tests["one step"]["tokens"] == len(best["workflow"]["nodes"])
    text = table(search, 0.95)
    assert "| one step | 20.0 | 20.0 [5.7, 51.0] |" in text and "| search by random |" in text
    assert text.count("\n| ") == 6
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    assert len({len(line) for line in cells}) == 1
    by_name = {line[0]: dict(zip(cells[0], line, strict=True)) for line in cells}
    gain = intervals.paired(best["scores"], tests["search by random"]["scores"])
    expected = f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"
    assert by_name["search by policy"]["from random edits"] == expected
    assert by_name["search by random"]["from random edits"] == ""


def test_a_search_continues_after_its_last_line(tmp_path):
    whole = Stub([REVIEW, "no", PROMPT])
    (tmp_path / "a").mkdir()
    expected = run(tmp_path / "a", whole, ("policy", "random")).records
    lines = (tmp_path / "a" / "search.jsonl").read_text().splitlines(keepends=True)
    for kept in (1, 2, 4, len(lines) - 2, len(lines)):
        folder = tmp_path / f"b{kept}"
        folder.mkdir()
        (folder / "search.jsonl").write_text("".join(lines[:kept]) + (lines[kept][:9] if kept < len(lines) else ""))
        done = sum(one["kind"] == "round" and one["editor"] == "policy" for one in expected[:kept])
        player = Stub([REVIEW, "no", PROMPT][done:])
        assert run(folder, player, ("policy", "random")).records == expected
        assert (folder / "search.jsonl").read_text() == "".join(lines)
    with pytest.raises(RunError, match="is from a search with other settings"):
        Search(whole, tmp_path / "a" / "search.jsonl", "other", ("policy",), 4, 0)


def test_paired_differences():
    gain = intervals.paired([1] * 60 + [0] * 40, [1] * 30 + [0] * 70)
    assert gain.value == pytest.approx(0.3) and 0.15 < gain.low < 0.3 < gain.high < 0.42
    equal = intervals.paired([0] * 10, [0] * 10)
    assert equal.low < equal.value == 0 < equal.high, "ten equal results prove little"
    with pytest.raises(ValueError, match="there are 2 and 1 values"):
        intervals.paired([1, 0], [1])
