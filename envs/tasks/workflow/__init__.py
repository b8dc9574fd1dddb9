"""Workflows declared as data: prompts of roles, and edges to the next step."""
