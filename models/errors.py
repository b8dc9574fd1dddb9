"""Errors about model files, and a context manager that converts other errors to them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path


class ModelFileError(ValueError):
    """An error about a model file or folder; the message names it and the problem."""


MALFORMED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError, EOFError,
    struct.error,
)  # fmt: skip
"""Errors that reading a malformed file can raise, depending on where its contents are first invalid."""


@contextlib.contextmanager
def refuse_malformed(kind: type[ModelFileError], path: str | Path) -> Iterator[None]:
    """Convert errors caused by malformed contents of a file to `kind`.

    The message names the file. A `ModelFileError` is passed on unchanged.
    """
    try:
        yield
    except ModelFileError:
        raise
    except MALFORMED as error:
        raise kind(_message(path, error)) from error
    except BaseException as error:
        # Rust code raises a plain Exception, or a PanicException, which cannot be imported.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise kind(_message(path, error)) from error


def _message(path: str | Path, error: BaseException) -> str:
    """Return the error message for a malformed file."""
    text = (str(error).splitlines() or [""])[0][:400]
    if isinstance(error, ValueError) and text.startswith(str(path)):
        return text  # the message already names the file
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{path} is damaged or malformed: {kind}{text}"


class WeightsError(ModelFileError):
    """An error about weight files; the message names the file and the problem."""


class TokenizerError(ModelFileError):
    """An error about tokenizer files."""
