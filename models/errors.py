"""Errors about files of models, and how a reader turns whatever it stumbles over into one of them."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Iterator
from pathlib import Path


class ModelFileError(ValueError):
    """A file or folder of a model that cannot be used; the message names it and what is wrong in it."""


MALFORMED = (
    ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError, EOFError,
    struct.error,
)  # fmt: skip
"""What reading a malformed file raises, depending on where its contents first stop making sense."""


@contextlib.contextmanager
def refuse_malformed(kind: type[ModelFileError], path: str | Path) -> Iterator[None]:
    """Raises `kind` with the name of the file where its contents do not make sense; a `ModelFileError` passes."""
    try:
        yield
    except ModelFileError:
        raise
    except MALFORMED as error:
        raise kind(_message(path, error)) from error
    except BaseException as error:
        # Rust code raises Exception itself, or a PanicException, which has no name that could be imported.
        if type(error) is not Exception and type(error).__name__ != "PanicException":
            raise
        raise kind(_message(path, error)) from error


def _message(path: str | Path, error: BaseException) -> str:
    text = (str(error).splitlines() or [""])[0][:400]
    if isinstance(error, ValueError) and text.startswith(str(path)):
        return text  # the reader has said it already
    kind = "" if type(error) is ValueError else f"{type(error).__name__}: "
    return f"{path} is damaged or malformed: {kind}{text}"


class WeightsError(ModelFileError):
    """A weight file, or a folder of them, that cannot be used; the message names the file and what is wrong in it."""


class TokenizerError(ModelFileError):
    """A tokenizer file, or a folder of them, that cannot be used."""
