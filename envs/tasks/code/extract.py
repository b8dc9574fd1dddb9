"""Extraction of programs and test cases from completions.

Nothing is run or evaluated here.

Programs: the last fenced block (```) labelled python, py or python3 is the program, or else the last block without a
label. An unclosed last fence extends to the end of the completion. Without a fenced block there is no program; prose is
never searched for code.

Test cases of functions: they are in the last block labelled tests, or else in the last block with an assertion, or
else, if there are no blocks, anywhere in the completion. Each line that begins with `assert` must have the form `assert
NAME(arguments) == value` with literal arguments and value (`envs.tasks.code.values.literal`). Other lines count as
unreadable.

Test cases of programs: a block labelled input, or one that follows a line containing "input", is followed by a block
labelled output, or one that follows a line containing "output". An input without its output counts as unreadable.
"""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Sequence

from envs.tasks.code.values import literal, parse

LONGEST = 100_000
"""Maximum length of a completion in characters; nothing is extracted from a longer one."""
LONGEST_LINE = 2_000
"""Maximum length in characters of a line with a test case, and of an input or output."""
CASE_TOLERANCE = [1e-6, 1e-9]

PYTHON = ("python", "py", "python3")
_FENCE = re.compile(r"[ \t]{0,3}(`{3,}|~{3,})[ \t]*([A-Za-z0-9_+-]*)[ \t]*[^`\n]{0,100}")


@dataclasses.dataclass(frozen=True)
class Block:
    """A fenced block.

    Attributes:
        label: Label in lower case, or "".
        text: Content.
        before: Last non-empty line before the block.
    """

    label: str
    text: str
    before: str


def blocks(answer: str) -> list[Block]:
    """Return the fenced blocks of a completion in order."""
    result: list[Block] = []
    fence, label, inside, before, last = None, "", [], "", ""
    for line in answer.replace("\r\n", "\n").split("\n"):
        match = _FENCE.fullmatch(line)
        if fence is None:
            if match:
                fence, label, inside, before = match[1], match[2].lower(), [], last
            elif line.strip():
                last = line.strip()
        elif match and match[1].startswith(fence) and line.strip() == match[1]:
            result.append(Block(label, "\n".join(inside), before))
            fence, last = None, ""
        else:
            inside.append(line)
    if fence is not None:
        result.append(Block(label, "\n".join(inside), before))
    return result


@dataclasses.dataclass(frozen=True)
class ExtractedProgram:
    """A program, or the reason why there is none: "missing" or "too_long"."""

    text: str | None
    problem: str = ""


def read_program(answer: str) -> ExtractedProgram:
    """Return the program in a completion."""
    if len(answer) > LONGEST:
        return ExtractedProgram(None, "too_long")
    fenced = blocks(answer)
    for labels in (PYTHON, ("",)):
        texts = [block.text for block in fenced if block.label in labels and block.text.strip()]
        if texts:
            return ExtractedProgram(texts[-1])
    return ExtractedProgram(None, "missing")


# ---------------------------------------------------------------------------------------------------- test cases


@dataclasses.dataclass(frozen=True)
class Cases:
    """Test cases in the format of a row's tests, and the number of unreadable ones."""

    tests: list[dict]
    unreadable: int = 0


def read_cases(answer: str, entry_point: str | None, most: int = 8, given: str = "") -> Cases:
    """Return the first `most` distinct test cases of a completion.

    Args:
        answer: Text of the completion.
        entry_point: Name of the function under test; None for a program that reads standard input.
        most: Maximum number of test cases.
        given: A call that is accepted even if its arguments are not literals.
    """
    if len(answer) > LONGEST:
        return Cases([], 1)
    tests, unreadable = _stdin_cases(answer) if entry_point is None else _call_cases(answer, entry_point, most, given)
    different = list({tuple(sorted((k, str(v)) for k, v in test.items())): test for test in tests}.values())
    return Cases(different[:most], unreadable)


def _call_cases(answer: str, entry_point: str, most: int, given: str) -> tuple[list[dict], int]:
    fenced = blocks(answer)
    texts = [b.text for b in fenced if b.label == "tests"] or [b.text for b in fenced if "assert" in b.text]
    lines = [line.strip() for line in (texts[-1] if texts else "" if fenced else answer).split("\n")]
    lines = [line for line in lines if line.startswith("assert")]
    tests = [read_case(line, entry_point, given) for line in lines[: 4 * most]]
    readable = [test for test in tests if test is not None]
    return readable, len(lines) - len(readable)


def read_case(line: str, entry_point: str, given: str = "") -> dict | None:
    """Convert an assertion into a test, or return None if its form differs."""
    if len(line) > LONGEST_LINE:
        return None
    try:
        body = parse(line).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if len(body) != 1 or not isinstance(body[0], ast.Assert) or not isinstance(body[0].test, ast.Compare):
        return None
    test = body[0].test
    if len(test.ops) != 1 or not isinstance(test.ops[0], ast.Eq | ast.Is) or not isinstance(test.left, ast.Call):
        return None
    call, value = test.left, test.comparators[0]
    if not _is_entry(call.func, entry_point) or any(keyword.arg is None for keyword in call.keywords):
        return None
    try:
        literal(value)
        text = ast.unparse(call)
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)) if text != given else ():
            literal(argument)
        return {"call": text, "expect": ast.unparse(value), "close": CASE_TOLERANCE}
    except (ValueError, RecursionError):
        return None


def _is_entry(function: ast.expr, entry_point: str) -> bool:
    """Check whether an expression is the function or, for a method, `Solution().f`."""
    name, _, method = entry_point.partition(".")
    try:
        return ast.unparse(function) == (f"{name}().{method}" if method else name)
    except RecursionError:
        return False


def _stdin_cases(answer: str) -> tuple[list[dict], int]:
    tests, unreadable, given = [], 0, None
    for block in blocks(answer):
        kind = _kind(block)
        if kind == "input":
            unreadable += given is not None
            given = block.text
        elif kind == "output" and given is not None:
            if max(len(given), len(block.text)) <= LONGEST_LINE and _is_unicode(given + block.text):
                tests.append({"stdin": given.rstrip("\n") + "\n", "stdout": block.text.rstrip("\n") + "\n"})
            else:
                unreadable += 1
            given = None
    return tests, unreadable + (given is not None)


def _kind(block: Block) -> str:
    if block.label in ("input", "output"):
        return block.label
    words = re.findall(r"[a-z]+", block.before.lower()[-200:])
    kinds: Sequence[str] = [word for word in words if word in ("input", "output")]
    return kinds[-1] if kinds and block.label in ("", "text", "txt") else ""


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
