"""Programming problems: dataset readers, sandboxed grading and the `code` task.

- `rows.py`: the format of a problem.
- `readers.py`, `contests.py`: readers for published files, with `asserts.py` and `private_tests.py` as helpers.
- `sources.py`, `sample.py`: datasets by name, including the built-in sample.
- `extract.py`: programs and test cases in completions.
- `values.py`: reading, printing and comparing the values that programs return.
- `grading.py`, `calls.py`: running programs on tests, in the calling process or in a worker process.
- `rewards.py`, `prompts.py`: rewards and prompts of coder and tester.
- `task.py`, `predict.py`: the episodes.
"""
