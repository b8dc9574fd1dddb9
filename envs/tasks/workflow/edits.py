r"""Edits of designs, such as another review, or one node less.

An edit is plain data, as a model writes it:

    {"edit": "add_review", "node": "solve", "prompt": "Find mistakes.\n{question}\n{solver}"}
    {"edit": "add_vote", "node": "solve", "voters": 3}
    {"edit": "add_loop", "node": "solve", "prompt": "Reply OK or name the mistake.\n{question}\n{solver}"}
    {"edit": "drop_node", "node": "review"}
    {"edit": "change_prompt", "node": "solve", "prompt": "Solve it step by step.\n{question}"}

`apply` returns another design, which `read_design` has accepted. Prompts are optional where a default exists.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Mapping
from typing import Any

from envs.tasks.workflow.designs import MOST_STEPS, DesignError, read_design
from envs.tasks.workflow.graph import END

REVIEW = (
    "Question: {question}\n\nSolution:\n{ROLE}\n\nCheck every step of the solution, and name the first mistake, if any."
)
REVISE = "A reviewer says:\n{REVIEWER}\n\nQuestion: {question}\n\nWrite the whole solution again, corrected if needed."
CHECK = "Question: {question}\n\nSolution:\n{ROLE}\n\nIs the solution right? Reply with OK, or name the mistake."
PROMPTS = (
    "{question}",
    "{question}\n\nThink step by step, and check every step before the next one.",
    "Restate what is asked, list the given facts, and then solve it.\n\n{question}",
    "Solve this in as few steps as possible.\n\n{question}",
    "{question}\n\nSolve it in two different ways, compare the results, and give the right one.",
)
"""Prompts of random edits."""
VOTERS = (2, 3, 4, 5)


def apply(design: Mapping[str, Any], edit: Any) -> dict[str, Any]:
    """Return an edited copy of a design with a start and nodes.

    Raises:
        DesignError: The edit or its result is invalid.
    """
    if not isinstance(edit, Mapping) or edit.get("edit") not in list(EDITS):
        given = edit.get("edit") if isinstance(edit, Mapping) else edit
        raise DesignError("invalid_graph", f"edit is {given!r:.80}, but must be one of: {', '.join(EDITS)}")
    make, accepted = EDITS[edit["edit"]]
    for key in edit:
        if key not in ("edit", "node", *accepted):
            raise DesignError(
                "invalid_graph", f"the edit has {key!r:.80}, but keys must be: node, {', '.join(accepted)}"
            )
    result, name = copy.deepcopy(dict(design)), edit.get("node")
    if not isinstance(name, str) or name not in result["nodes"]:
        raise DesignError("invalid_graph", f"node is {name!r:.80}, but must be one of: {', '.join(result['nodes'])}")
    if not isinstance(edit.get("prompt", ""), str):
        raise DesignError("invalid_graph", f"prompt is {edit['prompt']!r:.80}, but must be a string")
    make(result, name, edit)
    read_design(result)
    return result


def random_edit(design: Mapping[str, Any], rng: random.Random) -> dict[str, Any]:
    """Return a random edit, which may be invalid for the design."""
    kind, node = rng.choice(list(EDITS)), rng.choice(list(design["nodes"]))
    edit: dict[str, Any] = {"edit": kind, "node": node}
    if kind == "change_prompt":
        edit["prompt"] = rng.choice(PROMPTS)
    if kind == "add_vote":
        edit["voters"] = rng.choice(VOTERS)
    return edit


def _add_review(design: dict[str, Any], name: str, edit: Mapping[str, Any]) -> None:
    node = _single(design, name)
    review, revise = _new(design, f"{name}_review"), _new(design, f"{name}_revise")
    reviewer = _new_role(design, "reviewer")
    design["nodes"][review] = {
        "role": reviewer, "prompt": edit.get("prompt") or REVIEW.replace("ROLE", node["role"]), "next": revise,
    }  # fmt: skip
    design["nodes"][revise] = {
        "role": node["role"], "prompt": REVISE.replace("REVIEWER", reviewer), "next": node.get("next", END),
    }  # fmt: skip
    node["next"] = review
    _lengthen(design, 2)


def _add_vote(design: dict[str, Any], name: str, edit: Mapping[str, Any]) -> None:
    node, voters = _single(design, name), edit.get("voters", 3)
    if isinstance(voters, bool) or not isinstance(voters, int) or voters not in VOTERS:
        raise DesignError(
            "invalid_graph", f"voters is {voters!r:.80}, but must be one of: {', '.join(map(str, VOTERS))}"
        )
    if node.get("next", END) != END:
        raise DesignError("invalid_graph", f"node {name!r} does not lead to the end, but a vote must be the last step")
    prompt = edit.get("prompt") or node["prompt"]
    roles: list[str] = []
    for _ in range(voters):
        roles.append(_new_role(design, "voter", roles))
    design["nodes"][name] = {"together": [{"role": role, "prompt": prompt} for role in roles]}


def _add_loop(design: dict[str, Any], name: str, edit: Mapping[str, Any]) -> None:
    node = _single(design, name)
    following = node.get("next", END)
    if not isinstance(following, str):
        raise DesignError("invalid_graph", f"node {name!r} has conditions already, so it cannot begin a loop")
    check, again = _new(design, f"{name}_check"), _new(design, f"{name}_again")
    checker = _new_role(design, "checker")
    design["nodes"][check] = {
        "role": checker, "prompt": edit.get("prompt") or CHECK.replace("ROLE", node["role"]),
        "next": [{"to": following, "when": {checker: "OK"}}, again],
    }  # fmt: skip
    design["nodes"][again] = {"role": node["role"], "prompt": REVISE.replace("REVIEWER", checker), "next": check}
    node["next"] = check
    design["max_steps"] = min(max(design.get("max_steps") or 0, len(design["nodes"])) + 2, MOST_STEPS)


def _drop_node(design: dict[str, Any], name: str, edit: Mapping[str, Any]) -> None:
    following = design["nodes"].pop(name).get("next", END)
    if not isinstance(following, str):
        raise DesignError("invalid_graph", f"node {name!r} has conditions, so it cannot be dropped")

    def moved(to: Any) -> Any:
        if isinstance(to, list):
            return [moved(edge) for edge in to]
        if isinstance(to, dict):
            return {**to, "to": moved(to.get("to"))}
        return following if to == name else to

    design["start"] = moved(design["start"])
    for node in design["nodes"].values():
        node["next"] = moved(node.get("next", END))


def _change_prompt(design: dict[str, Any], name: str, edit: Mapping[str, Any]) -> None:
    if not edit.get("prompt"):
        raise DesignError("invalid_graph", "the edit has no prompt")
    node = design["nodes"][name]
    for step in node.get("together", [node]):
        step["prompt"] = edit["prompt"]


EDITS = {
    "add_review": (_add_review, ("prompt",)),
    "add_vote": (_add_vote, ("prompt", "voters")),
    "add_loop": (_add_loop, ("prompt",)),
    "drop_node": (_drop_node, ()),
    "change_prompt": (_change_prompt, ("prompt",)),
}
"""Edits by name, with the keys that they accept."""


def _single(design: Mapping[str, Any], name: str) -> dict[str, Any]:
    node = design["nodes"][name]
    if "together" in node:
        raise DesignError("invalid_graph", f"node {name!r} prompts several roles, but must prompt one for this edit")
    return node


def _new(design: Mapping[str, Any], name: str) -> str:
    return next(one for one in (name, *(f"{name}_{i}" for i in range(2, 100))) if one not in design["nodes"])


def _new_role(design: Mapping[str, Any], name: str, more: list[str] | None = None) -> str:
    nodes = design["nodes"].values()
    taken = {step["role"] for node in nodes for step in node.get("together", [node])} | set(more or ())
    return next(one for one in (name, *(f"{name}_{i}" for i in range(2, 100))) if one not in taken)


def _lengthen(design: dict[str, Any], steps: int) -> None:
    if design.get("max_steps") is not None:
        design["max_steps"] = min(design["max_steps"] + steps, MOST_STEPS)
