"""Tasks: episodes in Python on the host, with free text, verifiers and tools.

This package does not import JAX. To add a task, subclass `envs.tasks.task.Task` and register the class below.
"""

from registries import Registry

TASKS = Registry("tasks")
TASKS.add("arc", "envs.tasks.question.sets:Arc")
TASKS.add("arithmetic", "envs.tasks.arithmetic:Arithmetic")
TASKS.add("arithmetic_debate", "envs.tasks.debate.task:ArithmeticDebate")
TASKS.add("code", "envs.tasks.code.task:Code")
TASKS.add("debate", "envs.tasks.debate.task:Debate")
TASKS.add("math", "envs.tasks.math.task:Math")
TASKS.add("nli", "envs.tasks.question.sets:Nli")
TASKS.add("planning", "envs.tasks.planning.task:Planning")
TASKS.add("program", "envs.tasks.program.task:AgentProgram")
TASKS.add("question", "envs.tasks.question.task:Question")
TASKS.add("sciq", "envs.tasks.question.sets:SciQ")
TASKS.add("solver_checker", "envs.tasks.solver_checker:SolverChecker")
