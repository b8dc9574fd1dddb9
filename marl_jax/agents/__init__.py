"""Agents: models as policies, how they answer, how their answers are scored, and who sits where."""
