"""Environments for agents: jitted `games`, and `tasks` in Python on the host."""
