"""Media in prompts: from stored codes to the embeddings of placeholder tokens.

A row has the pictures, sounds and tables of one position, in its prompt. Samples store their codes
(`envs.games.medium`), a few small numbers. Every forward pass that reads the prompt draws and encodes them again, so
that gradients reach the encoders.

Axis letters: C codes of a row, M embeddings of its media.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.medium import Medium, Numbers, Sound
from envs.games.picture import Picture
from marl_jax.agents import messages
from marl_jax.agents.policy import Policy
from models.audio import HOP, AudioEncoder, log_mel
from models.config import ModelConfig
from models.media import Media, index_of
from models.resampler import Resampler
from models.structured import TableEncoder


def inputs(
    policy: Policy,
    params: dict,
    codes: jax.Array | None,
    tokens: jax.Array,
    positions: jax.Array,
    lengths: jax.Array,
) -> dict[str, Any]:
    """Return the arguments of `Model.forward` for rows with media or soft messages; {} for text.

    Args:
        policy: The policy.
        params: Parameters of the model that reads.
        codes: [B, C], codes of the media, or prompts of speakers (`messages.py`), or None.
        tokens: int32 [B, T].
        positions: int32 [B, T] or [T]. Positions of the tokens in their conversations.
        lengths: int32 [B]. Lengths of the prompts.
    """
    if policy.message or codes is None:
        return messages.inputs(policy, params, codes, tokens, lengths)
    index = places(policy, tokens)
    given: dict[str, Any] = {"media": Media(embeddings(policy, params, codes), index)}
    medium = _medium(policy)
    # Tokens of other media are numbered like text.
    if policy.model.cfg.mrope_sections and isinstance(medium, Picture) and not policy.model.cfg.resampler:
        given["positions"] = rotations(medium, index, jnp.broadcast_to(positions, tokens.shape))
    return given


def sizes(cfg: ModelConfig, medium: Medium) -> tuple[int, ...]:
    """Return the number of embeddings of each medium, or of all media together."""
    if cfg.resampler is not None:
        return (cfg.resampler.n_queries,)
    return tuple(_size(cfg, part) for part in medium.parts)


def _size(cfg: ModelConfig, part: Medium) -> int:
    if isinstance(part, Sound):
        assert cfg.audio is not None
        return part.length * part.recordings.shape[1] // (2 * HOP * cfg.audio.merge)
    return part.shape[0] if isinstance(part, Numbers) else part.n_codes


def embeddings(policy: Policy, params: dict, codes: jax.Array) -> jax.Array:
    """Encode the media of rows with codes [B, C] to embeddings [B, M, D]."""
    encoded, start = [], 0
    for part in _medium(policy).parts:
        own = codes[:, start : start + part.n_codes]
        encoded.append(_encode(policy, params, part, own))
        start += part.n_codes
    x = encoded[0] if len(encoded) == 1 else jnp.concatenate(encoded, axis=1)
    resampler = policy.model.encoders.get("resampler")
    if resampler is None:
        return x
    assert isinstance(resampler, Resampler)
    return resampler(params["resampler"], x, remat=policy.remat)


def _encode(policy: Policy, params: dict, part: Medium, codes: jax.Array) -> jax.Array:
    """Encode the codes [B, C] of one medium."""
    encoder, own = policy.model.encoders[part.encoder], params[part.encoder]
    settings: dict[str, Any] = dict(dtype=policy.dtype, remat=policy.remat)
    if isinstance(part, Sound):
        assert isinstance(encoder, AudioEncoder)
        mels = encoder.cfg.n_mels
        alone = part.length == 1  # then the frames of a prompt are those of one recording
        frames = jnp.asarray(_frames(part, mels))[codes[:, 0]] if alone else log_mel(part.samples(codes), mels)
        return encoder(own, frames, **settings)
    if isinstance(part, Numbers):
        assert isinstance(encoder, TableEncoder)
        return encoder(own, codes.reshape(-1, *part.shape).astype(jnp.float32), **settings)
    assert isinstance(part, Picture) and policy.model.vision is not None
    encoder = policy.model.vision
    layout = encoder.layout([part.patch_grid[1:]])
    # Each tile is projected once, however often the pictures show it.
    tiles = encoder.project(own, jnp.asarray(part.tile_patches), policy.dtype)
    patches = tiles[codes].reshape(codes.shape[0], -1, tiles.shape[-1])
    return encoder.encode(own, patches, layout, remat=policy.remat)


@functools.lru_cache(maxsize=16)
def _frames(sound: Sound, n_mels: int) -> np.ndarray:
    """Return the log-mel frames of all recordings, float32 [K, T, n_mels]."""
    return log_mel(sound.recordings, n_mels)


def places(policy: Policy, tokens: jax.Array) -> jax.Array:
    """Return the embedding that each token reads, int32 [B, T]; -1 for text.

    Only the first M placeholders are media: a completion may contain the token, too.
    """
    cfg = policy.model.cfg
    assert cfg.placeholder is not None
    index = index_of(tokens, cfg.placeholder)
    return jnp.where(index < sum(sizes(cfg, _medium(policy))), index, -1)


def rotations(picture: Picture, index: jax.Array, positions: jax.Array) -> jax.Array:
    """Return the time, row and column of each token for mRoPE, int32 [3, B, T].

    Args:
        picture: Drawing of the game.
        index: int32 [B, T], see `places`.
        positions: int32 [B, T], in any order, as on the branches of a prompt.
    """
    rows, columns = picture.shape
    start = jnp.max(jnp.where(index == 0, positions, -1), axis=1, keepdims=True)
    after = (start >= 0) & (positions >= start + picture.n_codes)
    text = positions - jnp.where(after, picture.n_codes - max(rows, columns), 0)
    inside, cell = index >= 0, jnp.maximum(index, 0)
    offsets = jnp.stack([jnp.zeros_like(cell), cell // columns, cell % columns])
    return jnp.where(inside, start + offsets, text).astype(jnp.int32)


def _medium(policy: Policy) -> Medium:
    assert policy.medium is not None
    return policy.medium
