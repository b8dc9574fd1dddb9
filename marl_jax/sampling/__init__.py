"""Sampling: pure functions that run inside any jitted program, and an engine for the host.

`draw` picks tokens from logits, `choice` picks among named actions, `decode` writes free text, all as functions of
arrays. `engine` wraps them with buckets and compiled programs, `batching` feeds it with requests that come one by one.
"""
