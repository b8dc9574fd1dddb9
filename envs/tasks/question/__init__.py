"""Questions with known answers: any dataset by config, and NLI, ARC and SciQ.

- `compare`: Reading and comparing answers.
- `template`: Prompts made of the fields of a row.
- `task`: The task.
- `sets`: Datasets with their readers, prompts and labels.
- `samples`: Small built-in samples, so that everything runs without data files.
"""
