"""The one exception of the weight readers and writers."""

from models.errors import ModelFileError


class WeightsError(ModelFileError):
    """A weight file, or a folder of them, that cannot be used; the message names the file and what is wrong in it."""
