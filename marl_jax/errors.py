"""Errors that a user can mend: shown as one line, without a traceback."""


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
    from models.fetch import FetchError
    from models.hf_config import ConfigError as ModelConfigError
    from models.weights.errors import WeightsError

    return RunError, MergeError, FetchError, ModelConfigError, WeightsError
