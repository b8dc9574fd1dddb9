"""Media in prompts of games: pictures, sounds and tables of numbers, drawn inside jit.

A position is stored as a few small numbers (codes), from which the input of an encoder is computed where it is needed.
`envs.games.picture` has pictures; this module has the others, and several media in one prompt:

    medium = Media((Sound(recordings, heard), Numbers((6, 2), 6, shown)))
    codes = medium.codes(state, seat)                  # uint8[C]; inside jit
    png(medium.host_pixels(codes))                     # what the model reads, as a file for people

A seat reads in its media what it reads in the text: nothing that is hidden from it is in the codes.
"""

import abc
import base64
import dataclasses
import functools
import struct
import zlib
from collections.abc import Callable
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import glyphs
from envs.games.game import State


class Medium(abc.ABC):
    """Something that a seat reads in the place of text.

    Subclasses are frozen dataclasses. Axis letter: C codes of a position.
    """

    encoder: ClassVar[str]
    """Name of the encoder in `ModelConfig`."""

    cells: Callable[[State, jax.Array], jax.Array]
    """Function `cells(state, seat)` that returns the codes inside jit, int [C]."""

    @property
    def parts(self) -> tuple["Medium", ...]:
        """The media of one encoder each, in the order of their codes."""
        return (self,)

    @property
    @abc.abstractmethod
    def n_codes(self) -> int:
        """C: number of codes."""

    @property
    @abc.abstractmethod
    def dtype(self) -> np.dtype:
        """Dtype of the codes."""

    @abc.abstractmethod
    def host_pixels(self, codes: jax.Array | np.ndarray) -> np.ndarray:
        """Draw codes [C] for people, on the host: uint8 [H, W, 3]."""

    def codes(self, state: State, seat: jax.Array | int) -> jax.Array:
        """Return the codes of a position as `seat` reads it: uint8 or uint16 [C]."""
        return self.cells(state, jnp.asarray(seat, jnp.int32)).reshape(self.n_codes).astype(self.dtype)

    def file(self, state: State, seat: int) -> bytes:
        """Draw a position as a PNG file (host only)."""
        return png(self.host_pixels(jax.device_get(self._jitted(state, jnp.int32(seat)))))

    def uri(self, state: State, seat: int) -> str:
        """Draw a position as a data URI of a PNG file (host only)."""
        return "data:image/png;base64," + base64.b64encode(self.file(state, seat)).decode()

    @functools.cached_property
    def _jitted(self) -> Callable[[State, jax.Array], jax.Array]:
        return jax.jit(self.codes)


@dataclasses.dataclass(frozen=True, eq=False)
class Sound(Medium):
    """Recordings that a seat hears one after the other.

    Attributes:
        recordings: float32 [K, S]. All recordings, from -1 to 1 at 16 kHz; S is a multiple of 160.
        length: C, number of recordings in a prompt.
        cells: Function `cells(state, seat)` that returns the recordings inside jit, int [C].
    """

    recordings: np.ndarray
    length: int
    cells: Callable[[State, jax.Array], jax.Array]

    encoder: ClassVar[str] = "audio"

    @property
    def n_codes(self) -> int:
        """C: number of recordings in a prompt."""
        return self.length

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the codes."""
        return np.dtype(np.uint8 if len(self.recordings) <= 256 else np.uint16)

    def samples(self, codes: jax.Array) -> jax.Array:
        """Return the sound of codes [..., C] inside jit: float32 [..., C · S]."""
        return jnp.asarray(self.recordings)[codes].reshape(*codes.shape[:-1], -1)

    def host_pixels(self, codes: jax.Array | np.ndarray) -> np.ndarray:
        """Draw a spectrogram, low tones at the bottom: uint8 [H, W, 3]."""
        sound = self.recordings[np.asarray(codes)].reshape(-1, 160)
        power = np.log10(np.abs(np.fft.rfft(sound, axis=1)[:, :56]) + 1e-3)
        shades = 255 * (power - power.min()) / max(np.ptp(power), 1e-6)
        return np.repeat(np.kron(shades.T[::-1], np.ones((1, 4)))[..., None], 3, axis=2).astype(np.uint8)


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers(Medium):
    """A table of whole numbers from 0 to 255.

    Attributes:
        shape: Number of rows and columns.
        cells: Function `cells(state, seat)` that returns the numbers row by row inside jit, int [C].
    """

    shape: tuple[int, int]
    cells: Callable[[State, jax.Array], jax.Array]

    encoder: ClassVar[str] = "table"

    @property
    def n_codes(self) -> int:
        """C: number of numbers."""
        return self.shape[0] * self.shape[1]

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the codes."""
        return np.dtype(np.uint8)

    def host_pixels(self, codes: jax.Array | np.ndarray) -> np.ndarray:
        """Draw the digits of the table: uint8 [H, W, 3]."""
        rows = np.asarray(codes).reshape(self.shape)
        width = max(len(str(number)) for number in rows.flat)
        lines = "\n".join(" ".join(str(number).rjust(width) for number in row) for row in rows)
        ink = np.pad(np.kron(glyphs.bitmap(lines), np.ones((2, 2), bool)), 4)
        return np.repeat(np.where(ink, 34, 255)[..., None], 3, axis=2).astype(np.uint8)


@dataclasses.dataclass(frozen=True, eq=False)
class Media(Medium):
    """Several media of one prompt, whose codes are concatenated.

    Attributes:
        media: The media of one encoder each, in their order in the prompt.
    """

    media: tuple[Medium, ...]

    encoder: ClassVar[str] = ""

    @property
    def parts(self) -> tuple[Medium, ...]:
        """The media, in the order of their codes."""
        return self.media

    @property
    def n_codes(self) -> int:
        """C: number of codes of all media."""
        return sum(part.n_codes for part in self.parts)

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the codes, the largest one of the media."""
        return max((part.dtype for part in self.parts), key=lambda dtype: dtype.itemsize)

    def cells(self, state: State, seat: jax.Array) -> jax.Array:
        """Return the codes of all media inside jit, int [C]."""
        return jnp.concatenate([part.codes(state, seat).astype(jnp.int32) for part in self.parts])

    def host_pixels(self, codes: jax.Array | np.ndarray) -> np.ndarray:
        """Draw the media below each other: uint8 [H, W, 3]."""
        drawn = [part.host_pixels(own) for part, own in zip(self.parts, self.split(np.asarray(codes)), strict=True)]
        width = max(image.shape[1] for image in drawn)
        return np.concatenate(
            [np.pad(x, ((0, 4), (0, width - x.shape[1]), (0, 0)), constant_values=255) for x in drawn]
        )

    def split(self, codes):
        """Return the codes of each medium, [..., C]."""
        ends = np.cumsum([part.n_codes for part in self.parts])
        return [codes[..., end - part.n_codes : end] for end, part in zip(ends, self.parts, strict=True)]


def png(pixels: np.ndarray) -> bytes:
    """Encode pixels, uint8 [H, W, 3], as a PNG file."""
    height, width, _ = pixels.shape
    rows = np.concatenate([np.zeros((height, 1), np.uint8), pixels.reshape(height, -1)], axis=1)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(rows.tobytes(), 9)), (b"IEND", b""))
    parts = (struct.pack(">I", len(d)) + k + d + struct.pack(">I", zlib.crc32(k + d)) for k, d in chunks)
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)
