"""What an engine refuses before anything runs, each with the row and what would be accepted."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import numpy as np

from marl_jax.sampling.conversation import Conversation
from marl_jax.sampling.settings import Sampling
from models.config import ModelConfig


def check_slots(cfg: ModelConfig, slots: int) -> None:
    """Refuses a cache that the model has no positions for."""
    if not 1 <= slots <= cfg.max_positions:
        raise ValueError(f"slots is {slots}, but must be 1 to {cfg.max_positions}, the positions of the model")


def check_prompts(cfg: ModelConfig, prompts: Sequence[Sequence[int]], slots: int) -> None:
    """Refuses no prompt at all, an empty one, one beyond the cache or the vocabulary."""
    if not len(prompts):
        raise ValueError("the batch is empty: give at least one prompt")
    for i, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {i} is empty: a row needs at least one token to answer from")
        if len(prompt) > slots:
            raise ValueError(f"prompt {i} has {len(prompt)} tokens; the cache was asked for {slots} slots")
        _check_vocabulary(cfg, i, prompt)


def check_more(cfg: ModelConfig, conversation: Conversation, prompts: Sequence[Sequence[int]]) -> None:
    """Refuses further prompts that do not belong to the conversation's rows or do not fit behind them."""
    if len(prompts) != conversation.rows:
        raise ValueError(f"append got {len(prompts)} prompts for a conversation of {conversation.rows} rows")
    for i, prompt in enumerate(prompts):
        if len(prompt) > conversation.room(i):
            raise ValueError(
                f"row {i}: {len(prompt)} more tokens behind {len(conversation.history[i])} do not fit: there is room "
                f"for {conversation.limit} in all"
            )
        _check_vocabulary(cfg, i, prompt)


def _check_vocabulary(cfg: ModelConfig, row: int, prompt: Sequence[int]) -> None:
    if len(prompt) and not (min(prompt) >= 0 and max(prompt) < cfg.vocab_size):
        raise ValueError(
            f"prompt {row} has token ids from {min(prompt)} to {max(prompt)}, but must be 0 to {cfg.vocab_size - 1}"
        )


def check_requests(conversation: Conversation, requests: Sequence[Sampling]) -> None:
    """Refuses budgets beyond the cache, and what only a `Batcher` can do."""
    if len(requests) != conversation.rows:
        raise ValueError(f"got {len(requests)} sampling settings for {conversation.rows} rows")
    for i, request in enumerate(requests):
        if request.max_new_tokens > conversation.room(i):
            raise ValueError(
                f"row {i}: max_new_tokens is {request.max_new_tokens}, but there is room for {conversation.room(i)} "
                f"behind its {len(conversation.history[i])} tokens; ask for more slots at prefill"
            )
        if request.stop_strings:
            raise ValueError("stop_strings need a tokenizer: use batcher.Batcher")
        if request.constraint is not None:
            raise ValueError("a constraint needs steps on the host: use batcher.Batcher")


def check_legal(conversation: Conversation, legal: np.ndarray, actions: int, width: int) -> None:
    """Refuses a row without a legal action, and names of `width` tokens that do not fit."""
    if legal.shape != (conversation.rows, actions):
        raise ValueError(f"legal has shape {legal.shape}; expected {(conversation.rows, actions)}")
    for i in np.flatnonzero(~legal.any(axis=1)):
        raise ValueError(f"row {i} has no legal action")
    for i in range(conversation.rows):
        if conversation.room(i) < width:
            raise ValueError(f"row {i}: room for {conversation.room(i)} tokens; a name may have {width}")


def check_adapters(ids: Sequence[int], n: int) -> None:
    """Refuses the number of an adapter that is not there; without adapters (n = 0) every row has number 0."""
    for i in ids:
        if not 0 <= i < max(n, 1):
            raise ValueError(f"adapter {i} was asked for; the engine has {n}, counted from 0")


def check_policy(policy: int, n: int) -> None:
    """Refuses the number of a policy that is not there."""
    if not 0 <= policy < n:
        raise ValueError(f"policy is {policy}, but must be 0 to {n - 1}")


def check_weights(policy: int, found, expected) -> None:
    """Refuses weights whose names or shapes are not those of `expected`."""
    found, expected = (
        {jax.tree_util.keystr(k): np.shape(v) for k, v in jax.tree_util.tree_leaves_with_path(tree)}
        for tree in (found, expected)
    )
    for name in sorted(found.keys() | expected.keys()):
        if found.get(name) != expected.get(name):
            raise ValueError(
                f"weights of policy {policy}: {name} is {_shape(found, name)}, but must be {_shape(expected, name)}"
            )


def _shape(shapes: dict, name: str) -> str:
    return f"of shape {shapes[name]}" if name in shapes else "absent"
