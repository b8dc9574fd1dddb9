"""Knowledge retrieval: a searcher brings passages, and a writer answers with citations.

- `searchers.py`: scripted searchers.
- `citations.py`: citations in answers, and their measures.
- `task.py`: episodes, prompts, rewards and metrics.
"""
