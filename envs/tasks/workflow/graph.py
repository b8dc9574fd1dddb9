"""The graph of a workflow: nodes that ask roles, edges between them, and what makes a graph playable.

`envs/tasks/workflow/reading.py` reads it from plain data and describes how that is written.
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
    """The data is no workflow that can be played."""


@dataclasses.dataclass(frozen=True)
class Step:
    """What one role is asked at a node.

    prompt   {name} is a column of the dataset, or the last reply of the role of that name
    system   the role's system text, where this is its first step
    rewards  names of the reward functions that score the reply; None: all, if the workflow ends with it
    label    the kind of answer, see `Chat.say`
    """

    role: str
    prompt: str
    system: str | None = None
    rewards: tuple[str, ...] | None = None
    label: str | None = None


@dataclasses.dataclass(frozen=True)
class Condition:
    """Patterns for the last replies of roles, or a function; `text` is what a drawing shows."""

    text: str
    patterns: Mapping[str, re.Pattern] = dataclasses.field(default_factory=dict)
    function: Function | None = None

    def holds(self, values: Mapping[str, Any], scores: Mapping[str, Any]) -> bool:
        """Whether it holds after what was said so far."""
        if self.function is not None:
            return bool(self.function(values, scores))
        return all(pattern.search(values[role]) for role, pattern in self.patterns.items())


@dataclasses.dataclass(frozen=True)
class Edge:
    """Where a node leads to, and on what condition; None: on none."""

    to: str
    when: Condition | None = None


@dataclasses.dataclass(frozen=True)
class Node:
    """Steps that are taken at once, and edges, of which the last has no condition."""

    name: str
    steps: tuple[Step, ...]
    edges: tuple[Edge, ...]

    @property
    def is_last(self) -> bool:
        """Whether the workflow ends here, whatever is replied."""
        return all(edge.to == END for edge in self.edges)


@dataclasses.dataclass(frozen=True)
class Workflow:
    """A graph that was read and checked.

    nodes      by name, in the order in which the start reaches them, nearest first
    start      edges to the first node
    max_steps  nodes that an episode visits at most
    """

    nodes: Mapping[str, Node]
    start: tuple[Edge, ...]
    max_steps: int

    @functools.cached_property
    def steps(self) -> tuple[Step, ...]:
        """Of all nodes."""
        return tuple(step for node in self.nodes.values() for step in node.steps)

    @functools.cached_property
    def roles(self) -> tuple[str, ...]:
        """In the order in which they first speak."""
        return tuple(dict.fromkeys(step.role for step in self.steps))

    @functools.cached_property
    def columns(self) -> tuple[str, ...]:
        """The names in prompts and system texts that are no role's."""
        names = [name for step in self.steps for name in _names(step)]
        return tuple(dict.fromkeys(name for name in names if name not in self.roles))

    def follow(self, edges: Sequence[Edge], values: Mapping[str, Any], scores: Mapping[str, Any]) -> Node | None:
        """The node that is next; None at the end."""
        taken = next(edge for edge in edges if edge.when is None or edge.when.holds(values, scores))
        return self.nodes.get(taken.to)


# ---------------------------------------------------------------------------------------------------- checks


def check(nodes: Mapping[str, Node], start: tuple[Edge, ...], max_steps: Any) -> Workflow:
    """The workflow, if every episode of it has a next step and an end."""
    for where, edge in _all_edges(nodes, start):
        if edge.to != END and edge.to not in nodes:
            raise WorkflowError(f"{where} leads to {edge.to!r}; accepted: {', '.join([*nodes, END])}")
    ways = {name: _targets(node.edges) for name, node in nodes.items()}
    reached = list(_reached(_targets(start), ways))
    if lost := [name for name in nodes if name not in reached]:
        raise WorkflowError(f"node {lost[0]!r} cannot be reached from the start")
    after = {name: set(_reached(ways[name], ways)) for name in nodes}
    if stuck := [name for name in reached if name != END and END not in after[name]]:
        raise WorkflowError(f"there is no way from node {stuck[0]!r} to the end")
    if max_steps is None:
        if loops := [name for name in reached if name != END and name in after[name]]:
            raise WorkflowError(f"node {loops[0]!r} is in a loop; set max_steps, which ends it")
    elif isinstance(max_steps, bool) or not isinstance(max_steps, int) or max_steps < 1:
        raise WorkflowError(f"max_steps is {max_steps!r}; accepted: 1 or more")
    elif max_steps < (shortest := _distance(start, ways)):
        raise WorkflowError(f"max_steps is {max_steps}, and the shortest way to the end takes {shortest} steps")
    workflow = Workflow({name: nodes[name] for name in reached if name != END}, start, max_steps or len(nodes))
    _check_names(workflow, after)
    return workflow


def _check_names(workflow: Workflow, after: Mapping[str, set[str]]) -> None:
    """Roles in conditions are roles, and a prompt quotes those only that may have spoken before."""
    for where, edge in _all_edges(workflow.nodes, workflow.start):
        if unknown := sorted(set(edge.when.patterns if edge.when else ()) - set(workflow.roles)):
            known = ", ".join(workflow.roles)
            raise WorkflowError(f"{where}: a condition waits for {unknown[0]!r}; there is no such role, only {known}")
    for node in workflow.nodes.values():
        earlier = [other for other in workflow.nodes.values() if node.name in after[other.name]]
        before = {step.role for other in earlier for step in other.steps}
        for name in [name for step in node.steps for name in _names(step)]:
            if name in workflow.roles and name not in before:
                raise WorkflowError(f"node {node.name!r} quotes {name!r}, who cannot have spoken before")


def _all_edges(nodes: Mapping[str, Node], start: Sequence[Edge]) -> Iterator[tuple[str, Edge]]:
    """Every edge, and where it begins."""
    yield from (("the start", edge) for edge in start)
    yield from ((f"node {node.name!r}", edge) for node in nodes.values() for edge in node.edges)


def _names(step: Step) -> list[str]:
    return fields_of(step.prompt) + fields_of(step.system or "")


def _targets(edges: Sequence[Edge]) -> list[str]:
    return [edge.to for edge in edges]


def _reached(first: Sequence[str], ways: Mapping[str, Sequence[str]]) -> Iterator[str]:
    """Everything that can be reached, `first` included, nearest first and in the order of the edges."""
    seen = dict.fromkeys(first)
    queue = list(seen)
    while queue:
        name = queue.pop(0)
        yield name
        new = [to for to in dict.fromkeys(ways.get(name, ())) if to not in seen]
        seen.update(dict.fromkeys(new))
        queue += new


def _distance(start: Sequence[Edge], ways: Mapping[str, Sequence[str]]) -> int:
    """Nodes on the shortest way to the end; at least one, also where a condition may leave all of them out."""
    steps, here = 0, set(_targets(start))
    while END not in here:
        steps, here = steps + 1, {to for name in here for to in ways[name]}
    return max(steps, 1)
