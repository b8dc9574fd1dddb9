"""Pictures of positions, drawn inside jit, for models that see.

A picture is a grid of cells, each of which shows one of the game's tiles. A tile is a square of 28 pixels with a color
and a few characters, which is one token of Qwen2.5-VL. A position is stored as the tile numbers of its cells (codes);
pixels and patches are gathered from the tiles:

    picture = make_picture(game, style="full")
    codes = picture.codes(state, seat)                 # uint8[C]; inside jit
    pixels = picture.pixels(codes)                     # uint8[H, W, 3]; inside jit
    patches = picture.patches(codes)                   # float32[4·C, 1176]; inside jit
    png(picture.host_pixels(codes))                    # the same pixels as a file, on the host

A seat sees in its picture what it reads in the text: hidden cards, cells and moves are not in the codes.

Axis letters: C cells of a picture, row by row; H and W its height and width in pixels.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import glyphs
from envs.games.game import Game, State
from envs.games.medium import Medium
from envs.games.medium import png as png
from envs.games.roles import puzzle_state

CELL, PATCH, FRAMES = 28, 14, 2
"""Sides of cells and patches in pixels, and the number of frames of a patch: a still picture is repeated."""
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
"""Normalization of the colors for the encoder of Qwen2.5-VL."""
MARGIN = 2
INK, PAPER, SHADE, DARK = "#222222", "#ffffff", "#d8d8d8", "#8a8a8a"
HIDDEN = "?"


@dataclasses.dataclass(frozen=True)
class Tile:
    """The content of one cell.

    Attributes:
        sign: Lines of characters, as large as they fit; "" for none.
        ink: Color of the characters.
        paper: Color of the background.
    """

    sign: str = ""
    ink: str = INK
    paper: str = PAPER

    def pixels(self) -> np.ndarray:
        """Draw the tile: uint8 [28, 28, 3]."""
        drawn = np.empty((CELL, CELL, 3), np.uint8)
        drawn[:] = _rgb(self.paper)
        if not self.sign:
            return drawn
        bits = glyphs.bitmap(self.sign)
        room = CELL - 2 * MARGIN
        scale = min(room // bits.shape[0], room // bits.shape[1])
        if not scale:
            raise ValueError(f"sign is {self.sign!r}, but must fit into {room} by {room} pixels")
        bits = np.kron(bits, np.ones((scale, scale), bool))
        top, left = (CELL - bits.shape[0]) // 2, (CELL - bits.shape[1]) // 2
        drawn[top : top + bits.shape[0], left : left + bits.shape[1]][bits] = _rgb(self.ink)
        return drawn


HIDDEN_TILE = Tile(HIDDEN, DARK, SHADE)


@dataclasses.dataclass(frozen=True, eq=False)
class Picture(Medium):
    """Drawing of a game for the seats that read it.

    Attributes:
        shape: Number of rows and columns of cells.
        tiles: All K tiles.
        cells: Function `cells(state, seat)` that returns the tile of each cell inside jit, int [C].
    """

    shape: tuple[int, int]
    tiles: tuple[Tile, ...]
    cells: Callable[[State, jax.Array], jax.Array]

    encoder: ClassVar[str] = "vision"

    @property
    def n_codes(self) -> int:
        """C: number of cells, and of tokens of an encoded picture."""
        return self.shape[0] * self.shape[1]

    @property
    def size(self) -> tuple[int, int]:
        """Height and width in pixels."""
        return self.shape[0] * CELL, self.shape[1] * CELL

    @property
    def patch_grid(self) -> tuple[int, int, int]:
        """Frames, rows and columns of patches, as the encoder counts them."""
        return 1, self.size[0] // PATCH, self.size[1] // PATCH

    @property
    def dtype(self) -> np.dtype:
        """Dtype of the codes."""
        return np.dtype(np.uint8 if len(self.tiles) <= 256 else np.uint16)

    @functools.cached_property
    def tile_pixels(self) -> np.ndarray:
        """Pixels of all tiles: uint8 [K, 28, 28, 3]."""
        return np.stack([tile.pixels() for tile in self.tiles])

    @functools.cached_property
    def tile_patches(self) -> np.ndarray:
        """The four patches of all tiles: float32 [K, 4, 1176], see `patches`."""
        colors = (self.tile_pixels.astype(np.float32) / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        sides = CELL // PATCH
        split = colors.reshape(len(self.tiles), sides, PATCH, sides, PATCH, 3).transpose(0, 1, 3, 5, 2, 4)
        repeated = np.repeat(split[:, :, :, :, None], FRAMES, axis=4)
        return np.ascontiguousarray(repeated.reshape(len(self.tiles), sides**2, -1))

    def pixels(self, codes: jax.Array) -> jax.Array:
        """Draw codes [C] inside jit: uint8 [H, W, 3]."""
        drawn = jnp.asarray(self.tile_pixels)[codes].reshape(*self.shape, CELL, CELL, 3)
        return drawn.transpose(0, 2, 1, 3, 4).reshape(*self.size, 3)

    def patches(self, codes: jax.Array) -> jax.Array:
        """Return the normalized patches in the order of Qwen2.5-VL, float32 [4·C, 1176], inside jit.

        The four patches of a cell follow each other, and the channels of a patch are (color, frame, row, column). Since
        a cell is one token, the patches of cell k are the rows 4k to 4k + 3.
        """
        return jnp.asarray(self.tile_patches)[codes].reshape(-1, self.tile_patches.shape[-1])

    def host_pixels(self, codes: jax.Array | np.ndarray) -> np.ndarray:
        """Draw codes [C] on the host: uint8 [H, W, 3]."""
        drawn = np.zeros((*self.size, 3), np.uint8)
        for cell, code in enumerate(np.asarray(codes).reshape(-1)):
            top, left = cell // self.shape[1] * CELL, cell % self.shape[1] * CELL
            drawn[top : top + CELL, left : left + CELL] = self.tile_pixels[code]
        return drawn


def grid_picture(game: Game, shape: tuple[int, int], tiles: Sequence[Tile], cells: Callable[..., jax.Array]) -> Picture:
    """Return the picture of a board whose cells a seat may not all see.

    Args:
        game: The game, possibly a puzzle with two roles.
        shape: Height and width of the board.
        tiles: Tiles of the codes of the board.
        cells: Function `cells(state)` that returns the code of each cell, int [C]. With two roles, it gets the state of
            the puzzle.
    """

    def seen(state: State, seat: jax.Array) -> jax.Array:
        codes, visible = cells(puzzle_state(state)).reshape(-1), game.visible(state, seat)
        return codes if visible is None else jnp.where(visible, codes, len(tiles))

    return Picture(shape, (*tiles, HIDDEN_TILE), seen)


def _rgb(color: str) -> tuple[int, ...]:
    return tuple(bytes.fromhex(color.removeprefix("#")))
