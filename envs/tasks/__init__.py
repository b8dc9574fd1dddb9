"""Tasks: episodes in plain Python on the host, with free text, verifiers and tools. No JAX here.

A task is a file and a line: a class that satisfies `envs.tasks.task.Task`, and its name below.
"""

from registries import Registry

TASKS = Registry("tasks")
TASKS.add("arithmetic", "envs.tasks.arithmetic:Arithmetic")
TASKS.add("arithmetic_debate", "envs.tasks.arithmetic_debate:ArithmeticDebate")
TASKS.add("solver_checker", "envs.tasks.solver_checker:SolverChecker")
