"""Story writing: a learner and a co-author add sentences in turn, under constraints.

- `briefs.py`: the generator of constraints.
- `scoring.py`: sentences, and the rule that scores a story.
- `coauthors.py`: scripted co-authors.
- `task.py`: episodes, prompts, rewards and metrics.
"""
