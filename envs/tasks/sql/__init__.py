"""Text to SQL, judged by execution on several databases.

- `engine`: Runs untrusted queries in SQLite.
- `copies`: Databases with other rows, on which a query must agree as well.
- `compare`: Compares results.
- `sources`, `sample`: Datasets, and a built-in sample.
- `task`: The task.
"""
