"""Tools: schemas against transformers, functions, calls within limits, and the episodes of the task."""

import asyncio
import json
from typing import Any, Literal

import pytest

from envs.tasks import make_task
from envs.tasks.data import DataError
from envs.tasks.replies import Reply, TaskError, ToolCall
from envs.tasks.scripted import ScriptedAsk, play
from envs.tasks.task import SPLITS, Task
from envs.tasks.tools import Combined, Functions, Limits, ToolError, ToolFailed, Tools, ToolUse, tool
from envs.tasks.tools import schemas as json_schemas
from envs.tasks.tools.builtin import calculator
from envs.tasks.tools.task import is_right, read_answer


@tool
def convert(amount: float, unit: Literal["m", "ft"], digits: int = 2, names: list[str] | None = None) -> str:
    """Convert a length.

    The result is rounded.

    Args:
        amount: The length,
            as a number.
        unit: The unit.
        digits: Number of digits.
        names: Names.

    Returns:
        The text.
    """
    return f"{amount:.{digits}f} {unit} {names}"


@tool
def fails(kind: str) -> str:
    """Fail.

    Args:
        kind: How.
    """
    if kind == "error":
        raise ToolError("it is broken")
    raise KeyError(kind)


@tool
async def waits(seconds: float) -> dict:
    """Wait.

    Args:
        seconds: How long.
    """
    await asyncio.sleep(seconds)
    return {"waited": seconds}


class Notes:
    """Tools with state."""

    def __init__(self):
        self.notes: list[str] = []
        self._private = object()

    @tool
    def write(self, note: str) -> int:
        """Write a note.

        Args:
            note: The note.
        """
        self.notes.append(note)
        return len(self.notes)

    @tool
    def read(self) -> list:
        """Read all notes."""
        return self.notes


# ------------------------------------------------------------------------------------------------------------- schemas


def test_schemas_of_functions_equal_those_of_transformers():
    get_json_schema = pytest.importorskip("transformers.utils").get_json_schema

    def plain(a: int, b: float, flag: bool, table: dict, rows: list[list[int]], by: dict[str, float], any: Any):
        """Do something.

        More about it.

        Args:
            a: First
                number.
            b: Second: a float.
            flag: A flag (yes or no).
            table: A table.
            rows: Rows.
            by: Values.
            any: Anything.
        """

    for function in (plain, calculator):
        theirs = get_json_schema(function)
        theirs["function"].pop("return", None)
        assert json_schemas.schema_of(function) == theirs
    parameters = json_schemas.schema_of(convert)["function"]["parameters"]
    assert parameters["properties"]["unit"] == {"type": "string", "enum": ["m", "ft"], "description": "The unit."}
    assert parameters["required"] == ["amount", "unit"]
    names = parameters["properties"]["names"]
    assert json_schemas.problem(names, None, "names") is None and json_schemas.problem(names, 1, "names")


def test_functions_that_cannot_be_described_are_refused():
    def nothing(a: int):
        pass

    def no_hint(a):
        """Do it.

        Args:
            a: A.
        """

    def no_description(a: int):
        """Do it."""

    def many(*a: int):
        """Do it.

        Args:
            *a: A.
        """

    def odd(a: bytes):
        """Do it.

        Args:
            a: A.
        """

    for function in (nothing, no_hint, no_description, many, odd):
        with pytest.raises(ValueError, match="must"):
            tool(function)
    with pytest.raises(ValueError, match="has no tools"):
        Functions(print)
    with pytest.raises(ValueError, match="convert occurs twice"):
        Functions(convert, convert)
    with pytest.raises(ValueError, match="convert occurs twice"):
        Combined(Functions(convert), Functions(convert))


SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": 1, "maximum": 9, "multipleOf": 2},
        "x": {"anyOf": [{"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1}, {"type": "null"}]},
        "s": {"type": "string", "minLength": 2, "maxLength": 3, "pattern": "^a"},
        "l": {"type": "array", "items": {"$ref": "#/$defs/kind"}, "minItems": 1, "maxItems": 2, "uniqueItems": True},
        "t": {"prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False},
        "o": {"type": "object", "additionalProperties": {"type": ["integer", "string"]}, "minProperties": 1},
        "one": {"oneOf": [{"type": "integer"}, {"minimum": 2}], "not": {"const": 7}},
        "all": {"allOf": [{"type": "object", "required": ["a"]}, {"maxProperties": 1}]},
        "free": True,
    },
    "required": ["n"],
    "additionalProperties": False,
    "$defs": {"kind": {"enum": ["a", 1, None, [1], {"a": True}], "title": "Kind"}},
}
VALUES = [
    {}, {"n": 2}, {"n": 2.0}, {"n": 3}, {"n": 0}, {"n": 10}, {"n": True}, {"n": "2"}, {"n": None}, [], "n", None,
    {"n": 2, "z": 1}, {"n": 2, "x": 0.5}, {"n": 2, "x": 0}, {"n": 2, "x": None}, {"n": 2, "x": 1}, {"n": 2, "s": "a"},
    {"n": 2, "s": "ab"}, {"n": 2, "s": "bab"}, {"n": 2, "s": "abcd"}, {"n": 2, "l": []}, {"n": 2, "l": ["a", 1]},
    {"n": 2, "l": [1, 1.0]}, {"n": 2, "l": [True]}, {"n": 2, "l": [None]}, {"n": 2, "l": [[1], {"a": True}]},
    {"n": 2, "l": [{"a": 1}]}, {"n": 2, "l": ["a", "a"]}, {"n": 2, "l": ["b"]}, {"n": 2, "l": "a"},
    {"n": 2, "t": [1, True]}, {"n": 2, "t": [1, 1]}, {"n": 2, "t": [True]}, {"n": 2, "t": [1, True, 2]},
    {"n": 2, "t": []}, {"n": 2, "o": {}}, {"n": 2, "o": {"a": 1}}, {"n": 2, "o": {"a": "b", "c": None}},
    {"n": 2, "one": 1}, {"n": 2, "one": 3}, {"n": 2, "one": 2.5}, {"n": 2, "one": "x"}, {"n": 2, "one": 7},
    {"n": 2, "all": {"a": 1}}, {"n": 2, "all": {"a": 1, "b": 2}}, {"n": 2, "all": {}}, {"n": 2, "free": [[]]},
]  # fmt: skip
VALID = {1, 2, 13, 15, 18, 22, 25, 26, 31, 35, 37, 39, 41, 42, 44, 47}
"""Indices of valid values, from jsonschema 4.26 (Draft202012Validator)."""


def test_arguments_are_checked_as_jsonschema_checks_them():
    json_schemas.check(SCHEMA, "f")
    accepted = {i for i, value in enumerate(VALUES) if json_schemas.problem(SCHEMA, value, "arguments") is None}
    try:
        import jsonschema
    except ImportError:
        pass
    else:
        validator = jsonschema.Draft202012Validator(SCHEMA)
        assert {i for i, value in enumerate(VALUES) if validator.is_valid(value)} == VALID
    assert accepted == VALID
    with pytest.raises(ValueError, match="patternProperties"):
        json_schemas.check({"properties": {"a": {"patternProperties": {}}}}, "f")
    with pytest.raises(ValueError, match="must refer to its"):
        json_schemas.check({"anyOf": [{"$ref": "http://example.org/a.json"}]}, "f")


# --------------------------------------------------------------------------------------------------------------- calls


def called(*calls, finish="stop", text=""):
    """Return a reply with calls (name, arguments) or (name, text, problem)."""
    made = [ToolCall(c[0], c[1] if isinstance(c[1], str) else json.dumps(c[1]), *c[2:]) for c in calls]
    return Reply(text or "calls", finish=finish, calls=made)


class OneRole(Task):
    roles = ("one",)


def use_of(*members, **limits):
    ask = ScriptedAsk(OneRole(), lambda seat, messages, k: "")
    use = ToolUse(ask, Functions(*members), Limits(**limits))
    return use, ask.chat(0, tools=use.tools)


def run(use, chat, *calls, **options):
    return asyncio.run(use.run(chat, called(*calls, **options)))


def test_results_are_texts_or_json():
    use, chat = use_of(convert, waits, Notes())
    assert [one["function"]["name"] for one in chat.schemas] == ["convert", "waits", "write", "read"]
    assert run(use, chat, ("convert", {"amount": 1, "unit": "m", "digits": 3.0}), ("waits", {"seconds": 0})) == [
        "1.000 m None", '{"waited": 0}',
    ]  # fmt: skip
    assert run(use, chat, ("write", {"note": "a"}), ("write", {"note": "é"}), ("read", {})) == ["1", "2", '["a", "é"]']
    assert use.metrics()["valid_calls"] == 5 and sum(use.metrics().values()) == 5


def test_bad_calls_become_messages_and_are_counted():
    use, chat = use_of(convert, fails, waits, calls=9, per_turn=5, seconds=0.05, result_tokens=100)
    texts = run(
        use, chat, ("", "{'name'", "the call is not valid JSON"), ("konvert", {}), ("convert", {"amount": "1"}),
        ("fails", {"kind": "error"}), ("waits", {"seconds": 9}), ("convert", {}), ("convert", {}),
    )  # fmt: skip
    assert texts == [
        "Error: the call is not valid JSON",
        "Error: there is no tool 'konvert'; the tools are: convert, fails, waits",
        'Error: arguments.amount is "1", but must be of type number',
        "Error: it is broken",
        "Error: the call took more than 0.05 s\nError: 2 further calls were not run; at most 5 are possible at a time.",
    ]
    assert run(use, chat, ("convert", {"amount": 1, "unit": "m", "size": 2})) == [
        "Error: arguments.size is not a parameter; the parameters are: amount, unit, digits, names"
    ]
    assert "cut off" in run(use, chat, ("convert", {"amount": 1}), ("convert", {"amount": 1}), finish="length")[0]
    assert run(use, chat, ("convert", {"amount": 1, "unit": "m"})) == [
        "Error: all 9 calls were used. Answer without further calls."
    ]
    assert use.metrics() == {
        "valid_calls": 0, "failed_calls": 1, "unreadable_calls": 1, "unknown_calls": 1, "invalid_calls": 2,
        "refused_calls": 3, "late_calls": 1, "truncated_calls": 2, "cut_results": 0,
    }  # fmt: skip


def test_long_results_are_cut_and_halves_of_characters_replaced():
    use, chat = use_of(Notes(), result_tokens=4)
    texts = run(use, chat, ("write", {"note": "abcdefg"}), ("read", {}))
    assert texts[1].startswith('["ab') and texts[1].endswith("(the result was cut off)") and use.counts["cut"] == 1
    use, chat = use_of(Notes())
    assert run(use, chat, ("write", '{"note": "\\ud800"}'), ("read", {}))[1] == '["?"]'


def test_an_exception_in_a_tool_ends_the_episode():
    use, chat = use_of(fails)
    with pytest.raises(ToolFailed, match="the tool fails failed: .*KeyError: 'bug'"):
        run(use, chat, ("fails", {"kind": "bug"}))
    assert ToolFailed.reason == "tool_failed"


def test_forks_have_their_own_state_and_tools_without_forks_are_refused():
    notes = Notes()
    use, chat = use_of(notes)
    run(use, chat, ("write", {"note": "a"}))
    forks = [use.fork(k) for k in range(2)]
    assert run(forks[0], chat, ("write", {"note": "b"}), ("read", {}))[1] == '["a", "b"]'
    assert run(forks[1], chat, ("read", {})) == ['["a"]'] and notes.notes == ["a"]
    assert (use.counts["valid"], forks[0].counts["valid"], forks[1].counts["valid"]) == (1, 3, 2)
    stateless = Functions(convert)
    assert stateless.fork() is stateless

    class Fixed(Tools):
        forkable = False

    with pytest.raises(TaskError, match="cannot be forked"):
        ToolUse(use.ask, Combined(Fixed(), Functions(convert))).fork(0)


def test_state_can_be_restored_from_json():
    first, second = Combined(Functions(Notes()), Functions(convert)), Combined(Functions(Notes()), Functions(convert))
    asyncio.run(first.call("write", {"note": "a"}))
    second.restore(json.loads(json.dumps(first.state())))
    assert asyncio.run(second.call("read", {})) == '["a"]'
    asyncio.run(second.call("write", {"note": "b"}))
    assert asyncio.run(first.call("read", {})) == '["a"]'
    assert Functions(convert).state() is None


@pytest.mark.parametrize("limit", ["calls", "per_turn", "result_tokens", "seconds"])
def test_limits_are_positive(limit):
    with pytest.raises(ValueError, match=f"Limits.{limit} is 0, but must be > 0"):
        Limits(**{limit: 0})


CALCULATIONS = {
    "48213 * 977": "47104101", "(2 + 3) ** 2 / 2": "25/2", "-7 // 2": "-4", "7 % -3": "-2", "0.1 + 0.2": "3/10",
    "2 ** -2": "1/4", "1_000 * 3": "3000",
}  # fmt: skip
BAD = (
    "1 / 0", "9 ** 9 ** 9", "2 ** 0.5", "__import__('os')", "a", "1 +", "'a' * 9", "1 if 1 else 2", "", "[1]", "True",
    "1j", "0 ** -1", "(" * 300, "9" * 501, "((9 ** 999) ** 2) * " * 20 + "1", "1e999", "\0",
)  # fmt: skip


def test_the_calculator_is_exact_and_evaluates_only_arithmetic():
    for expression, value in CALCULATIONS.items():
        assert calculator(expression) == value
    for expression in BAD:
        with pytest.raises(ToolError):
            calculator(expression)


# ------------------------------------------------------------------------------------------------------------ the task


def test_splits_are_disjoint_and_answers_are_those_of_the_tools():
    task = make_task("tools")
    rows = {part: task.examples(part) for part in SPLITS}
    assert [len(rows[part]) for part in SPLITS] == [216, 36, 72]
    texts = [row["question"] for part in SPLITS for row in rows[part]]
    assert len(set(texts)) == len(texts)
    towns = [{row["id"].split("/")[0] for row in rows[part]} for part in SPLITS]
    assert not (towns[0] & towns[1] or towns[0] & towns[2] or towns[1] & towns[2])
    tools = task.episode_tools()
    for row in rows["test"]:
        assert task.gold_reply(row) == f"<answer>{row['answer']}</answer>"
        words = row["question"].rstrip("?").split()
        if row["id"].endswith("/sum"):
            expression = " ".join(words[2:])
        elif row["id"].endswith("/fact"):
            expression = asyncio.run(tools.call("lookup", {"town": words[-1], "column": words[-3]}))
        else:
            column = words[5]
            one, other = (asyncio.run(tools.call("lookup", {"town": words[i], "column": column})) for i in (7, -1))
            expression = f"{words[2]} * {one} + {other}"
        assert asyncio.run(tools.call("calculator", {"expression": expression})) == str(row["answer"])


def scripted(row, form="single", candidates=1, replies=(), **params):
    """Play an episode with the given replies, in order; callable replies get the messages."""
    task, said, seen = make_task("tools", form=form, **params), iter(replies), []

    def answer(seat, messages, k):
        seen.append((seat, k, [dict(m) for m in messages]))
        return next(said)

    outcome, ask = play(task, row, answer, candidates)
    return outcome, ask, seen


def the_sum():
    return next(row for row in make_task("tools").examples("test") if row["id"].endswith("/sum"))


def test_an_agent_calls_and_answers():
    row = the_sum()
    expression = row["question"].removeprefix("What is ").rstrip("?")
    call = called(("calculator", {"expression": expression}))
    outcome, ask, seen = scripted(row, replies=[call, f"<answer>{row['answer']:,}</answer>"])
    assert outcome.success == 1 and outcome.reason == "done" and outcome.metrics["valid_calls"] == 1
    assert outcome.metrics["mentioned"] and outcome.metrics["turns"] == 2
    assert seen[1][2][-1] == {"role": "tool", "content": str(row["answer"])}
    first, last = (reply for _, _, reply in ask.replies)
    assert (first.rewards.agent, first.rewards.process, last.rewards.team) == (0.2, 0.1, 1.0)


def test_a_caller_calls_for_a_reader():
    row = the_sum()
    call = called(("calculator", {"expression": str(row["answer"])}), ("lookup", {"town": "Nowhere", "column": "area"}))
    outcome, ask, seen = scripted(row, "roles", replies=[call, "<done/>", f"<answer>{row['answer']}</answer>"])
    assert outcome.success == 1 and [seat for seat, *_ in seen] == [0, 0, 1]
    shown = seen[-1][2][-1]["content"]
    assert f"= {row['answer']}\n" in shown and "Error: the table has no town 'Nowhere'" in shown
    assert [reply.rewards.team for _, _, reply in ask.replies] == [0.0, 1.0, 1.0]
    assert [reply.rewards.process for _, _, reply in ask.replies] == [0.0, 0.1, 0.1]  # one of the calls failed


def test_candidates_are_rewarded_by_their_own_calls_and_one_is_continued():
    row = the_sum()
    wrong, right = (
        called(("calculator", {"expression": "1"})),
        called(("calculator", {"expression": str(row["answer"])})),
    )
    outcome, ask, seen = scripted(
        row, candidates=2, replies=[wrong, right, "<answer>7</answer>", f"<answer>{row['answer']}</answer>"]
    )
    assert [reply.rewards.agent for _, _, reply in ask.replies] == [0.0, 0.2, 0.0, 0.0]
    assert [reply.rewards.team for _, _, reply in ask.replies] == [0.0, 0.0, 0.0, 1.0]
    assert seen[2][2][-1]["content"] == str(row["answer"]) and outcome.success == 1
    assert outcome.metrics["valid_calls"] == 1  # of the candidates that were continued


def test_calls_in_the_last_turn_are_not_run_and_empty_turns_end():
    row, call = the_sum(), called(("calculator", {"expression": "1"}))
    outcome, _, seen = scripted(row, replies=[call] * 4)
    assert outcome.metrics["valid_calls"] == 3 and outcome.reason == "no_answer" and outcome.success == 0
    assert seen[-1][2][-1]["content"].endswith("Answer now, without calling tools.")
    outcome, _, seen = scripted(row, replies=["hm", "hm", "hm", "<answer>1</answer>"])
    assert outcome.reason == "done" and outcome.success == 0


@pytest.mark.parametrize(("answer", "gold", "right"), [
    ("1,234", "1234", True), ("1234.0", "1234", True), ("12,34", "1234", False), ("1234 crowns", "1234", False),
    ("-5", "5", False), ("Red  Ball", "red ball", True), ("\u0661", "1", False), ("1/2", "1/2", True),
])  # fmt: skip
def test_answers_are_compared_exactly(answer, gold, right):
    assert is_right(answer, gold) == right


def test_unreadable_answers():
    assert read_answer("so <answer> 7 </answer>") == "7"
    for text in ("7", "<answer></answer>", "<answer>7</answer><answer>8</answer>", f"<answer>{'7' * 201}</answer>"):
        assert read_answer(text) is None


def test_own_questions_and_bad_parameters(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text("".join(json.dumps({"id": i, "question": f"{i}?", "answer": i}) + "\n" for i in range(40)))
    task = make_task("tools", dataset=str(path), tools=("calculator",))
    assert sum(len(task.examples(part)) for part in SPLITS) == 40
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_text(json.dumps({"id": 1, "question": "?", "answer": [1]}) + "\n")
    with pytest.raises(DataError, match="answer is"):
        make_task("tools", dataset=str(wrong), tools=("python",)).examples("train")
    for params, message in (
        (dict(tools=("calc",)), "tools has 'calc'"), (dict(tools=()), "at least one tool"),
        (dict(dataset="x"), "must be 'sample' or a .jsonl file"), (dict(dataset="x.jsonl"), "tools has 'lookup'"),
        (dict(turns=1), "turns is 1"), (dict(scope="all"), "scope is 'all'"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            make_task("tools", **params)


def test_programs_run_in_the_sandbox():
    task = make_task("tools", tools=("python",), sandbox="process", seconds=2.0)
    use = ToolUse(ScriptedAsk(task, lambda *_: ""), task.episode_tools(), task.limits)
    chat = use.ask.chat(0)
    texts = run(
        use, chat, ("python", {"program": "print(6 * 7)"}), ("python", {"program": "1 / 0"}),
        ("python", {"program": "1"}), ("python", {"program": "while True: pass"}),
    )  # fmt: skip
    assert texts == [
        "42", "Error: ZeroDivisionError: division by zero", "The program printed nothing.",
        "Error: the program took more than 2 s",
    ]  # fmt: skip
    assert use.counts["late"] == 1
