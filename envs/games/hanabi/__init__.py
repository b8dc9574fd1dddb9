"""Hanabi: rules, bots, symmetries, drawings and text."""
