"""Loading and exporting weights: Hugging Face folders and GGUF files."""

from models.errors import WeightsError
from models.weights.export import export
from models.weights.load import load, read_config

__all__ = ["WeightsError", "export", "load", "read_config"]
