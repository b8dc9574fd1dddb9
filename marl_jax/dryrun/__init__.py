"""Compilation of a run for hardware that is not present."""
