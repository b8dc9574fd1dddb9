"""Pictures in prompts: from tile codes to the embeddings of placeholder tokens.

A row has at most one picture, in its prompt. Samples store its codes (`envs.games.picture`), one number for each cell,
and every forward pass that reads the prompt draws and encodes it again, so that gradients reach the encoder.

Axis letters: C cells of a picture.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from envs.games.picture import Picture
from marl_jax.agents import messages
from marl_jax.agents.policy import Policy
from models.media import Media, index_of


def inputs(
    policy: Policy,
    params: dict,
    codes: jax.Array | None,
    tokens: jax.Array,
    positions: jax.Array,
    lengths: jax.Array,
) -> dict[str, Any]:
    """Return the arguments of `Model.forward` for rows with pictures or soft messages; {} for text.

    Args:
        policy: The policy.
        params: Parameters of the model that reads.
        codes: [B, C], tile codes of the pictures, or prompts of speakers (`messages.py`), or None.
        tokens: int32 [B, T].
        positions: int32 [B, T] or [T]. Positions of the tokens in their conversations.
        lengths: int32 [B]. Lengths of the prompts.
    """
    if policy.message or codes is None:
        return messages.inputs(policy, params, codes, tokens, lengths)
    index = places(policy, tokens)
    given: dict[str, Any] = {"media": Media(embeddings(policy, params, codes), index)}
    if policy.model.cfg.mrope_sections:
        given["positions"] = rotations(_drawn(policy), index, jnp.broadcast_to(positions, tokens.shape))
    return given


def embeddings(policy: Policy, params: dict, codes: jax.Array) -> jax.Array:
    """Encode pictures [B, C] to embeddings [B, C, D]."""
    picture, encoder = _drawn(policy), policy.model.vision
    assert encoder is not None
    layout = encoder.layout([picture.patch_grid[1:]])
    # Each tile is projected once, however often the pictures show it.
    tiles = encoder.project(params["vision"], jnp.asarray(picture.tile_patches), policy.dtype)
    patches = tiles[codes].reshape(codes.shape[0], -1, tiles.shape[-1])
    return encoder.encode(params["vision"], patches, layout, remat=policy.remat)


def places(policy: Policy, tokens: jax.Array) -> jax.Array:
    """Return the cell whose embedding each token reads, int32 [B, T]; -1 for text.

    Only the first C placeholders are cells: a completion may contain the token, too.
    """
    vision = policy.model.cfg.vision
    assert vision is not None
    index = index_of(tokens, vision.image_id)
    return jnp.where(index < _drawn(policy).n_cells, index, -1)


def rotations(picture: Picture, index: jax.Array, positions: jax.Array) -> jax.Array:
    """Return the time, row and column of each token for mRoPE, int32 [3, B, T].

    Args:
        picture: Drawing of the game.
        index: int32 [B, T], see `places`.
        positions: int32 [B, T], in any order, as on the branches of a prompt.
    """
    rows, columns = picture.shape
    start = jnp.max(jnp.where(index == 0, positions, -1), axis=1, keepdims=True)
    after = (start >= 0) & (positions >= start + picture.n_cells)
    text = positions - jnp.where(after, picture.n_cells - max(rows, columns), 0)
    inside, cell = index >= 0, jnp.maximum(index, 0)
    offsets = jnp.stack([jnp.zeros_like(cell), cell // columns, cell % columns])
    return jnp.where(inside, start + offsets, text).astype(jnp.int32)


def _drawn(policy: Policy) -> Picture:
    assert policy.picture is not None
    return policy.picture
