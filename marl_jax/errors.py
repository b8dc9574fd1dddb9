"""Errors that a user can fix, which the command line prints without a traceback."""


class RunError(Exception):
    """An error that ends a run; the exit status of the command line is 1."""


class ConfigError(RunError, ValueError):
    """An invalid config, with one line per problem; the exit status is 2."""

    def __init__(self, problems: list[str]):
        self.problems = problems
        super().__init__("\n".join(problems))


class CheckpointError(RunError):
    """A checkpoint that cannot be read or written, or belongs to another run."""


class RunStopped(RunError):
    """A reason to save the run and stop, such as a limit of cost."""


class LostProcess(RunError):
    """An error for another process of the run that no longer responds."""


def user_errors() -> tuple[type[Exception], ...]:
    """Return the types of errors that a user can fix."""
    # Imported here because models import JAX.
    from envs.games.borders import MergeError
    from envs.tasks.data import DataError
    from models.errors import ModelFileError
    from models.fetch import FetchError

    return RunError, MergeError, DataError, FetchError, ModelFileError


def nearest(size: int, by: int) -> tuple[int, ...]:
    """Return the positive multiples of `by` just below and above `size`."""
    below = size // by * by
    return tuple(n for n in (below, below + by) if n > 0)


def not_divisible(field: str, size: int, by: int, what: str) -> str:
    """Return the problem with a field that is not a multiple of `by`.

    Args:
        field: Dotted name of the field.
        size: Value of the field.
        by: Required divisor.
        what: Description of the divisor, such as "algo.group_size".
    """
    near = " or ".join(str(n) for n in nearest(size, by))
    divisor = what if "=" in what else f"{what} ({by})"
    return f"config.{field} is {size}, but must be a multiple of {divisor}, such as {near}"
