"""The judge that rewards the episodes of a run (`config.judge`)."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping, Sequence

from ml_collections import ConfigDict

from envs.tasks.judges import Judge, LanguageJudge, Referee, ScoreJudge
from envs.tasks.scorer_client import ScorerClient, ScorerError
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.schema.task_combinations import RULE
from marl_jax.serving.remote import RemoteError, is_endpoint, is_remote
from marl_jax.serving.remote_models import RemoteModels


def make_referee(config: ConfigDict, models: RemoteModels, speakers: Mapping[str, Speaker]) -> Referee | None:
    """Build the judge of a run, or return None if there is none.

    Args:
        config: Config of the run.
        models: Remote models of the run.
        speakers: Speaker of each policy.
    """
    c = config.judge
    if not c.name:
        return None
    judge: Judge | None = None
    if is_endpoint(c.name):
        judge = LanguageJudge(_EndpointReply(models, c.name, c.max_tokens), name=c.name)
    elif is_remote(c.name):
        judge = ScoreJudge(reward_server(config), name=c.name, version=c.version)
    elif c.name != RULE:
        judge = LanguageJudge(_PolicyReply(speakers[c.name], c.max_tokens), name=c.name)
    return Referee(judge, c.criterion, c.against, c.weight, c.rule_weight, c.time_limit)


def reward_server(config: ConfigDict) -> ScorerClient:
    """Return a client of the reward server that judges a run."""
    c = config.remote
    return ScorerClient(config.judge.name, config.judge.version, deadline=c.deadline, connections=c.connections)


def check_reward_server(config: ConfigDict) -> None:
    """Check that the reward server of a run has the right version."""
    try:
        asyncio.run(dataclasses.replace(reward_server(config), deadline=5.0).health())
    except ScorerError as error:
        raise RemoteError(f"config.judge.name is {config.judge.name!r}, but {error}") from None


@dataclasses.dataclass(frozen=True)
class _EndpointReply:
    """The greedy reply of a remote model."""

    models: RemoteModels
    place: str
    max_tokens: int

    async def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        ((text, _),) = await self.models.complete(self.place, messages, max_tokens=self.max_tokens)
        return text


@dataclasses.dataclass(frozen=True)
class _PolicyReply:
    """The greedy reply of a policy of the run."""

    speaker: Speaker
    max_tokens: int

    async def __call__(self, messages: Sequence[Mapping[str, str]]) -> str:
        speaker, (system, user) = self.speaker, (message["content"] for message in messages)
        sampling = dataclasses.replace(
            speaker.sampling, temperature=0.0, max_new_tokens=self.max_tokens, stop_ids=speaker.tokenizer.stop_ids,
            seed=0,
        )  # fmt: skip
        ids = speaker.opening(system, user)
        (answer,) = await speaker.sampler.answer(ids, sampling, policy=speaker.policy)
        return speaker.tokenizer.decode(speaker.content(answer.tokens.tolist()), skip_special=True)
