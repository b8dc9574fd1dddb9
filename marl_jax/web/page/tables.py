"""The tables that `experiments/tables` wrote: their Markdown as headings, texts, tables and code."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from marl_jax.web.page.folders import read_inside

NAMES = ("planning", "reasoning", "debate", "poker", "verifier")
RULE = re.compile(r"\s*:?-+:?\s*")
IMAGE = re.compile(r"!\[[^\]]*\]\([^)]*\)")


def find(id_: str, folder: Path) -> list[dict[str, Any]]:
    """The tables in a folder, each with its drawing, if there is one: {id, name, blocks, svg}."""
    found = []
    for name in NAMES:
        text = read_inside(folder, f"{name}.md")
        if text is not None:
            drawing = read_inside(folder, f"{name}.svg")
            found.append({"id": id_, "name": name, "blocks": blocks(text), "svg": drawing})
    return found


def blocks(markdown: str) -> list[dict[str, Any]]:
    """What a Markdown text is made of, in order: {kind: "heading", "text" or "code", text} or {kind: "table", rows}.

    Only what the tables use is known; anything else is text.
    """
    found: list[dict[str, Any]] = []
    paragraph: list[str] = []
    fence: list[str] | None = None

    def end_paragraph() -> None:
        if paragraph:
            found.append({"kind": "text", "text": _plain(" ".join(paragraph))})
            paragraph.clear()

    for line in markdown.split("\n"):
        line = line.rstrip("\r")
        if line.startswith("```"):
            end_paragraph()
            if fence is not None:
                found.append({"kind": "code", "text": "\n".join(fence)})
            fence = [] if fence is None else None
        elif fence is not None:
            fence.append(line)
        elif line.startswith("#"):
            end_paragraph()
            found.append({"kind": "heading", "text": _plain(line.lstrip("#"))})
        elif line.lstrip().startswith("|"):
            end_paragraph()
            cells = [_plain(cell) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
            if not found or found[-1]["kind"] != "table":
                found.append({"kind": "table", "rows": []})
            if not all(RULE.fullmatch(cell) for cell in cells):
                found[-1]["rows"].append(cells)
        elif line.startswith("    ") and not paragraph:
            if not found or found[-1]["kind"] != "code":
                found.append({"kind": "code", "text": line[4:]})
            else:
                found[-1]["text"] += "\n" + line[4:]
        elif not line.strip():
            end_paragraph()
            if found and found[-1]["kind"] == "table":
                found.append({"kind": "text", "text": ""})  # the next row begins another table
        else:
            paragraph.append(line.strip())
    end_paragraph()
    if fence:
        found.append({"kind": "code", "text": "\n".join(fence)})
    return [block for block in found if block.get("text") or block.get("rows")]


def _plain(text: str) -> str:
    return IMAGE.sub("", text).replace("**", "").replace("`", "").replace(r"\|", "|").strip()
