"""The sampling engine for the host: shape buckets, compiled programs and checks.

A `Conversation` is a batch of rows with their KV cache. `prefill` starts one, `append` adds prompt tokens, and
`generate` and `choose` sample completions. All of them take and return the conversation, so that earlier turns are
never prefilled again. Shapes are rounded up to buckets and all other settings are arrays, so nothing is recompiled
within a bucket. A conversation that is passed in is consumed: its buffers are donated.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from marl_jax.sampling import checks, choice, decode
from marl_jax.sampling.batch_settings import settings_for
from marl_jax.sampling.conversation import Completion, Conversation, batch_bucket, pad_rows, round_up
from marl_jax.sampling.images import HeldImage, Images
from marl_jax.sampling.programs import Programs, Weights
from marl_jax.sampling.settings import Sampling, with_seeds
from models import lora
from models.model import Model
from models.sharding import param_shardings

TOP = 20  # maximum number of alternatives that `top_logprobs` returns


class Engine(Programs):
    """A model with its weights laid out for sampling.

    Args:
        model: The model.
        params: Its parameters.
        adapters: LoRA adapters, or None.
        lora_scale: float32 [n], scales of the adapters.
        dtype: Dtype of the computation.
        bucket: Prompt lengths and cache slots are rounded up to a multiple of this.
        chunk: Decoding steps between two checks on the host.
        mesh: Rows are sharded over `data` and `fsdp`, heads over `tensor`.
    """

    def __init__(
        self,
        model: Model,
        params: dict,
        *,
        adapters: dict | None = None,
        lora_scale: jax.Array | None = None,
        dtype=jnp.bfloat16,
        bucket: int = 128,
        chunk: int = 64,
        mesh: jax.sharding.Mesh | None = None,
    ):
        super().__init__(model, dtype, mesh)
        self.bucket, self.chunk = bucket, chunk
        tensor = mesh.shape["tensor"] if mesh is not None else 1
        self.row_multiple = mesh.size // tensor if mesh is not None else 1
        self.images = None if model.vision is None else Images(model, dtype)
        self._lay_out = self.jit(functools.partial(model.unstack, dtype=dtype, fuse=tensor == 1))
        self._lay_out_adapters = self.jit(functools.partial(lora.unstack, n_layers=model.cfg.n_layers, dtype=dtype))
        self.update(params, adapters, lora_scale)

    def update(
        self, params: dict, adapters: dict | None = None, lora_scale: jax.Array | None = None, version: int = 0
    ) -> None:
        """Set new weights and lay them out for decoding.

        Stacked weights, as used in training, are copied, so the caller may donate them afterwards. Weights that are
        already laid out are used without a copy.
        """
        unstacked = isinstance(params["layers"], tuple)
        if self.mesh is not None and not unstacked:
            params = jax.device_put(params, param_shardings(self.mesh, self.model.axes(), params))
        if (adapters is None) != (lora_scale is None):
            raise ValueError("adapters and lora_scale must be given together")
        layers = None if adapters is None else self._lay_out_adapters(adapters)
        self.weights = Weights(params if unstacked else self._lay_out(params), layers, lora_scale)
        self.versions = [version] * self.n_policies
        if self.images is not None:
            self.images.forget()

    def set_weights(self, policy: int, weights: dict, version: int) -> None:
        """Set new weights of one policy, in the form described at `check_weights`."""
        self.check_weights(policy, weights)
        if self.n_adapters:
            layers = self._put_adapter(self.weights.adapters, weights, policy)
            self.weights = dataclasses.replace(self.weights, adapters=layers)
            self.versions[policy] = version
        else:
            self.update(weights, version=version)

    def check_weights(self, policy: int, weights: dict) -> None:
        """Check that weights match a policy.

        Without adapters, policy 0 is the model and its weights are the parameters, stacked or laid out for decoding.
        With adapters, a policy is one of them: {"q": {"a": [L, in, r], "b": [L, r, out]}, …}.
        """
        checks.check_policy(policy, self.n_policies)
        if self.weights.adapters is not None:
            n_layers = self.model.cfg.n_layers
            one = lambda x: jax.ShapeDtypeStruct((n_layers, *x.shape[1:]), x.dtype)  # noqa: E731
            checks.check_weights(policy, weights, jax.tree.map(one, self.weights.adapters[0]))
        elif isinstance(weights.get("layers"), tuple):
            checks.check_weights(policy, weights, self.weights.params)
        else:
            checks.check_weights(policy, weights, self.model.abstract(jnp.float32))

    @property
    def n_adapters(self) -> int:
        """Number of adapters; 0 without LoRA."""
        return 0 if self.weights.scale is None else len(self.weights.scale)

    @property
    def n_policies(self) -> int:
        """Number of policies: the adapters, or 1."""
        return max(self.n_adapters, 1)

    # Prefill

    def prefill(self, prompts: Sequence[Sequence[int]], *, slots: int, adapter_ids=None) -> Conversation:
        """Prefill one prompt per row into a new cache with room for `slots` tokens."""
        checks.check_prompts(self.model.cfg, prompts, slots)
        limit, batch = self.limit(slots), batch_bucket(len(prompts), self.row_multiple)
        tokens, lengths = pad_rows(prompts, batch, round_up(max(map(len, prompts)), self.bucket))
        ids = self._adapter_ids(adapter_ids, len(prompts), batch)
        cache, hidden = self._prefill(self.weights, tokens, lengths, ids, round_up(slots, self.bucket))
        return Conversation(cache, hidden, ids, [list(p) for p in prompts], np.zeros(len(prompts), bool), limit)

    def append(self, conversation: Conversation, prompts: Sequence[Sequence[int]]) -> Conversation:
        """Append prompt tokens to each row; an empty list adds nothing."""
        conversation.check_unused()
        checks.check_more(self.model.cfg, conversation, prompts)
        late = [
            ([past[-1]] if unread else []) + list(prompt)
            for past, unread, prompt in zip(conversation.history, conversation.unread, prompts, strict=True)
        ]
        if not any(late):
            return conversation
        time = round_up(max(map(len, late)), min(self.bucket, 32))
        tokens, lengths = pad_rows(late, len(conversation.hidden), time)
        cache, hidden = self._append(
            self.weights, conversation.cache, conversation.hidden, tokens, lengths, conversation.adapter_ids
        )
        history = [past + list(new) for past, new in zip(conversation.history, prompts, strict=True)]
        unread = np.zeros_like(conversation.unread)
        return dataclasses.replace(conversation, cache=cache, hidden=hidden, history=history, unread=unread)

    def repeat(self, conversation: Conversation, times: int) -> Conversation:
        """Repeat every row `times` times, for several samples of prompts that were prefilled once."""
        conversation.check_unused()
        if times < 1:
            raise ValueError(f"times is {times}, but must be >= 1")
        batch = batch_bucket(conversation.rows * times, self.row_multiple)
        source = np.minimum(np.arange(batch) // times, conversation.rows - 1).astype(np.int32)
        cache, hidden = self._take((conversation.cache, conversation.hidden), source)
        return dataclasses.replace(
            conversation,
            cache=cache,
            hidden=hidden,
            adapter_ids=conversation.adapter_ids[source],
            history=[list(past) for past in conversation.history for _ in range(times)],
            unread=np.repeat(conversation.unread, times),
        )

    def share(self, prefix: Conversation, batch: int, *, slots: int, adapter_ids=None) -> Conversation:
        """Start `batch` rows from a common prefix, such as the rules of a game.

        The prefix stays usable. It has one row, or one row per adapter, since adapters compute it differently.
        """
        prefix.check_unused()
        if batch < 1:
            raise ValueError(f"batch is {batch}, but must be >= 1")
        readers = prefix.adapter_ids[: prefix.rows].tolist()
        wanted = np.asarray(readers[:1] * batch if adapter_ids is None else adapter_ids).tolist()
        if len(set(readers)) < prefix.rows or not set(wanted) <= set(readers):
            raise ValueError(
                f"a shared prefix needs one row for each adapter, but this one has rows for adapters {readers} and is "
                f"to be continued by {sorted(set(wanted))}"
            )
        limit, slots, size = self.limit(slots), round_up(slots, self.bucket), batch_bucket(batch, self.row_multiple)
        if slots < prefix.cache.slots:
            raise ValueError(f"slots is {slots}, but the prefix already has {prefix.cache.slots}")
        ids = self._adapter_ids(wanted, batch, size)
        source = [readers.index(a) for a in wanted]
        rows = np.asarray(source + [0] * (size - batch), np.int32)
        cache, hidden = self._share(prefix.cache, prefix.hidden, rows, slots)
        return Conversation(cache, hidden, ids, [list(prefix.history[i]) for i in source], prefix.unread[source], limit)

    # Sampling

    def generate(self, conversation: Conversation, sampling: Sampling | Sequence[Sampling]):
        """Generate free text, each row until a stop token or its budget.

        With a single `Sampling`, row i uses its seed + i, so that K samples of one prompt differ.

        Returns:
            A list of `Completion`, and the conversation.
        """
        conversation.check_unused()
        requests = with_seeds(sampling, conversation.rows) if isinstance(sampling, Sampling) else list(sampling)
        checks.check_requests(conversation, requests)
        conversation = self._caught_up(conversation)
        batch, vocab = len(conversation.hidden), self.model.cfg.vocab_size
        settings = settings_for(requests, batch, conversation.history, vocab)
        rows, *first = self._begin(self.weights, conversation.hidden, conversation.cache, settings)
        pieces = [[np.asarray(x)[:, None] for x in first]]
        while (np.asarray(rows.finish) == decode.GOING).any():
            rows, *more, _ = self._chunk(self.weights, rows, settings, conversation.adapter_ids, self.chunk)
            pieces.append([np.asarray(x) for x in more])
        written, finish = np.asarray(rows.written), np.asarray(rows.finish)
        for i in np.flatnonzero(finish[: conversation.rows] == decode.INVALID):
            raise FloatingPointError(f"the logits of row {i} are not finite after {written[i]} new tokens")
        tokens, logps = (np.concatenate(x, axis=1) for x in zip(*pieces, strict=True))
        versions = np.asarray(self.versions, np.int32)[np.asarray(conversation.adapter_ids)]
        answers = [
            Completion(tokens[i, :n], logps[i, :n], decode.FINISH[finish[i]], np.full((n,), versions[i], np.int32))
            for i, n in enumerate(written[: conversation.rows])
        ]
        history = [past + a.tokens.tolist() for past, a in zip(conversation.history, answers, strict=True)]
        unread = np.ones_like(conversation.unread)
        return answers, dataclasses.replace(conversation, cache=rows.cache, history=history, unread=unread)

    def choose(self, conversation: Conversation, choices: choice.Choices, legal, *, temperature=1.0, seeds=0):
        """Choose one legal action per row.

        Args:
            conversation: The conversation, which is consumed.
            choices: The action names.
            legal: bool [rows, A].
            temperature: A number, or one per row.
            seeds: One per row, or a number; then row i uses that + i.

        Returns:
            A `Choice` on the host, and the conversation.
        """
        conversation.check_unused()
        legal = np.asarray(legal, bool)
        checks.check_legal(conversation, legal, *choices.ids.shape)
        conversation = self._caught_up(conversation)
        batch, rows = len(conversation.hidden), conversation.rows
        seeds = np.asarray(seeds) if np.ndim(seeds) else (seeds + np.arange(rows)) % 2**32
        mask = np.ones((batch, legal.shape[1]), bool)
        mask[:rows] = legal
        column = lambda x, dtype: np.pad(np.broadcast_to(np.asarray(x, dtype), (rows,)), (0, batch - rows))  # noqa: E731
        result = self._choose(
            self.weights,
            conversation.hidden,
            conversation.cache,
            choices,
            mask,
            column(temperature, np.float32),
            column(seeds, np.uint32),
            conversation.adapter_ids,
        )
        host = jax.tree.map(lambda x: np.asarray(x)[:rows], dataclasses.replace(result, cache=None))
        for i in np.flatnonzero(~np.isfinite(host.logps).all(axis=1)):
            raise FloatingPointError(f"the logits of row {i} are not finite")
        history = [
            past + t[:n].tolist() for past, t, n in zip(conversation.history, host.tokens, host.lengths, strict=True)
        ]
        unread = np.ones_like(conversation.unread)
        return host, dataclasses.replace(conversation, cache=result.cache, history=history, unread=unread)

    def top_logprobs(
        self, ids: Sequence[int], start: int, sampling: Sampling, policy: int = 0, k: int = TOP
    ) -> list[list[tuple[int, float]]]:
        """Return the k most likely tokens at each position from `start` on, with their log-probs.

        They follow the distribution of `sampling`, without a repetition penalty, and are computed from all tokens with
        the present weights. Thread-safe.
        """
        tokens, lengths, policies = self._one_row(ids, policy)
        settings = settings_for([dataclasses.replace(sampling, repetition_penalty=1.0)], len(tokens))
        top = self._top_logprobs(self.weights, tokens, lengths, policies, settings, min(TOP, self.model.cfg.vocab_size))
        best, logps = (np.asarray(x)[0, start - 1 : len(ids) - 1, :k] for x in top)
        return [list(zip(*pair, strict=True)) for pair in zip(best.tolist(), logps.tolist(), strict=True)]

    def logprobs(self, ids: Sequence[int], start: int, policy: int = 0) -> list[float]:
        """Return the log-probs of the tokens from `start` on, at temperature 1. Thread-safe."""
        rows = self._logprobs(self.weights, *self._one_row(ids, policy))
        return np.asarray(rows)[0, start - 1 : len(ids) - 1].tolist()

    def _one_row(self, ids: Sequence[int], policy: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return tokens [B, T], lengths [B] and policies [B] of one padded row."""
        batch, time = batch_bucket(1, self.row_multiple), self.bucket
        while time < len(ids):
            time *= 2
        tokens, lengths = pad_rows([list(ids)], batch, min(time, self.model.cfg.max_positions))
        return tokens, lengths, np.full((batch,), policy, np.int32)

    def hold_image(self, image: np.ndarray) -> HeldImage:
        """Encode an image, uint8 [H, W, 3], and keep its embeddings until `Images.release`. Thread-safe."""
        if self.images is None:
            raise ValueError("the model has no encoder of images; it reads text only")
        return self.images.hold(self.weights.params["vision"], image)

    def limit(self, slots: int) -> int:
        """Return the maximum number of tokens of a row for a requested number of slots."""
        checks.check_slots(self.model.cfg, slots)
        return min(round_up(slots, self.bucket), self.model.cfg.max_positions)

    def _adapter_ids(self, ids, rows: int, batch: int) -> np.ndarray:
        """Check adapter ids and pad them to the batch."""
        ids = np.zeros((rows,), np.int32) if ids is None else np.asarray(ids, np.int32)
        if ids.shape != (rows,):
            raise ValueError(f"adapter_ids has shape {ids.shape}, but must have {(rows,)}")
        checks.check_adapters(ids.tolist(), self.n_adapters)
        return np.pad(ids, (0, batch - rows))

    def _caught_up(self, conversation):
        """Add the last generated tokens to the cache."""
        return self.append(conversation, [[]] * conversation.rows) if conversation.unread.any() else conversation
