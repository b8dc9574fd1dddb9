"""Debate: agents answer a question alone, read each other's answers, revise, and vote.

- `task`: The task and its episodes.
- `questions`: Sources of questions with known answers.
- `prompts`: Prompts of the agents.
- `credit`: Rewards of the answers.
- `votes`: The vote, and metrics of a debate.
- `scoring`: Scores of answers, from the known answer or a verifier.
"""
