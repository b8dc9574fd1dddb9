"""Rollouts of host tasks: episodes as coroutines over the batcher, collated into `Samples`."""
