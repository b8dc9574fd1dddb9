"""Benchmarks of the sampler, the learner, the server, the games and the sandbox."""
