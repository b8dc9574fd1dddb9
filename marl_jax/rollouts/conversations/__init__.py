"""Conversations of the seats of jitted games: prompts, KV caches and recorded rows."""
