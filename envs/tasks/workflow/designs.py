"""Workflows written by models: read from text, and limited before anything is sampled.

A design is the JSON of `reading.py` with fewer features: steps have a role and a prompt only, the only column is
{question}, and patterns in conditions are plain words, because a regular expression could take forever. LIMITS bound
the size, and so the cost of an episode.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any

from envs.tasks.code.extract import blocks
from envs.tasks.workflow.graph import Workflow, WorkflowError
from envs.tasks.workflow.reading import read

QUESTION = "question"
SINGLE: dict[str, Any] = {"start": "solve", "nodes": {"solve": {"role": "solver", "prompt": "{question}"}}}
"""The workflow with which a search starts: one step."""
MOST_NODES, MOST_STEPS, MOST_ROLES, LONGEST_PROMPT, LONGEST_TEXT = 8, 12, 8, 1200, 20_000
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]{0,63}")
_WORDS = re.compile(r"(\(\?i\))?[\w ,:!'-]{1,60}")
REASONS = ("no_json", "not_json", "invalid_graph", "not_allowed")
"""Reasons for which a design is rejected: no block, a block that is not JSON, an invalid graph, and a limit."""


class DesignError(WorkflowError):
    """A rejected design.

    Attributes:
        reason: One of REASONS.
    """

    def __init__(self, reason: str, message: str):
        super().__init__(message)
        self.reason = reason


def read_json(text: str) -> Any:
    """Return the JSON value of the last block or of the whole text.

    The block is labelled json or has no label.

    Raises:
        DesignError: There is none.
    """
    if len(text) > LONGEST_TEXT:
        raise DesignError("not_allowed", f"the text has {len(text)} characters, but must have at most {LONGEST_TEXT}")
    inside = [block.text for block in blocks(text) if block.label in ("json", "")]
    whole = text.strip()
    source = inside[-1] if inside else whole if whole[:1] in ("{", "[") else None
    if source is None:
        raise DesignError("no_json", "there is no block labelled json")
    try:
        return json.loads(source)
    except (ValueError, RecursionError) as error:
        raise DesignError("not_json", f"the block is not JSON: {str(error)[:200]}") from None


def read_design(data: Any) -> Workflow:
    """Read a workflow within the limits.

    Raises:
        DesignError: The graph is invalid or exceeds a limit.
    """
    try:
        workflow = read(data)
    except WorkflowError as error:
        raise DesignError("invalid_graph", str(error)[:400]) from None
    for problem in _excesses(workflow):
        raise DesignError("not_allowed", problem)
    return workflow


def canonical(data: Any) -> str:
    """Return equal text for equal designs."""
    return json.dumps(data, sort_keys=True)


def _excesses(workflow: Workflow) -> Iterable[str]:
    steps = max(len(node.steps) for node in workflow.nodes.values()) * workflow.max_steps
    for what, count, most in (
        ("nodes", len(workflow.nodes), MOST_NODES), ("roles", len(workflow.roles), MOST_ROLES),
        ("steps in an episode", max(steps, len(workflow.steps)), MOST_STEPS),
    ):  # fmt: skip
        if count > most:
            yield f"the workflow has {count} {what}, but must have at most {most}"
    for name in (*workflow.nodes, *workflow.roles):
        if not _NAME.fullmatch(name):
            yield f"a node or role is called {name!r:.60}, but names must be letters, digits and _"
    for column in workflow.columns:
        if column != QUESTION:
            yield f"a prompt quotes {{{column}}}, which must be {{{QUESTION}}} or the name of a role"
    for step in workflow.steps:
        if not step.prompt.strip() or len(step.prompt) > LONGEST_PROMPT:
            yield f"a prompt has {len(step.prompt)} characters, but must have 1 to {LONGEST_PROMPT}"
        if step.system is not None or step.label is not None or step.rewards is not None:
            yield "a step has system, label or rewards, but steps must have a role and a prompt only"
    edges = [*workflow.start, *(edge for node in workflow.nodes.values() for edge in node.edges)]
    for pattern in [p.pattern for edge in edges if edge.when for p in edge.when.patterns.values()]:
        if not _WORDS.fullmatch(pattern):
            yield f"a condition has the pattern {pattern!r:.80}, but patterns must be plain words"
    if not any("{question}" in step.prompt for step in workflow.steps):
        yield "no prompt quotes {question}"
