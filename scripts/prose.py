"""Check the words of docstrings, comments, messages and docs.

    python scripts/prose.py                 # all files
    python scripts/prose.py models docs     # some of them

The rules: a docstring begins with a line of at most 15 words; words with a plainer replacement are not used; errors
say "X is V, but must be …". `scripts/prose_allowed.txt` lists the lines that may use such a word, as `path: line`.
Prompts and game texts are not checked: only strings that are raised, logged, or the help of a config field.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = ROOT / "scripts" / "prose_allowed.txt"
MAX_WORDS = 15
SUMMARY_EXEMPT = ("tests/",)
SKIPPED = ("docs/lab/", "docs/texts.md", "docs/licences.md", "scripts/prose")

WORDS = {
    r"behind": "after", r"so many": "n", r"lies": "is", r"stands": "is", r"told": "reported, configured",
    r"paid": "rewarded", r"pays": "rewards", r"goes on": "continues", r"go on": "continue",
    r"beside": "next to, in addition to", r"besides": "also, in addition", r"apart": "separate",
    r"of (its|their) own": "its, their", r"telling": "informative", r"world": "environment", r"heat": "temperature",
}  # fmt: skip
NOUN_CLAUSE = re.compile(r"^(What|Of|Where|Whose|So)\b")
WHAT = re.compile(r"(?<![\w] )\b[Ww]hat (is|was|has|are|were|have)\b(?![^.]*\?)")
NAMES = {"asked", "found", "mine", "theirs", "ready", "talk", "heat", "world"}
ERRORS = re.compile(r"\b(accepted|expected|known are|allowed|nearest): |; accepted|; expected")
LISTED = re.compile("|".join(rf"\b({word})\b" for word in WORDS), re.IGNORECASE)
MESSAGE_CALLS = {"Field", "setting", "redefault", "debug", "info", "warning", "error", "exception", "add_argument"}

Problem = tuple[str, int, str]
"""(path, line number, what is wrong)"""


def main(arguments: list[str]) -> int:
    """Print all problems of the given paths; return 1 if there are any."""
    found = problems(arguments)
    for path, line, text in found:
        print(f"{path}:{line}: {text}")
    print(f"{len(found)} problems")
    return bool(found)


def problems(paths: list[str] | None = None) -> list[Problem]:
    """Return the problems of some files or folders, by default of all tracked files, that are not allowed."""
    allowed = set(ALLOWED.read_text(encoding="utf-8").splitlines()) if ALLOWED.exists() else set()
    command = ["git", "ls-files", "-co", "--exclude-standard", "--", *(paths or ["."])]
    names = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT).stdout.split()
    result = []
    for name in sorted(names):
        path = ROOT / name
        if name.startswith(SKIPPED) or not path.exists() or path.suffix not in (".py", ".md"):
            continue
        text = path.read_text(encoding="utf-8")
        lines = text.splitlines()
        check = python_problems if path.suffix == ".py" else markdown_problems
        for number, problem in check(name, text):
            if f"{name}: {lines[number - 1].strip()}" not in allowed:
                result.append((name, number, problem))
    return result


def python_problems(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) of a Python file."""
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstring(name, node)
        elif isinstance(node, ast.Raise | ast.Yield) or (isinstance(node, ast.Call) and _called(node) in MESSAGE_CALLS):
            yield from _messages(node)
        if isinstance(node, ast.Name | ast.arg) and not name.startswith("tests/"):
            identifier = node.id if isinstance(node, ast.Name) else node.arg
            if identifier in NAMES and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
                yield node.lineno, f"the variable {identifier!r} needs a more specific name"
    suspicious = any(LISTED.search(line) or WHAT.search(line) for line in text.splitlines() if "#" in line)
    for token in tokenize.generate_tokens(io.StringIO(text).readline) if suspicious else ():
        if token.type == tokenize.COMMENT:
            yield from _listed(token.start[0], token.string)


def markdown_problems(name: str, text: str) -> Iterator[tuple[int, str]]:
    """Yield (line, problem) of a Markdown file, code blocks left out."""
    code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            code = not code
        elif not code:
            yield from _listed(number, re.sub(r"`[^`]*`", "", line))


def _docstring(name: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
    if (text := ast.get_docstring(node)) is None:
        return
    literal = node.body[0]
    first = literal.lineno
    summary = text.split("\n\n")[0].rstrip()
    if not name.startswith(SUMMARY_EXEMPT):
        if len(summary.split()) > MAX_WORDS:
            yield first, f"the first line of the docstring has {len(summary.split())} words, not at most {MAX_WORDS}"
        elif "\n" in summary:
            yield first, "the docstring needs a summary of one line, then a blank line"
        if NOUN_CLAUSE.match(summary):
            yield first, f"the docstring begins with {summary.split()[0]!r}"
    for offset, line in enumerate(text.splitlines()):
        yield from _listed(first + offset, re.sub(r"`[^`]*`", "", line))


def _messages(node: ast.AST) -> Iterator[tuple[int, str]]:
    for part in ast.walk(node):
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            yield from _listed(part.lineno, part.value)
            if ERRORS.search(part.value):
                yield part.lineno, "errors say `X is V, but must be …`"


def _called(node: ast.Call) -> str:
    function = node.func
    return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def _listed(number: int, text: str) -> Iterator[tuple[int, str]]:
    for match in LISTED.finditer(text):
        word = match.group(0)
        better = next(better for pattern, better in WORDS.items() if re.fullmatch(pattern, word, re.IGNORECASE))
        yield number, f"{word!r}: write {better!r}, or rephrase"
    if WHAT.search(text):
        yield number, f"{WHAT.search(text).group(0)!r} as a noun: name the thing"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
