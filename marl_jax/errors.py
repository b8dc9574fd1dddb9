"""Errors that a user can fix, shown as one line without a traceback, and the words of their messages."""

import difflib
from collections.abc import Iterable


class RunError(Exception):
    """A run that cannot go on; `launch.py` prints the message and exits with status 1."""


class ConfigError(RunError, ValueError):
    """A config that is refused, exit status 2; `problems` has one line for each reason."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class CheckpointError(RunError):
    """A checkpoint that cannot be written, or that belongs to another run."""


def user_errors() -> tuple[type[Exception], ...]:
    """Every kind of error that a user can mend; imported late, because the models bring JAX along."""
    from envs.games.borders import MergeError
    from envs.tasks.data import DataError
    from models.errors import ModelFileError
    from models.fetch import FetchError

    return RunError, MergeError, DataError, FetchError, ModelFileError


def did_you_mean(word: str, known: Iterable[str], cutoff: float = 0.5) -> str:
    """A hint at the nearest known word, or nothing; `cutoff` is how much they must have in common, 1 being all."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f"; did you mean {near[0]}?" if near else ""


def nearest(size: int, by: int) -> tuple[int, ...]:
    """The multiples of `by` around `size`, without 0."""
    below = size // by * by
    return tuple(n for n in (below, below + by) if n > 0)


def not_divisible(field: str, size: int, by: int, what: str) -> str:
    """The problem with a field whose value is no multiple of `by`, which is called `what`."""
    near = " or ".join(str(n) for n in nearest(size, by))
    return f"config.{field} is {size}, not a multiple of {what if '=' in what else f'{what}, {by}'}; nearest: {near}"
