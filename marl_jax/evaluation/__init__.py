"""Evaluation of policies in games, on tasks and as verifiers, with confidence intervals."""
