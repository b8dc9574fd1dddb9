"""Discovery of laws in tables: a program predicts a column from the others.

- `tables`: Tables, their splits of rows, columns that can be predicted, and R².
- `sources`, `sample`: Datasets, and a built-in sample.
- `task`: The task.
"""
