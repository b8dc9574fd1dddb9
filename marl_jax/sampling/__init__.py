"""Sampling: pure functions for jitted programs, and a continuous batcher for the host.

`draw` samples tokens from logits, `choice` samples one of several named actions, and `decode` generates free text, all
as functions of arrays. `engine` adds shape buckets and checks around the compiled `programs`. Two layers build on it: a
`Batcher` decodes requests of one model in one thread, and a `BatcherThread` owns the batchers of several models and
serves any thread or coroutine. `settings`, `conversation`, `requests` and `checks` define their inputs and outputs.
"""
