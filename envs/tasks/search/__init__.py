"""Question answering with a search engine.

- `index`: BM25 over passages.
"""
