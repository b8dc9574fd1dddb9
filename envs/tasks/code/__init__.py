"""Problems to program: readers of published files, grading in the sandbox, and the task `code`.

rows.py                      what a problem is
readers.py, contests.py      published files; asserts.py and private_tests.py for them
sources.py, sample.py        data sets by name, and the built-in one
extract.py                   programs and test cases in answers
values.py, harness.py        values that leave a program's process, and how they are compared
grading.py                   a program on tests
rewards.py, prompts.py       of coder and tester
task.py, predict.py          the episodes
"""
