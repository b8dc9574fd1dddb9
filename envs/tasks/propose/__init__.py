"""Proposer and solver: one seat writes programs with inputs, the other predicts their outputs.

The proposer is rewarded for problems that the solver solves sometimes (Absolute Zero). Every accepted problem has a
verified answer, because the sandbox runs its program twice.
"""
