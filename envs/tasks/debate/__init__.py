"""Debate: agents answer a question alone, read each other's answers, answer again, and vote.

task.py       the episode
questions.py  what is debated: any task that asks questions with known answers
prompts.py    what the agents read
credit.py     what each answer is paid
votes.py      the vote, and metrics of a debate
scoring.py    where scores come from: the known answer, or a verifier
"""
