"""Question answering with a search engine.

- `index`: BM25 over passages.
- `scoring`: Exact match and F1 of answers.
- `sources`, `sample`: Questions and passages, and a built-in sample.
- `task`: The task.
"""
