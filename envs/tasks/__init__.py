"""Tasks: episodes in Python on the host, with free text, verifiers and tools.

This package does not import JAX. To add a task, subclass `envs.tasks.task.Task` and register the class below.
"""

from __future__ import annotations

import functools
import inspect
import typing
from typing import Any

from envs.parameters import check_names, check_types
from registries import Registry

if typing.TYPE_CHECKING:
    from envs.tasks.task import Task

TASKS = Registry("tasks")
TASKS.add("arc", "envs.tasks.question.sets:Arc")
TASKS.add("arithmetic", "envs.tasks.arithmetic:Arithmetic")
TASKS.add("arithmetic_debate", "envs.tasks.debate.task:ArithmeticDebate")
TASKS.add("code", "envs.tasks.code.task:Code")
TASKS.add("dataset", "envs.tasks.dataset_task:DatasetTask")
TASKS.add("debate", "envs.tasks.debate.task:Debate")
TASKS.add("debugging", "envs.tasks.debugging.task:Debugging")
TASKS.add("design", "envs.tasks.design.task:Design")
TASKS.add("discovery", "envs.tasks.discovery.task:Discovery")
TASKS.add("half_blind", "envs.tasks.planning.half_blind:HalfBlind")
TASKS.add("hidden_profile", "envs.tasks.hidden_profile.task:HiddenProfile")
TASKS.add("math", "envs.tasks.math.task:Math")
TASKS.add("negotiation", "envs.tasks.negotiation.task:Negotiation")
TASKS.add("nli", "envs.tasks.question.sets:Nli")
TASKS.add("planning", "envs.tasks.planning.task:Planning")
TASKS.add("program", "envs.tasks.program.task:AgentProgram")
TASKS.add("propose", "envs.tasks.propose.task:Propose")
TASKS.add("question", "envs.tasks.question.task:Question")
TASKS.add("retrieval", "envs.tasks.retrieval.task:Retrieval")
TASKS.add("sciq", "envs.tasks.question.sets:SciQ")
TASKS.add("search", "envs.tasks.search.task:Search")
TASKS.add("solver_checker", "envs.tasks.solver_checker:SolverChecker")
TASKS.add("sql", "envs.tasks.sql.task:Sql")
TASKS.add("story", "envs.tasks.story.task:Story")
TASKS.add("tools", "envs.tasks.tools.task:ToolQuestions")
TASKS.add("verilog", "envs.tasks.verilog.task:Verilog")
TASKS.add("workflow", "envs.tasks.design.execution:Execution")


def make_task(name: str, **params: Any) -> Task:
    """Build a task from its name and parameters.

        make_task("math", dataset="gsm8k", form="roles")

    Raises:
        ValueError: If there is no such task, or it does not accept the parameters.
    """
    make = TASKS.get(name)
    accepted = inspect.signature(make).parameters.values()
    if not any(param.kind == param.VAR_KEYWORD for param in accepted):
        check_names(name, params, [param.name for param in accepted])
    function = make.func if isinstance(make, functools.partial) else make
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # a type that is imported for type checkers only, or a callable without hints
        hints = {}
    check_types(name, params, hints)
    missing = [param.name for param in accepted if param.default is param.empty and param.kind != param.VAR_KEYWORD]
    if missing := [param for param in missing if param not in params]:
        raise ValueError(f"{name} needs the parameter {missing[0]!r}")
    return make(**params)
