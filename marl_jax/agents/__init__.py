"""Policies and teams: generating completions, scoring them, and assigning seats."""
