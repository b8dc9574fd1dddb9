"""Questions with known answers: any dataset by config alone, and NLI, ARC and SciQ as entries on it.

compare.py   how an answer is read and compared
template.py  prompts made of a row's fields
task.py      the task
sets.py      datasets: their readers, prompts and labels
samples.py   a few rows of each, so that everything runs without a file
"""
