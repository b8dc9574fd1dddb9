"""Modes: what a command does, each a file or a folder."""
