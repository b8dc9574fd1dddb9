"""Prompts of the designer of workflows, and of a model that edits one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.workflow.designs import MOST_NODES, MOST_STEPS, SINGLE
from envs.tasks.workflow.edits import EDITS, VOTERS

SYSTEM = "You design workflows in which several agents answer questions together."
EXAMPLE = {
    "start": "solve",
    "max_steps": 6,
    "nodes": {
        "solve": {"role": "solver", "prompt": "Solve this step by step.\n{question}", "next": "check"},
        "check": {
            "role": "checker",
            "prompt": "{question}\n\nSolution:\n{solver}\n\nReply with OK if it is right, or name the mistake.",
            "next": [{"to": "end", "when": {"checker": "OK"}}, "again"],
        },
        "again": {
            "role": "solver",
            "prompt": "A checker says: {checker}\nSolve it again.\n{question}",
            "next": "check",
        },
    },
}
FORMAT = (
    "A workflow is JSON. Every node has a role, a prompt and the next node. A prompt may quote {question} and the last "
    "reply of a role that has spoken, as {role}. A node may also prompt several roles at once, as "
    '{"together": [{"role": …, "prompt": …}, …], "next": …}; the most common of their answers then counts. Instead of '
    'the next node there may be a list of edges {"to": node, "when": {role: words in its last reply}}, which ends with '
    'a node. The workflow ends at "end", and its answer is that of the last reply with an answer. A loop '
    f"needs max_steps. There are at most {MOST_NODES} nodes, and {MOST_STEPS} replies in an episode."
)


def design(shown: Sequence[Mapping[str, str]]) -> str:
    """Return the designer's prompt with questions of the dataset."""
    questions = "\n".join(f"- {row['question']}" for row in shown)
    return (
        f"{FORMAT}\n\nFor example:\n```json\n{json.dumps(EXAMPLE)}\n```\n\n"
        f"These are questions of a dataset:\n{questions}\n\n"
        "Write a workflow that answers other questions of this dataset, as right as possible. End with the workflow in "
        "one block that begins with ```json and ends with ```."
    )


def edit(workflow: Mapping[str, Any], score: float, failures: Sequence[str], tried: Sequence[str]) -> str:
    """Return the prompt for an edit of a workflow.

    Args:
        workflow: The workflow to edit.
        score: Its share of right answers.
        failures: Questions that it answers wrongly.
        tried: Earlier edits of this workflow with their scores.
    """
    parts = [
        FORMAT,
        f"This workflow answers {score:.0%} of the questions right:\n```json\n{json.dumps(workflow)}\n```",
    ]
    if failures:
        parts.append("It fails on these questions:\n" + "\n".join(f"- {question}" for question in failures))
    if tried:
        parts.append("These edits of it were tried:\n" + "\n".join(f"- {line}" for line in tried))
    parts.append(
        f'Write one edit that improves it, as JSON with "edit" ({", ".join(EDITS)}) and "node". add_review, add_loop '
        f'and change_prompt take a "prompt", add_vote takes "voters" ({VOTERS[0]} to {VOTERS[-1]}). For example:\n'
        '```json\n{"edit": "change_prompt", "node": "'
        f'{next(iter(SINGLE["nodes"]))}", "prompt": "Think step by step.\\n{{question}}"}}\n```'
    )
    return "\n\n".join(parts)
