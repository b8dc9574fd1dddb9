"""Hidden-profile questions, after Stasser and Titus (1985): each seat holds a part of the facts.

- `questions.py`: the generator, its splits, and facts mentioned in messages.
- `task.py`: the episodes, prompts and rewards.
"""
