"""Reinforcement learning of language models that act together: sampling, rollouts, algorithms, the training loop.

Importing the package imports nothing else, so that reports and error messages come without waiting for JAX.
"""

__version__ = "0.1.0"
