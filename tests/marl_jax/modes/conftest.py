"""Shared by the tests of runs: programs that are compiled once for all runs with equal parts."""

import pytest

from marl_jax.setup import trainer

BOOKKEEPING = ("name", "alarm", "stop_when", "checkpoint", "eval", "log")
"""Config fields that no program of the training step depends on."""


@pytest.fixture(scope="module")
def shared_programs():
    """Let games of this module whose configs differ in bookkeeping only share rollout and update."""
    made, make = {}, trainer.programs

    def programs(setup, rollout, *given):
        if not rollout.jitted:
            return make(setup, rollout, *given)
        parts = str(sorted((name, str(part)) for name, part in setup.config.items() if name not in BOOKKEEPING))
        if parts not in made:
            made[parts] = make(setup, rollout, *given)
        return made[parts]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(trainer, "programs", programs)
        yield
