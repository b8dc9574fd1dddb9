"""The one exception of the weight readers and writers."""


class WeightsError(ValueError):
    """A weight file, or a folder of them, that cannot be used; the message names the file and what is wrong in it."""
