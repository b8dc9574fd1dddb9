"""Tic-tac-toe: rules, bots, symmetries, drawings and text."""
