"""The shapes of the encoders of media other than images, as frozen, hashable dataclasses."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class AudioConfig:
    """The shape of an audio encoder, see `models/audio.py`.

    Attributes:
        n_layers: Number of layers.
        d_model: Width.
        n_heads: Number of attention heads.
        d_ff: Width of the feed-forward network.
        n_mels: Number of mel channels of a frame.
        max_frames: Maximum number of log-mel frames, one per 10 ms.
        merge: Number of encoded frames, one per 20 ms, that become one embedding.
        norm_eps: Epsilon of the norms.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    n_mels: int = 80
    max_frames: int = 3000
    merge: int = 4
    norm_eps: float = 1e-5

    def __post_init__(self):
        _check_sizes("audio", self, "n_layers", "d_model", "n_heads", "d_ff", "n_mels", "max_frames", "merge")
        if self.d_model % (2 * self.n_heads):
            raise ValueError(f"audio.d_model is {self.d_model}, but must be a multiple of {2 * self.n_heads}")
        if self.max_frames % (2 * self.merge):
            raise ValueError(f"audio.max_frames is {self.max_frames}, but must be a multiple of {2 * self.merge}")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """The shape of an encoder of tables and graphs, see `models/structured.py`.

    Attributes:
        n_layers: Number of layers.
        d_model: Width.
        n_heads: Number of attention heads.
        d_ff: Width of the feed-forward network.
        n_columns: Number of numbers of a row or node.
        n_frequencies: Number of frequencies that encode a number; the period doubles from one to the next.
        shortest: Shortest period.
        norm_eps: Epsilon of the norms.
    """

    n_layers: int
    d_model: int
    n_heads: int
    d_ff: int
    n_columns: int
    n_frequencies: int = 8
    shortest: float = 0.5
    norm_eps: float = 1e-6

    def __post_init__(self):
        _check_sizes("table", self, "n_layers", "d_model", "n_heads", "d_ff", "n_columns", "n_frequencies")
        if self.d_model % self.n_heads:
            raise ValueError(f"table.d_model is {self.d_model}, but must be a multiple of n_heads: {self.n_heads}")
        if not self.shortest > 0:
            raise ValueError(f"table.shortest is {self.shortest}, but must be > 0")


@dataclasses.dataclass(frozen=True)
class ResamplerConfig:
    """The shape of a resampler, see `models/resampler.py`.

    Attributes:
        n_layers: Number of layers.
        n_heads: Number of attention heads.
        d_ff: Width of the feed-forward network.
        n_queries: Number of learned queries, and of embeddings that enter the sequence.
        norm_eps: Epsilon of the norms.
    """

    n_layers: int
    n_heads: int
    d_ff: int
    n_queries: int
    norm_eps: float = 1e-6

    def __post_init__(self):
        _check_sizes("resampler", self, "n_layers", "n_heads", "d_ff", "n_queries")


def _check_sizes(prefix: str, cfg, *names: str) -> None:
    """Raise ValueError unless the named fields are integers >= 1."""
    for name in names:
        value = getattr(cfg, name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise ValueError(f"{prefix}.{name} is {value!r}, but must be an integer >= 1")
