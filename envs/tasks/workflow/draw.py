"""SVG drawings of workflows, with a row for each distance from the start.

Edges to the next row are straight. Edges that skip rows run along the left side; edges within a row or back run along
the right side.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from envs.games import svg as shapes
from envs.tasks.workflow.graph import END, Edge, Node, Workflow

START = ""  # no node has this name
BOX_HEIGHT, PILL, ROW, GAP, LANE, MARGIN = 44, 24, 84, 48, 34, 16
LETTER = 7.2  # mean width of a letter of size 13
LONGEST = 34  # maximum number of letters of a condition
COLOURS = ("#dbe9f6", "#fde3c8", "#dcefd9", "#f3dcea", "#e6e0f3", "#f5efc7")
INK, QUIET = "#2b2f36", "#5c6470"

ARROW = (
    f'<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
    f'<path d="M0 0L8 4L0 8z" fill="{QUIET}"/></marker></defs>'
)

Box = tuple[float, float, float, float]
"""x and y of the center, width and height."""


def draw(workflow: Workflow) -> str:
    """Draw a workflow as an SVG document."""
    rows = _rows(workflow)
    boxes, row_of = _place(workflow, rows)
    left = min(x - width / 2 for x, _, width, _ in boxes.values())
    right = max(x + width / 2 for x, _, width, _ in boxes.values())
    ends = [left, right]  # x coordinates that the drawing must contain
    lines, labels = [], []
    for origin, to, words in sorted(_links(workflow), key=lambda link: abs(row_of[link[1]] - row_of[link[0]])):
        down, width = row_of[to] - row_of[origin], LETTER * len(words)
        if down == 1:
            path, (x, y) = _straight(boxes[origin], boxes[to])
            side = 1
            ends.append(x + width)
        else:  # in a new lane outside everything drawn so far, short edges first
            side = -1 if down > 1 else 1
            left, right = (left - LANE, right) if side < 0 else (left, right + LANE)
            path, (x, y) = _along(boxes[origin], boxes[to], left if side < 0 else right, side)
            left, right = (left - width, right) if side < 0 else (left, right + width)
            ends += [left, right]
        lines.append(f'<path d="{path}" fill="none" stroke="{QUIET}" marker-end="url(#arrow)"/>')
        labels += [_label(x, y, words, "start" if side > 0 else "end")] if words else []
    shift = MARGIN - min(ends)
    size = round(max(ends) + shift + MARGIN), round(max(y + h / 2 for _, y, _, h in boxes.values()) + MARGIN)
    drawn = [_node(workflow, workflow.nodes.get(name), name, box) for name, box in boxes.items()]
    moved = "\n".join([f'<g transform="translate({shift:g} 0)">', *lines, *drawn, *labels, "</g>"])
    return shapes.document(*size, [ARROW, moved])


def _links(workflow: Workflow) -> list[tuple[str, str, str]]:
    """Return (from, to, conditions) for every pair of connected nodes."""
    conditions: dict[tuple[str, str], list[str]] = {}
    for edge in workflow.start:
        conditions.setdefault((START, edge.to), []).append(_condition(edge))
    for node in workflow.nodes.values():
        for edge in node.edges:
            conditions.setdefault((node.name, edge.to), []).append(_condition(edge))
    return [(*pair, " or ".join(words) if all(words) else "") for pair, words in conditions.items()]


def _rows(workflow: Workflow) -> list[list[str]]:
    """Group names by their distance from the start, with the end last."""
    distance = {edge.to: 1 for edge in workflow.start if edge.to != END}
    for name, node in workflow.nodes.items():  # nearest first
        for edge in node.edges:
            if edge.to != END:
                distance.setdefault(edge.to, distance[name] + 1)
    rows: list[list[str]] = [[START], *([] for _ in range(max(distance.values()))), [END]]
    for name in workflow.nodes:
        rows[distance[name]].append(name)
    return rows


def _place(workflow: Workflow, rows: Sequence[Sequence[str]]) -> tuple[dict[str, Box], dict[str, int]]:
    boxes, row_of = {}, {}
    for number, names in enumerate(rows):
        sizes = [_size(workflow.nodes.get(name), name) for name in names]
        x = -(sum(width for width, _ in sizes) + GAP * (len(names) - 1)) / 2
        for name, (width, height) in zip(names, sizes, strict=True):
            boxes[name] = (x + width / 2, MARGIN + PILL / 2 + number * ROW, width, height)
            row_of[name] = number
            x += width + GAP
    return boxes, row_of


def _size(node: Node | None, name: str) -> tuple[float, float]:
    if node is None:
        return 60, PILL
    return max(96, LETTER * max(len(name), len(_roles(node))) + 24), BOX_HEIGHT


def _node(workflow: Workflow, node: Node | None, name: str, box: Box) -> str:
    x, y, width, height = box
    if node is None:
        pill = shapes.rect(x - width / 2, y - height / 2, width, height, "#ffffff", INK, rx=height / 2)
        return pill + shapes.text(x, y + 4, name or "start", 12, INK)
    color = COLOURS[workflow.roles.index(node.steps[0].role) % len(COLOURS)]
    outline = shapes.rect(x - width / 2, y - height / 2, width, height, color, INK, rx=6)
    return outline + shapes.text(x, y - 3, name, 13, INK) + shapes.text(x, y + 13, _roles(node), 12, QUIET)


def _roles(node: Node) -> str:
    return " + ".join(step.role for step in node.steps)


def _condition(edge: Edge) -> str:
    words = "" if edge.when is None else " ".join(edge.when.text.split())
    return words if len(words) <= LONGEST else words[: LONGEST - 1] + "…"


def _straight(origin: Box, target: Box) -> tuple[str, tuple[float, float]]:
    """Return a straight path and the position of its label."""
    x1, y1, x2, y2 = origin[0], origin[1] + origin[3] / 2, target[0], target[1] - target[3] / 2
    return f"M{x1:g} {y1:g}L{x2:g} {y2:g}", ((x1 + x2) / 2 + 6, (y1 + y2) / 2 + 4)


def _along(origin: Box, target: Box, lane: float, side: int) -> tuple[str, tuple[float, float]]:
    """Return a path along a lane outside the nodes, and the position of its label."""
    x1, x2 = origin[0] + side * origin[2] / 2, target[0] + side * target[2] / 2
    y1, y2 = origin[1] + 6, target[1] + (-6 if target[3] > PILL else 0)
    middle = (y1 + y2) / 2
    path = f"M{x1:g} {y1:g}C{lane:g} {y1:g} {lane:g} {y1:g} {lane:g} {middle:g}S{lane:g} {y2:g} {x2:g} {y2:g}"
    return path, (lane + side * 6, middle + 4)


def _label(x: float, y: float, words: str, anchor: str) -> str:
    """Return a label with a white outline, which is readable where it crosses a line."""
    place = f'x="{x:g}" y="{y:g}" font-size="12" text-anchor="{anchor}"'
    rim = f'fill="{QUIET}" stroke="#ffffff" stroke-width="4" paint-order="stroke"'
    return f"<text {place} {rim}>{escape(words)}</text>"
