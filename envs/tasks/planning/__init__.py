"""Planning puzzles for a tool agent and a plan agent, as in the AT-GRPO paper.

- `levels.py`: levels of the games' pools as rows.
- `actions.py`: lists of actions in completions and program outputs.
- `rules.py`: the games' rules in plain Python, which check a list of actions.
- `prompts.py`: prompts of both agents.
- `task.py`: the episodes and rewards.
- `half_view.py`: halves of Plan-Path levels, and the best plan with one half.
- `half_blind.py`: the task of a scout and a half-blind executor.
"""
