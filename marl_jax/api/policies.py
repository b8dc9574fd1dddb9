"""Policies of runs and plain models: generate, chat and log-probabilities with strings in and out."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, overload

from marl_jax.agents.seating import seat_names
from marl_jax.errors import RunError
from marl_jax.running import console
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import flags
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.serving.openai.text import visible
from marl_jax.setup import served_models
from marl_jax.setup.served_models import ModelPlace, ModelSource
from registries import end_import

Message = Mapping[str, Any]
"""A message of a chat: {"role": "user", "content": "…"}."""
Conversation = str | Sequence[Message]
"""Messages, or a string for one message of the user."""


class Policy:
    """A model that is loaded for sampling.

    Use it as a context manager, or call `close` to free its memory.

        with marl_jax.load("smollm2-135m") as policy:
            policy.chat("What is the capital of France?", temperature=0)

    Attributes:
        step: Step of the checkpoint; 0 for an untrained model.
    """

    def __init__(self, source: ModelSource, model: ServedModel):
        self._source, self._model = source, model
        self.step = 0 if source.run is None else source.run.step

    def __repr__(self) -> str:
        return f"Policy({self._model.name!r}, step {self.step})"

    def __enter__(self) -> Policy:
        return self

    def __exit__(self, *_: Any) -> None:
        self.close()

    def close(self) -> None:
        """Stop the sampler and free its memory."""
        self._source.sampler.close()

    @overload
    def generate(self, prompts: str, **sampling: Any) -> str: ...
    @overload
    def generate(self, prompts: Sequence[str], **sampling: Any) -> list[str]: ...
    def generate(self, prompts: str | Sequence[str], **sampling: Any) -> str | list[str]:
        """Continue texts as they are, without a chat template.

        Args:
            prompts: One text or several, which are sampled together.
            **sampling: `temperature` (1.0; 0 is greedy), `max_new_tokens` (256), `stop` (strings that end a
                completion), `seed` (0), `top_p` and `top_k`. The same call returns the same completions.

        Returns:
            The completion, or a list for several prompts.
        """
        if isinstance(prompts, str):
            return self._sample([self._model.speaker.tokenizer.encode(prompts)], **sampling)[0]
        return self._sample([self._model.speaker.tokenizer.encode(prompt) for prompt in prompts], **sampling)

    @overload
    def chat(self, conversations: str | Sequence[Message], **sampling: Any) -> str: ...
    @overload
    def chat(self, conversations: Sequence[Conversation], **sampling: Any) -> list[str]: ...
    def chat(self, conversations: Any, **sampling: Any) -> str | list[str]:
        """Reply to messages in the model's chat format.

        Args:
            conversations: A message of the user as a string, a list of messages, or a list of several of these, which
                are sampled together.
            **sampling: See `generate`.

        Returns:
            The reply, or a list for several conversations.
        """
        if _is_one(conversations):
            return self._sample([self._rendered(conversations)], **sampling)[0]
        return self._sample([self._rendered(one) for one in conversations], **sampling)

    def logprobs(self, prompts: Sequence[Conversation], completions: Sequence[str]) -> list[list[float]]:
        """Return the log-probability of every token of each completion, at temperature 1.

        Args:
            prompts: Texts as in `generate`, or lists of messages as in `chat`.
            completions: One completion for each prompt. Its end-of-turn token is not included.
        """
        if isinstance(prompts, str) or len(prompts) != len(completions):
            raise ValueError(f"prompts has {len(prompts)} items, but must be a list with one for each completion")
        speaker = self._model.speaker
        encode = speaker.tokenizer.encode
        before = [encode(prompt) if isinstance(prompt, str) else self._rendered(prompt) for prompt in prompts]
        rows = [(ids, encode(text)) for ids, text in zip(before, completions, strict=True)]
        for ids, said in rows:
            self._check_room(len(ids) + len(said) - 1)
        return [self._source.sampler.logprobs([*ids, *said], len(ids), speaker.policy) for ids, said in rows]

    def _rendered(self, conversation: Conversation) -> list[int]:
        if isinstance(conversation, str):
            conversation = [{"role": "user", "content": conversation}]
        return self._model.renderer.opening([dict(message) for message in conversation])

    def _sample(
        self,
        prompts: Sequence[list[int]],
        temperature: float = 1.0,
        max_new_tokens: int = 256,
        stop: str | Sequence[str] = (),
        seed: int = 0,
        top_p: float = 1.0,
        top_k: int = 0,
    ) -> list[str]:
        """Sample a completion of each prompt; the seeds of the prompts are consecutive."""
        speaker, stops = self._model.speaker, (stop,) if isinstance(stop, str) else tuple(stop)
        waiting: list[Future] = []
        for number, ids in enumerate(prompts):
            room = self._check_room(len(ids))
            sampling = Sampling(
                temperature, min(max_new_tokens, room), speaker.tokenizer.stop_ids, (seed + number) % 2**32,
                top_k=top_k, top_p=top_p, stop_strings=stops,
            )  # fmt: skip
            waiting.append(self._source.sampler.ask(ids, sampling, speaker.policy))
        written = [future.result()[0].tokens.tolist() for future in waiting]
        return [visible(speaker.tokenizer, speaker.content(tokens), stops) for tokens in written]

    def _check_room(self, length: int) -> int:
        """Return the number of tokens that fit after a prompt, at least one."""
        limit = self._model.speaker.max_length
        if not 0 < length < limit:
            raise RunError(f"a prompt has {length} tokens, but must have 1 to {limit - 1}; raise max_length in load()")
        return limit - length


def load(
    model: str | os.PathLike[str],
    role: str | None = None,
    step: int | str = "newest",
    *,
    max_length: int = 2048,
    max_num_seqs: int = 16,
    dtype: str | None = None,
) -> Policy:
    """Load a policy of a run, or a plain model.

        policy = marl_jax.load("runs/mine", step="best")
        policy = marl_jax.load("runs/team", role="planner")
        policy = marl_jax.load("qwen2.5-0.5b-instruct")

    Args:
        model: A run or its folder, the name of a registered model (downloaded if necessary), a Hugging Face folder or a
            GGUF file, each of the last three optionally with "+FOLDER" for a PEFT adapter.
        role: Role or policy of a run with several policies.
        step: Checkpoint of a run: "newest", "best" or a number.
        max_length: Maximum number of tokens of a prompt with its completion.
        max_num_seqs: Maximum number of sequences decoded at the same time.
        dtype: Data type of a plain model; float32 on CPUs and bfloat16 elsewhere by default.

    Raises:
        marl_jax.errors.RunError: If there is no such run, checkpoint or model.
    """
    end_import()
    import jax

    from marl_jax import cli
    from models.user_cache import user_cache

    cli.keep_compiled(str(user_cache("jax")))
    config = flags.default_config().unlock()
    config.serve.update(dict(max_length=max_length, max_num_seqs=max_num_seqs))
    config.model.dtype = dtype or ("float32" if jax.default_backend() == "cpu" else "bfloat16")
    base, _, adapter = os.fspath(model).partition("+")
    place = ModelPlace(Path(base).name, base, adapter)
    if role is not None and not place.is_run:
        raise RunError(f"role is {role!r}, but must be None for a model that is not from a run")
    with console.attached(None):
        source = served_models.load_place(place, config, str(step))
    try:
        return Policy(source, _chosen(source, role))
    except BaseException:
        source.sampler.close()
        raise


def _chosen(source: ModelSource, role: str | None) -> ServedModel:
    """Return the model of a role; None is the only policy."""
    served = list(source.models.values())
    if source.run is None or (role is None and len(served) == 1):
        return served[0]
    setup = source.run.setup
    policies = setup.team.policies
    names = {name: name for name in policies}
    seats = seat_names(setup.config.agents, setup.roles)
    names |= {own: players[0] for own, players in zip(setup.roles, seats, strict=True) if players[0] in policies}
    if role not in names:
        raise RunError(f"role is {role!r}, but must be one of: {', '.join(names)}")
    return served[policies.index(names[role])]


def _is_one(conversations: Any) -> bool:
    """Return whether this is one conversation: a string or a list of messages."""
    return isinstance(conversations, str) or (len(conversations) > 0 and isinstance(conversations[0], Mapping))
