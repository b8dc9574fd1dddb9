"""The one exception of the tokenizer readers."""

from models.errors import ModelFileError


class TokenizerError(ModelFileError):
    """A tokenizer file, or a folder of them, that cannot be used."""
