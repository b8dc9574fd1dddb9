"""Worlds for agents: `games` are XLA programs, `tasks` are Python on the host."""
