"""Debugging: a context agent plants a bug in a program, and the learner repairs it.

- `mutations.py`: bugs of scripted context agents.
- `planting.py`: verification of bugs in the sandbox.
- `task.py`: episodes, prompts, rewards and metrics.
"""
