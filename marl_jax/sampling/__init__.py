"""Sampling: pure functions that run inside any jitted program, and an engine for the host.

`draw` picks tokens from logits, `choice` picks among named actions, `decode` writes free text, all as functions of
arrays. `engine` wraps them with buckets and checks around the compiled `programs`. `batcher` feeds it with requests
that come one by one, `batchers` puts several models behind one interface, and `batcher_thread` lets any thread or
coroutine ask. `settings`, `conversation`, `requests` and `checks` are what callers hand in, get back and must not do.
"""
