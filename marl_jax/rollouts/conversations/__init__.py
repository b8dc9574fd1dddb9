"""Conversations of seats in jitted games: what a turn reads, and the rows that training reads."""
