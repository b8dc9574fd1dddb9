"""Rules for the text of an answer, checked before it is compiled.

An answer consists of modules only and cannot name anything outside them. Compiled next to the test bench, it could
otherwise read the reference, end the simulation, print a verdict or open files.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

TOP = "TopModule"
SYSTEM = ("$signed", "$unsigned", "$clog2", "$bits")
REFUSED = frozenset([
    "alias", "bind", "checker", "class", "clocking", "config", "defparam", "disable", "export", "extern", "force",
    "import", "include", "inout", "interface", "library", "macromodule", "package", "primitive", "program", "release",
    "rtran", "rtranif0", "rtranif1", "tran", "tranif0", "tranif1",
])  # fmt: skip
"""Words that change or name things outside a module, or drive its inputs."""
IGNORED = re.compile(r"^[ \t]*`(timescale[^\n`\"]*|default_nettype[ \t]+\w+|resetall)[ \t]*(//[^\n]*)?$", re.MULTILINE)
"""Directives that are left out, because the test bench sets its own."""
_TOKEN = re.compile(
    r"""(?P<space>\s+|//[^\n]*(?=\n|\Z)|/\*.*?\*/)
    |(?P<string>"(?:[^"\\\n]|\\[^\n])*")
    |(?P<number>\d[\d_]*\.\d[\d_]*(?:[eE][+-]?\d+)?|\d[\d_]*|'[sS]?[bBoOdDhH]\s*[\da-fA-FxXzZ?_]+|'[01xXzZ](?!\w))
    |(?P<word>[A-Za-z_][\w$]*)
    |(?P<system>\$\w+)
    |(?P<sign>::|[^\s\w"\\`$])""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


class Refused(ValueError):
    """An answer breaks a rule; the message is shown to the agent."""


def checked(text: str) -> str:
    """Return the text without ignored directives.

    Raises:
        Refused: The answer breaks a rule.
    """
    if not text.isascii() or re.search(r"[^\t\n\r\x20-\x7e]", text):
        raise Refused("only printable ASCII characters are allowed")
    text = IGNORED.sub("", text.replace("\r\n", "\n"))
    tokens = list(_tokens(text))
    tops, inside, skip = 0, False, False
    for at, (kind, token) in enumerate(tokens):
        before = tokens[at - 1][1] if at else ""
        after = tokens[at + 1][1] if at + 1 < len(tokens) else ""
        if kind == "system" and token not in SYSTEM:
            raise Refused(f"{token} is not allowed; allowed are {', '.join(SYSTEM)}")
        if kind == "word" and (token in REFUSED or re.match("_?ivl_", token)):
            raise Refused(f"{token} is not allowed")
        if token == "::" or (token == "." and before not in ("(", ",")):
            raise Refused("names of other scopes (with . or ::) are not allowed")
        if token == "(" and after == "*" and (tokens[at + 2][1] if at + 2 < len(tokens) else "") != ")":
            raise Refused("attributes (* … *) are not allowed")
        if token == "module" and kind == "word":
            if inside:
                raise Refused("a module inside a module is not allowed")
            inside, tops = True, tops + (after == TOP)
        elif token == "endmodule" and kind == "word":
            if not inside:
                raise Refused("there is an endmodule without a module")
            inside, skip = False, after == ":"
        elif skip:  # the name after "endmodule :"
            skip = token == ":"
        elif not inside and token != ";":
            raise Refused(f"only modules are allowed, but {token[:30]!r} is outside")
    if inside:
        raise Refused("an endmodule is missing")
    if tops != 1:
        raise Refused(f"there must be exactly one module {TOP}, but there are {tops}")
    return text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or text.startswith("/*", at) and match.lastgroup != "space":
            problem = {"`": "directives and macros (`)", "\\": "escaped names (\\)", '"': "an open string"}
            raise Refused(f"{problem.get(text[at], 'an open comment or an unknown character')} is not allowed")
        if match.lastgroup != "space":
            yield match.lastgroup or "", match.group()
        at = match.end()
