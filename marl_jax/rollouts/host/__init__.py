"""Rollouts of host tasks: coroutines that share one batcher, collated into `Samples`."""
