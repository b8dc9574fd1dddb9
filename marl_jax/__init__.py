"""Reinforcement learning for teams of language models.

Importing the package does not import JAX, so that reports and error messages appear quickly.
"""

__version__ = "0.1.0"
