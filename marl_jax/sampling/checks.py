"""Checks of an engine's inputs before anything runs."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from marl_jax.sampling.conversation import Conversation
from marl_jax.sampling.images import Images
from marl_jax.sampling.settings import Sampling
from models.config import ModelConfig


def check_slots(cfg: ModelConfig, slots: int) -> None:
    """Check that the model has enough positions for a cache."""
    if not 1 <= slots <= cfg.max_positions:
        raise ValueError(f"slots is {slots}, but must be 1 to {cfg.max_positions}, the positions of the model")


def check_prompts(cfg: ModelConfig, prompts: Sequence[Sequence[int]], slots: int, images: Images | None = None) -> None:
    """Check that prompts exist, are not empty, and fit the cache and the vocabulary.

    With `images`, ids after the vocabulary may refer to images that are held.
    """
    if not len(prompts):
        raise ValueError("the batch is empty; pass at least one prompt")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty, but must have at least one token")
        if len(prompt) > slots:
            raise ValueError(f"prompt {i} has {len(prompt)} tokens, but the cache has {slots} slots")
        if images is None or not images.known(prompt):
            _check_vocabulary(cfg, i, prompt)


def check_more(cfg: ModelConfig, conversation: Conversation, prompts: Sequence[Sequence[int]]) -> None:
    """Check that further prompts match a conversation's rows and fit their caches."""
    if len(prompts) != conversation.rows:
        raise ValueError(f"append got {len(prompts)} prompts for a conversation of {conversation.rows} rows")
    for i, prompt in enumerate(prompts):
        if len(prompt) > conversation.room(i):
            raise ValueError(
                f"row {i} would have {len(conversation.history[i])} + {len(prompt)} tokens, but must have at most "
                f"{conversation.limit}"
            )
        _check_vocabulary(cfg, i, prompt)


def _check_vocabulary(cfg: ModelConfig, row: int, prompt: Sequence[int]) -> None:
    """Check that token ids are in the vocabulary."""
    if len(prompt) and not (min(prompt) >= 0 and max(prompt) < cfg.vocab_size):
        raise ValueError(
            f"prompt {row} has token ids from {min(prompt)} to {max(prompt)}, but must be 0 to {cfg.vocab_size - 1}"
        )


def check_requests(conversation: Conversation, requests: Sequence[Sampling]) -> None:
    """Check that budgets fit the cache and that no request needs a `Batcher`."""
    if len(requests) != conversation.rows:
        raise ValueError(f"got {len(requests)} sampling settings for {conversation.rows} rows")
    for i, request in enumerate(requests):
        if request.max_new_tokens > conversation.room(i):
            raise ValueError(
                f"max_new_tokens of row {i} is {request.max_new_tokens}, but {conversation.room(i)} slots are left "
                f"after its {len(conversation.history[i])} tokens; prefill with more slots"
            )
        if request.stop_strings:
            raise ValueError("stop_strings need a tokenizer; use batcher.Batcher")
        if request.constraint is not None:
            raise ValueError("a constraint needs steps on the host; use batcher.Batcher")


def check_legal(conversation: Conversation, legal: np.ndarray, actions: int, width: int) -> None:
    """Check that every row has a legal action and room for names of `width` tokens."""
    if legal.shape != (conversation.rows, actions):
        raise ValueError(f"legal has shape {legal.shape}, but must have {(conversation.rows, actions)}")
    for i in np.flatnonzero(~legal.any(axis=1)):
        raise ValueError(f"row {i} has no legal action")
    for i in range(conversation.rows):
        if conversation.room(i) < width:
            raise ValueError(f"row {i} has {conversation.room(i)} slots left, but an action name may need {width}")


def check_adapters(ids: Sequence[int], n: int) -> None:
    """Check that adapters exist; without adapters (n = 0) every row has index 0."""
    for i in ids:
        if not 0 <= i < max(n, 1):
            raise ValueError(f"adapter_ids has {i}, but the engine has {n} adapters, counted from 0")


def check_policy(policy: int, n: int) -> None:
    """Check that a policy exists."""
    if not 0 <= policy < n:
        raise ValueError(f"policy is {policy}, but must be 0 to {n - 1}")


def check_weights(policy: int, given, expected) -> None:
    """Check that weights have the names and shapes of `expected`."""
    shapes, expected_shapes = (
        {jax.tree_util.keystr(k): np.shape(v) for k, v in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (given, expected)
    )
    for name in sorted(shapes.keys() | expected_shapes.keys()):
        if shapes.get(name) != expected_shapes.get(name):
            shape, rule = _shape(shapes, name), _shape(expected_shapes, name)
            raise ValueError(f"weights of policy {policy}: {name} is {shape}, but must be {rule}")


def _shape(shapes: dict, name: str) -> str:
    """Describe the shape of a parameter."""
    return f"of shape {shapes[name]}" if name in shapes else "absent"
