r"""Workflows as plain data in configs: nodes prompt roles, and edges choose the next node.

    {"start": "draft", "max_steps": 5, "nodes": {
        "draft":  {"role": "writer", "prompt": "Write about {topic}.", "next": "review"},
        "review": {"role": "critic", "prompt": "{writer}\n\nIs it good?",
                   "next": [{"to": "end", "when": {"critic": "(?i)yes"}}, "revise"]},
        "revise": {"role": "writer", "prompt": "The critic says: {critic}", "next": "review"},
    }}

A node prompts one role, or several at once, which do not see each other's replies of this step:

    {"together": [{"role": "ann", "prompt": …}, {"role": "bob", "prompt": …}], "next": …}

`next` is the name of a node, "end", or a list of edges. The first edge whose condition holds is followed; the last one
has no condition. Without `next` the workflow ends. `start` has the same format. A list of nodes is short for a chain:
each node leads to the next one, and a node with `when` is skipped unless its condition holds.

A condition is {role: pattern}, where the last reply of every role must match (`re.search`), or a function of (values,
scores), given directly or by its name. The values are the columns and the last replies; the scores are {role: score of
its last reply, or None}. Functions must be deterministic, and fast because they run in the event loop.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.workflow.graph import END, Condition, Edge, Function, Node, Step, Workflow, WorkflowError, check


def read(data: Any, functions: Mapping[str, Function] | None = None) -> Workflow:
    """Read a workflow from data.

    Args:
        data: A list of steps, or a start and nodes.
        functions: Functions that conditions may name.
    """
    functions = functions or {}
    if isinstance(data, list | tuple):
        nodes, start, max_steps = _chain(data, functions)
    elif isinstance(data, Mapping):
        _check_keys("the workflow", data, ("start", "nodes", "max_steps"), needed=("start", "nodes"))
        if not isinstance(data["nodes"], Mapping) or not data["nodes"]:
            raise WorkflowError(f"nodes is {data['nodes']!r}, but must be {{name: node}}")
        nodes = {name: _node(name, value, functions) for name, value in data["nodes"].items()}
        start = _edges("the start", data["start"], functions)
        max_steps = data.get("max_steps")
    else:
        raise WorkflowError(f"the workflow is {data!r}, but must be a list of steps, or a start and nodes")
    return check(nodes, start, max_steps)


def _chain(data: Sequence, functions: Mapping[str, Function]) -> tuple[dict[str, Node], tuple[Edge, ...], None]:
    """Return the graph of a list of steps.

    Every node has an edge to each of the later ones, up to the first without a condition.
    """
    if not data:
        raise WorkflowError("the workflow has no steps")
    names, edges, steps = [], [], []
    for i, value in enumerate(data):
        where = f"step {i + 1}"
        own = {key: item for key, item in _mapping(where, value).items() if key != "when"}
        if "next" in own:
            raise WorkflowError(f"{where} has next, but the steps of a list are played in order; use a start and nodes")
        steps.append(_steps(where, own))
        names.append("_".join([*(step.role for step in steps[-1]), str(i + 1)]))
        edges.append(Edge(names[-1], _condition(where, value.get("when"), functions)))

    def after(i: int) -> tuple[Edge, ...]:
        later = edges[i:]
        certain = next((n for n, edge in enumerate(later) if edge.when is None), None)
        return (*later, Edge(END)) if certain is None else tuple(later[: certain + 1])

    nodes = {name: Node(name, steps[i], after(i + 1)) for i, name in enumerate(names)}
    return nodes, after(0), None


def _node(name: str, value: Any, functions: Mapping[str, Function]) -> Node:
    where = f"node {name!r}"
    if name == END:
        raise WorkflowError(f"a node is called {END!r}, which is reserved for the end; choose another name")
    if not isinstance(name, str) or not name:
        raise WorkflowError(f"a node is called {name!r}, but names must be non-empty strings")
    own = dict(_mapping(where, value))
    following = own.pop("next", END)
    if "when" in own:
        raise WorkflowError(f"{where} has when; conditions belong to the edges that lead to it")
    return Node(name, _steps(where, own), _edges(where, following, functions))


def _steps(where: str, own: Mapping[str, Any]) -> tuple[Step, ...]:
    if "together" not in own:
        return (_step(where, own),)
    _check_keys(where, own, ("together",))
    together = own["together"]
    if not isinstance(together, list | tuple) or not together:
        raise WorkflowError(f"{where}: together is {together!r}, but must be a list of steps")
    steps = tuple(_step(where, step) for step in together)
    if twice := [step.role for i, step in enumerate(steps) if step.role in {s.role for s in steps[:i]}]:
        raise WorkflowError(f"{where} prompts {twice[0]!r} twice at once; use two nodes")
    return steps


def _step(where: str, own: Any) -> Step:
    _check_keys(where, _mapping(where, own), tuple(f.name for f in dataclasses.fields(Step)), ("role", "prompt"))
    for key in ("role", "prompt", "system", "label"):
        value = own.get(key)
        if not isinstance(value, str) and (value is not None or key in ("role", "prompt")):
            raise WorkflowError(f"{where}: {key} is {value!r}, but must be a string")
    rewards = own.get("rewards")
    names = rewards if isinstance(rewards, list | tuple) else [rewards]
    if rewards is not None and (names is not rewards or not all(isinstance(name, str) for name in names)):
        raise WorkflowError(f"{where}: rewards is {rewards!r}, but must be a list of names")
    return Step(**{**own, "rewards": None if rewards is None else tuple(rewards)})


def _edges(where: str, value: Any, functions: Mapping[str, Function]) -> tuple[Edge, ...]:
    edges = []
    for edge in [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else [None]:
        if isinstance(edge, str):
            edge = {"to": edge}
        if not isinstance(edge, Mapping) or not isinstance(edge.get("to"), str):
            raise WorkflowError(
                f"{where} leads to {value!r}, but must lead to a name, or a list of names and {{to, when}}"
            )
        _check_keys(f"an edge of {where}", edge, ("to", "when"))
        edges.append(Edge(edge["to"], _condition(where, edge.get("when"), functions)))
    certain = [i for i, edge in enumerate(edges) if edge.when is None]
    if not certain:
        raise WorkflowError(f"{where} may have no edge to follow; remove the condition of the last one")
    if certain[0] < len(edges) - 1:
        raise WorkflowError(f"{where} never follows the edges after the one to {edges[certain[0]].to!r}, which has no "
                            "condition; put it last")  # fmt: skip
    return tuple(edges)


def _condition(where: str, value: Any, functions: Mapping[str, Function]) -> Condition | None:
    if value is None:
        return None
    if callable(value):
        return Condition(getattr(value, "__name__", type(value).__name__), function=value)
    if isinstance(value, str):
        if value not in functions:
            rule = (
                f"must be one of: {', '.join(functions)}" if functions else "the task has no functions for conditions"
            )
            raise WorkflowError(f"{where}: the condition is {value!r}, but {rule}")
        return Condition(value, function=functions[value])
    if not isinstance(value, Mapping) or not value or not all(isinstance(p, str) for p in value.values()):
        raise WorkflowError(f"{where}: the condition is {value!r}, but must be {{role: pattern}} or a function")
    patterns = {}
    for role, pattern in value.items():
        try:
            patterns[role] = re.compile(pattern)
        except re.error as error:
            raise WorkflowError(f"{where}: the pattern {pattern!r} is not a regular expression: {error}") from None
    return Condition(", ".join(f"{role}: {pattern}" for role, pattern in value.items()), patterns)


def _mapping(where: str, value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise WorkflowError(f"{where} is {value!r}, but must be a dict")
    return value


def _check_keys(where: str, data: Mapping, accepted: Sequence[str], needed: Sequence[str] = ()) -> None:
    for key in data:
        if key not in accepted:
            raise WorkflowError(f"{where} has {key!r}, but keys must be one of: {', '.join(accepted)}")
    for key in needed:
        if key not in data:
            raise WorkflowError(f"{where} has no {key}")
