"""Graph of a workflow: nodes that prompt roles, edges between them, and validity checks.

`envs/tasks/workflow/reading.py` reads it from plain data and describes the format.
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from envs.tasks.question.template import fields_of

END = "end"

Function = Callable[[Mapping[str, Any], Mapping[str, Any]], Any]
"""(values, scores) -> whether a condition holds."""


class WorkflowError(ValueError):
    """Data that does not describe a playable workflow."""


@dataclasses.dataclass(frozen=True)
class Step:
    """The prompt of one role at a node.

    Attributes:
        role: Name of the role.
        prompt: Template in which {name} is a column of the dataset, or the last reply of the role of that name.
        system: System prompt of the role, used if this is its first step.
        rewards: Names of the reward functions that score the reply. None uses all of them if the workflow ends here.
        label: Kind of reply; see `Chat.say`.
    """

    role: str
    prompt: str
    system: str | None = None
    rewards: tuple[str, ...] | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Condition:
    """A condition of an edge: patterns for the last replies of roles, or a function.

    Attributes:
        text: Text in drawings.
        patterns: Pattern of each role.
        function: Function of (values, scores).
    """

    text: str
    patterns: Mapping[str, re.Pattern] = dataclasses.field(default_factory=dict)
    function: Function | None = None

    def holds(self, values: Mapping[str, Any], scores: Mapping[str, Any]) -> bool:
        """Return whether the condition holds after the replies so far."""
        if self.function is not None:
            return bool(self.function(values, scores))
        return all(pattern.search(values[role]) for role, pattern in self.patterns.items())


@dataclasses.dataclass(frozen=True)
class Edge:
    """An edge to a node.

    Attributes:
        to: Name of the node, or "end".
        when: Condition of the edge, or None.
    """

    to: str
    when: Condition | None = None


@dataclasses.dataclass(frozen=True)
class Node:
    """Steps that are played at the same time, and edges to the next node.

    The last edge has no condition.
    """

    name: str
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]

    @property
    def is_last(self) -> bool:
        """Whether the workflow always ends after this node."""
        return all(edge.to == END for edge in self.edges)


@dataclasses.dataclass(frozen=True)
class Workflow:
    """A valid workflow.

    Attributes:
        nodes: Nodes by name, in the order of their distance from the start.
        start: Edges to the first node.
        max_steps: Maximum number of nodes that an episode visits.
    """

    nodes: Mapping[str, Node]
    start: tuple[Edge, ...]
    max_steps: int

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """Steps of all nodes."""
        return tuple(step for node in self.nodes.values() for step in node.steps)

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        """Roles, in the order in which they first speak."""
        return tuple(dict.fromkeys(step.role for step in self.steps))

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """Names in prompts and system prompts that are not roles."""
        names = [name for step in self.steps for name in _names(step)]
        return tuple(dict.fromkeys(name for name in names if name not in self.roles))

    def follow(self, edges: Sequence[Edge], values: Mapping[str, Any], scores: Mapping[str, Any]) -> Node | None:
        """Return the next node, or None at the end."""
        taken = next(edge for edge in edges if edge.when is None or edge.when.holds(values, scores))
        return self.nodes.get(taken.to)


# -------------------------------------------------------------------------------------------------------------- checks


def check(nodes: Mapping[str, Node], start: tuple[Edge, ...], max_steps: Any) -> Workflow:
    """Return the workflow if every episode has a next step and can end."""
    for where, edge in _all_edges(nodes, start):
        if edge.to != END and edge.to not in nodes:
            raise WorkflowError(f"{where} leads to {edge.to!r}, but must lead to one of: {', '.join([*nodes, END])}")
    successors = {name: _targets(node.edges) for name, node in nodes.items()}
    reached = list(_reached(_targets(start), successors))
    if lost := [name for name in nodes if name not in reached]:
        raise WorkflowError(f"node {lost[0]!r} cannot be reached from the start")
    after = {name: set(_reached(successors[name], successors)) for name in nodes}
    if stuck := [name for name in reached if name != END and END not in after[name]]:
        raise WorkflowError(f"there is no path from node {stuck[0]!r} to the end")
    if max_steps is None:
        if loops := [name for name in reached if name != END and name in after[name]]:
            raise WorkflowError(f"node {loops[0]!r} is in a loop; set max_steps to end it")
    elif isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise WorkflowError(f"max_steps is {max_steps!r}, but must be an integer >= 1")
    elif max_steps < (shortest := _distance(start, successors)):
        raise WorkflowError(f"max_steps is {max_steps}, but the shortest path to the end has {shortest} steps")
    workflow = Workflow({name: nodes[name] for name in reached if name != END}, start, max_steps or len(nodes))
    _check_names(workflow, after)
    return workflow


def _check_names(workflow: Workflow, after: Mapping[str, set[str]]) -> None:
    """Check the roles in conditions, and that prompts quote only earlier speakers."""
    for where, edge in _all_edges(workflow.nodes, workflow.start):
        if unknown := sorted(set(edge.when.patterns if edge.when else ()) - set(workflow.roles)):
            known = ", ".join(workflow.roles)
            raise WorkflowError(f"{where}: a condition is about {unknown[0]!r}, but roles must be one of: {known}")
    for node in workflow.nodes.values():
        earlier = [other for other in workflow.nodes.values() if node.name in after[other.name]]
        before = {step.role for other in earlier for step in other.steps}
        for name in [name for step in node.steps for name in _names(step)]:
            if name in workflow.roles and name not in before:
                raise WorkflowError(f"node {node.name!r} quotes {name!r}, which cannot have spoken before")


def _all_edges(nodes: Mapping[str, Node], start: Sequence[Edge]) -> Iterator[tuple[str, Edge]]:
    """Yield every edge with a description of its origin."""
    yield from (("the start", edge) for edge in start)
    yield from ((f"node {node.name!r}", edge) for node in nodes.values() for edge in node.edges)


def _names(step: Step) -> list[str]:
    return fields_of(step.prompt) + fields_of(step.system or "")


def _targets(edges: Sequence[Edge]) -> list[str]:
    return [edge.to for edge in edges]


def _reached(first: Sequence[str], successors: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Yield all reachable nodes, including `first`, nearest first.

    Nodes at the same distance are in the order of the edges.
    """
    seen = dict.fromkeys(first)
    queue = list(seen)
    while queue:
        name = queue.pop(0)
        yield name
        new = [to for to in dict.fromkeys(successors.get(name, ())) if to not in seen]
        seen.update(dict.fromkeys(new))
        queue += new


def _distance(start: Sequence[Edge], successors: Mapping[str, Sequence[str]]) -> int:
    """Return the number of nodes on the shortest path to the end, at least 1."""
    steps, here = 0, set(_targets(start))
    while END not in here:
        steps, here = steps + 1, {to for name in here for to in successors[name]}
    return max(steps, 1)
