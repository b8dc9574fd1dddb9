"""Workflows as declared data: which role is asked what, and where the episode continues. Read, played and drawn."""
