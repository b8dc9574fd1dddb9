"""Modes of `launch.py`, one module each."""
