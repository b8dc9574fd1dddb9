"""Workflows: reading graphs, episodes compared with a simple interpreter, concurrent roles, replays, drawings."""

import asyncio
import json
import re
import xml.etree.ElementTree as ElementTree
import zlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ml_collections import ConfigDict

from envs.tasks import scripted
from envs.tasks.dataset_task import DatasetTask
from envs.tasks.solver_checker import SolverChecker
from envs.tasks.workflow.draw import draw
from envs.tasks.workflow.graph import END, WorkflowError
from envs.tasks.workflow.play import play
from envs.tasks.workflow.reading import read
from tests.conftest import examples
from tests.marl_jax.tiny_host import FakeSampler, assert_equal_samples, make_rollout

ROLES = ("ann", "bob", "cyd")
ROWS = [{"topic": f"topic {i}"} for i in range(8)]


def step(role, prompt="{topic}", **more):
    return {"role": role, "prompt": prompt, **more}


def graph(max_steps=None, start="one", **nodes):
    return {"start": start, "nodes": nodes} | ({} if max_steps is None else {"max_steps": max_steps})


def long(completion):
    return float(len(completion))


# ---------------------------------------------------------------------------------------------------- any valid graph


@st.composite
def graphs(draw):
    """Draw a chain of nodes to the end, with steps of one to three roles and additional random edges."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 5)))]
    patterns = st.dictionaries(st.sampled_from(ROLES), st.sampled_from(["x", "y", "^$", "x|z"]), min_size=1, max_size=2)
    nodes, used = {}, set()
    for i, name in enumerate(names):
        roles = draw(st.lists(st.sampled_from(ROLES), min_size=1, max_size=3, unique=True))
        quoted = [""] if i == 0 else ["", *(f" {{{role}}}" for role in sorted(used))]
        steps = [step(role, f"{name} {role}" + draw(st.sampled_from(quoted))) for role in roles]
        used |= set(roles)
        nodes[name] = (steps[0] if len(steps) == 1 and draw(st.booleans()) else {"together": steps}) | {
            "next": [(names + [END])[i + 1]]
        }
    for name in names:
        to = st.sampled_from([*names, END])
        spoken = patterns.filter(lambda found: set(found) <= used)
        extra = draw(st.lists(st.fixed_dictionaries({"to": to, "when": spoken}), max_size=3))
        nodes[name]["next"] = extra + nodes[name]["next"]
    return graph(len(names) + draw(st.integers(0, 4)), "n0", **nodes)


def walked(data, answer):
    """Return (role, prompt) of each step according to an independent interpreter of the data."""
    said, asked, here = dict.fromkeys(ROLES, ""), [], data["start"]
    for _ in range(data["max_steps"]):
        node = data["nodes"][here]
        steps = node.get("together") or [node]
        asked.append([(s["role"], s["prompt"].format(**said)) for s in steps])
        said = {**said, **{role: answer(role, prompt) for role, prompt in asked[-1]}}
        for edge in node["next"]:
            edge = {"to": edge} if isinstance(edge, str) else edge
            if all(re.search(pattern, said[role]) for role, pattern in edge.get("when", {}).items()):
                here = edge["to"]
                break
        if here == "end":
            return asked, True
    return asked, False


@settings(deadline=None, max_examples=examples(150))
@given(graphs(), st.integers(0, 999))
def test_any_valid_graph_ends_in_time_and_takes_the_steps_of_a_plain_interpreter(data, seed):
    workflow = read(data)

    def reply(role, prompt):
        return "xyz"[np.random.default_rng([seed, *f"{role} {prompt}".encode()]).integers(3)]

    def answer(seat, messages, k):
        return f" {reply(workflow.roles[seat], messages[-1]['content'])}\n"

    async def score(turn):
        return [None]

    class Task:
        roles = workflow.roles

        async def play(self, ask, example):
            return await play(workflow, ask, example, score)

    walk, ask = scripted.play(Task(), {}, answer)
    expected, ended = walked(data, reply)
    found = [[] for _ in expected]
    for turn in walk.turns:
        found[turn.number].append((turn.step.role, turn.prompt))
    assert found == expected and walk.ended == ended and len(expected) <= data["max_steps"]
    assert len(ask.replies) == sum(map(len, expected))
    drawing = ElementTree.fromstring(draw(workflow))
    words = [element.text for element in drawing.iter() if element.text and element.text.strip()]
    assert {*data["nodes"], "start", END} <= set(words)


@settings(deadline=None, max_examples=examples(15))
@given(graphs())
def test_a_config_holds_a_workflow_and_gives_it_back(data):
    config = ConfigDict({"workflow": data})
    again = json.loads(json.dumps(config.to_dict()))["workflow"]
    assert read(again) == read(config.to_dict()["workflow"]) == read(data)
    assert list(read(again).nodes) == list(read(data).nodes), "the order of keys is not kept, and must not matter"
    assert read(again).roles == read(data).roles and draw(read(again)) == draw(read(data))


def test_a_list_is_short_for_a_chain_whose_conditions_leave_steps_out():
    data = [step("a"), step("b", when={"a": "x"}), {"together": [step("c"), step("d")], "when": {"a": "y"}}, step("a")]
    end = {"next": "end"}
    last, third = "a_4", {"to": "c_d_3", "when": {"a": "y"}}
    nodes = {
        "a_1": step("a") | {"next": [{"to": "b_2", "when": {"a": "x"}}, third, last]},
        "b_2": step("b") | {"next": [third, last]},
        "c_d_3": {"together": [step("c"), step("d")], "next": last},
        "a_4": step("a") | end,
    }
    assert read(data) == read(graph(start="a_1", **nodes)) and read(data).max_steps == 4


def test_roles_are_in_the_order_in_which_edges_reach_them():
    edges = [{"to": "zoe", "when": {"a": "x"}}, "bea"]
    last = {"bea": step("bea", next="dan"), "dan": step("dan"), "zoe": step("zoe")}
    assert read(graph(**last, one=step("a", next=edges))).roles == ("a", "zoe", "bea", "dan")


# ---------------------------------------------------------------------------------------------------- errors

TWO = dict(one=step("a", next="two"), two=step("b"))


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (5, "the workflow is 5, but must be a list of steps, or a start and nodes"),
        ([], "the workflow has no steps"),
        ({"nodes": {}}, "the workflow has no start"),
        (graph(), "nodes is {}, but must be {name: node}"),
        (graph(start="tow", **TWO), "the start leads to 'tow', but must lead to one of: one, two, end"),
        (graph(one=step("a", next="tow")), "node 'one' leads to 'tow', but must lead to one of: one, end"),
        (graph(one=step("a", next=3)), "node 'one' leads to 3, but must lead to a name"),
        (graph(one=step("a", next=[])), "node 'one' may have no edge to follow"),
        (graph(one=step("a", next=[{"to": "end", "when": {"a": "x"}}])), "node 'one' may have no edge to follow"),
        (graph(one=step("a", next=["end", "one"])), "never follows the edges after the one to 'end'"),
        (graph(**TWO, three=step("c")), "node 'three' cannot be reached from the start"),
        (graph(9, one=step("a", next="two"), two=step("b", next="one")), "no path from node 'one' to the end"),
        (graph(one=step("a", next=[{"to": "one", "when": {"a": "x"}}, "end"])), "'one' is in a loop; set max_steps"),
        (graph(0, **TWO), "max_steps is 0, but must be an integer >= 1"),
        (graph(True, **TWO), "max_steps is True"),
        (graph(1, **TWO), "max_steps is 1, but the shortest path to the end has 2 steps"),
        (
            graph(one=step("a", next=[{"to": "end", "when": {"z": "x"}}, "end"])),
            "'z', but roles must be one of: a",
        ),
        (graph(one=step("a", next=[{"to": "end", "when": {"a": "("}}, "end"])), "'(' is not a regular expression"),
        (
            graph(one=step("a", next=[{"to": "end", "when": "good"}, "end"])),
            "is 'good', but must be one of: fine",
        ),
        (graph(one=step("a", next=[{"to": "end", "when": 3}, "end"])), "must be {role: pattern} or a function"),
        (graph(one=step("a", next=[{"to": "end", "if": {"a": "x"}}, "end"])), "an edge of node 'one' has 'if'"),
        (graph(one=step("a", "{b}", next="two"), two=step("b")), "quotes 'b', which cannot have spoken before"),
        (graph(one={"together": [step("a", "{b}"), step("b")]}), "quotes 'b', which cannot have spoken before"),
        (graph(one={"together": [step("a"), step("a")]}), "prompts 'a' twice at once"),
        (graph(one={"together": []}), "together is [], but must be a list of steps"),
        (graph(one={"together": [step("a")], "role": "b"}), "node 'one' has 'role', but keys must be one of: together"),
        (graph(one=step("a", when={"a": "x"})), "conditions belong to the edges"),
        (
            graph(one=step("a", reward=[])),
            "node 'one' has 'reward', but keys must be one of: role, prompt, system",
        ),
        (graph(one=step("a", rewards="right")), "rewards is 'right', but must be a list of names"),
        (graph(one=step("a", rewards=5)), "rewards is 5, but must be a list of names"),
        (graph(one=step("a", rewards=[5])), "rewards is [5], but must be a list of names"),
        ({"start": "one", "nodes": {1: step("a")}}, "a node is called 1, but names must be non-empty strings"),
        (graph(one={"role": "a"}), "node 'one' has no prompt"),
        (graph(one=step(3)), "node 'one': role is 3, but must be a string"),
        (graph(one="a"), "node 'one' is 'a', but must be a dict"),
        (graph(end=step("a"), start="end"), "a node is called 'end'"),
        ([step("a", next="end")], "step 1 has next"),
        ([step("a"), "b"], "step 2 is 'b', but must be a dict"),
    ],
)
def test_what_is_no_workflow_is_refused(data, message):
    with pytest.raises(WorkflowError) as error:
        read(data, {"fine": lambda values, scores: True})
    assert message in str(error.value)


# ---------------------------------------------------------------------------------------------------- episodes


class MeetingAsk(scripted.ScriptedAsk):
    """An `Ask` that replies once all roles were prompted, so that sequential prompts never get a reply."""

    def __init__(self, task, answer, n):
        super().__init__(task, answer)
        self.meeting = asyncio.Barrier(n)

    def chat(self, seat, system=None):
        chat, meeting = super().chat(seat, system), self.meeting
        answer = chat._answer

        async def wait(*args):
            await asyncio.wait_for(meeting.wait(), 5)
            return await answer(*args)

        chat._answer = wait
        return chat


def test_roles_of_a_node_are_asked_at_once_and_do_not_read_each_other():
    quotes = "{ann} {bob} {cyd}"
    both = {"together": [step(role, f"{role} reads: {quotes}") for role in ROLES]}
    first = {"together": [step(role) for role in ROLES], "next": "second"}
    task = DatasetTask(ROWS, long, workflow=graph(start="first", first=first, second=both))
    read_by = []

    def answer(seat, messages, k):
        read_by.append(messages[-1]["content"])
        return f"{ROLES[seat]}{len(messages) // 2}"

    ask = MeetingAsk(task, answer, 3)
    outcome = asyncio.run(task.play(ask, ROWS[0]))
    assert sorted(read_by[:3]) == ["topic 0"] * 3
    assert sorted(read_by[3:]) == [f"{role} reads: ann0 bob0 cyd0" for role in ROLES]
    assert [reply.rewards.team for *_, reply in ask.replies] == [0, 0, 0, 4, 4, 4]
    assert outcome.metrics == {"reward_long": 4.0} and outcome.reason == "done"


def test_a_function_that_scores_several_roles_at_once_counts_with_its_mean():
    workflow = [{"together": [step("ann"), step("bob"), step("cyd", rewards=[])]}]
    outcome, ask = scripted.play(DatasetTask(ROWS, {"right": lambda completion: float(completion == "0")},
                                         workflow=workflow), ROWS[0], lambda seat, *_: str(seat))  # fmt: skip
    assert outcome.success == 0.5 and [reply.rewards.team for *_, reply in ask.replies] == [1, 0, 0]


def test_an_edge_may_follow_the_scores_and_a_walk_that_is_cut_is_scored_at_its_last_reply():
    nodes = dict(
        one=step("ann", rewards=["long"], next=[{"to": "two", "when": "enough"}, "one"]),
        two=step("bob", "{ann}", next=[{"to": "one", "when": {"bob": "again"}}, "end"]),
    )
    conditions = {"enough": lambda values, scores: scores["ann"]["long"] >= 2 and values["topic"] == "topic 0"}

    def run(*texts):
        left = list(texts)
        task = DatasetTask(ROWS, long, workflow=graph(4, **nodes), conditions=conditions)
        outcome, ask = scripted.play(task, ROWS[0], lambda *_: left.pop(0))
        assert not left
        return outcome.reason, [(seat, reply.rewards.team) for seat, _, reply in ask.replies]

    assert run("a", "aa", "bbb") == ("done", [(0, 1), (0, 2), (1, 3)])
    assert run("aa", "again", "aaa", "b") == ("done", [(0, 2), (1, 0), (0, 3), (1, 1)])
    assert run("aa", "again", "a", "a") == ("max_steps", [(0, 2), (1, 0), (0, 1), (0, 1)])
    assert run("aa", "again", "aa", "again") == ("max_steps", [(0, 2), (1, 0), (0, 2), (1, 5)])


# ---------------------------------------------------------------------------------------------------- replays


def lucky_task(luck, called):
    """Two concurrent roles, then a loop with a random exit. The random value is a reward, so that it is recorded."""

    async def chance(prompt, completion):
        called.append((prompt, completion))
        return luck(prompt, completion)

    nodes = dict(
        one={"together": [step("ann", rewards=["chance"]), step("bob", rewards=["chance"])], "next": "two"},
        two=step("cyd", "{ann} {bob} {cyd}", rewards=["chance"], next=[{"to": "two", "when": "unlucky"}, "end"]),
    )
    conditions = {"unlucky": lambda values, scores: scores["cyd"]["chance"] < 0.6}
    return DatasetTask(ROWS, {"chance": chance}, workflow=graph(5, **nodes), conditions=conditions)


def roll(task, folder, **settings):
    rollout = make_rollout(task, journal=folder, n_examples=4, **settings)
    try:
        return rollout({}, rollout.init(None, None))
    finally:
        rollout.close()


@pytest.mark.parametrize("candidates", [1, 3])
def test_a_replay_from_the_journal_is_exact_whatever_the_order_of_answers(candidates, tmp_path):
    called = []

    def luck(prompt, completion):
        return zlib.crc32(f"{prompt} {completion}".encode()) / 2**32

    samples, _, metrics = roll(lucky_task(luck, called), tmp_path, candidates=candidates)
    assert metrics["episodes/finished"] == 8 and len(called) > 8 * 3 * candidates, "no episode has looped"

    def never(prompt, completion):
        raise AssertionError("it is in the journal")

    order = FakeSampler(np.random.default_rng(1))
    again, _, repeated = roll(lucky_task(never, []), tmp_path, candidates=candidates, sampler=order)
    assert_equal_samples(samples, again)
    assert repeated["episodes/finished"] == 8 and metrics["task/reward_chance"] == repeated["task/reward_chance"]

    (journal,) = tmp_path.glob("*.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[: len(lines) // 2]))
    called.clear()
    again, *_ = roll(lucky_task(luck, called), tmp_path, candidates=candidates, sampler=FakeSampler(order.order))
    assert_equal_samples(samples, again)
    lost = [line for line in lines[len(lines) // 2 :] if b"chance" in line]
    assert len(called) == len(lost) > 0, "what was cut off is computed, and nothing else"


# ---------------------------------------------------------------------------------------------------- drawings


def test_a_drawing_shows_nodes_roles_and_conditions_as_text():
    evil = '</text><script>alert("x")</script>'
    nodes = {"start": step(evil, next=[{"to": "start", "when": {evil: "a<b"}}, "end"])}
    drawing = ElementTree.fromstring(draw(read({"start": "start", "nodes": nodes, "max_steps": 3})))
    texts = [element.text for element in drawing.iter() if element.tag.endswith("}text")]
    assert texts[:4] == ["start", "start", evil, "end"]
    assert not any("script" in element.tag for element in drawing.iter())
    assert len(texts[4]) <= 34 and texts[4].endswith("…")


def test_the_graph_of_solver_and_checker():
    task = SolverChecker(rounds=3)
    assert task.graph.roles == task.roles and task.graph.max_steps == 6
    assert list(task.graph.nodes) == ["solve", "check", "solve_again", "check_again"]
    assert draw(task.graph).count(">agreed</text>") == 2
