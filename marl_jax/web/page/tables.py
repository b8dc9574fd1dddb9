"""Tables written by `experiments/tables`: their Markdown as headings, text, tables and code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from marl_jax.web.page.folders import read_inside

NAMES = ("planning", "reasoning", "debate", "teams", "verifier", "verified", "poker")
RULE = re.compile(r"\s*:?-+:?\s*")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")


def find(id_: str, folder: Path) -> list[dict[str, Any]]:
    """Return the tables in a folder as {id, name, blocks, svg}; svg may be None."""
    tables = []
    for name in NAMES:
        text = read_inside(folder, f"{name}.md")
        if text is not None:
            drawing = read_inside(folder, f"{name}.svg")
            tables.append({"id": id_, "name": name, "blocks": blocks(text), "svg": drawing})
    return tables


def blocks(markdown: str) -> list[dict[str, Any]]:
    """Parse Markdown into blocks, in order.

    A block is {kind: "heading", "text" or "code", text} or {kind: "table", rows}. Only the syntax that the tables use
    is supported. Anything else is text.
    """
    parsed: list[dict[str, Any]] = []
    paragraph: list[str] = []
    fence: list[str] | None = None

    def end_paragraph() -> None:
        if paragraph:
            parsed.append({"kind": "text", "text": _plain(" ".join(paragraph))})
            paragraph.clear()

    for line in markdown.split("\n"):
        line = line.rstrip("\r")
        if line.startswith("```"):
            end_paragraph()
            if fence is not None:
                parsed.append({"kind": "code", "text": "\n".join(fence)})
            fence = [] if fence is None else None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("#"):
            end_paragraph()
            parsed.append({"kind": "heading", "text": _plain(line.lstrip("#"))})
        elif line.lstrip().startswith("|"):
            end_paragraph()
            cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if not parsed or parsed[-1]["kind"] != "table":
                parsed.append({"kind": "table", "rows": []})
            if not all(RULE.fullmatch(cell) for cell in cells):
                parsed[-1]["rows"].append(cells)
        elif line.startswith("    ") and not paragraph:
            if not parsed or parsed[-1]["kind"] != "code":
                parsed.append({"kind": "code", "text": line[4:]})
            else:
                parsed[-1]["text"] += "\n" + line[4:]
        elif not line.strip():
            end_paragraph()
            if parsed and parsed[-1]["kind"] == "table":
                parsed.append({"kind": "text", "text": ""})  # the next row starts another table
        else:
            paragraph.append(line.strip())
    end_paragraph()
    if fence:
        parsed.append({"kind": "code", "text": "\n".join(fence)})
    return [block for block in parsed if block.get("text") or block.get("rows")]


def _plain(text: str) -> str:
    return IMAGE.sub("", text).replace("**", "").replace("`", "").replace(r"\|", "|").strip()
