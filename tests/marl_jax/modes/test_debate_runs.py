"""Complete debate runs: more agents in evaluation than in training, and verifiers that fail."""

import contextlib
import dataclasses

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import debate, defaults
from envs.tasks.debate.task import ArithmeticDebate
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.modes import train
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.running.metrics import read_json_lines
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import validate
from tests.marl_jax import tiny_task
from tests.marl_jax.tiny_host import FakeAnswer, FakeSampler, make_rollout, merging_tokenizer


@pytest.mark.nightly
def test_agents_beyond_the_trained_get_their_policies_in_turn(tmp_path):
    config = tiny_task.get_config("grpo+arithmetic_debate")
    config.steps, config.optim.warmup = 1, 0
    config.task.params.eval_agents = 3
    config.model.lora.rank = 2
    debate.share(config, "per_agent_turn", turns=2)
    config.eval.update(dict(every=1, games=2, temperature=0.7))
    validate.check(config)
    setup = setups.make(config)
    with contextlib.closing(setup.runner(1.0, 0, task=setup.evaluated_task)) as runner:
        policies = [[setup.team.policies[runner.seating(seat, turn)] for turn in (0, 1)] for seat in range(3)]
    assert policies[0] == policies[2] == ["ada_turn_1", "ada_turn_2"] and policies[1] == ["ben_turn_1", "ben_turn_2"]

    train.train(config, tmp_path)
    (row,) = read_json_lines(tmp_path / "metrics.jsonl")
    assert (
        row["completions"] == row["completions_trained"] == 4 * 2 * 2
        and "reward/ben" in row
        and "reward/cleo" not in row
    )
    evaluated = read_json_lines(tmp_path / "eval.jsonl")[-1]
    assert {"right/ada/turn_2", "right/cleo/turn_2", "vote_turn_1", "wrong_to_right"} <= set(evaluated)
    first = read_json_lines(sorted((tmp_path / "answers").iterdir())[-1])[0]
    order = [(name, turn) for turn in (0, 1) for name in ("ada", "ben", "cleo")]
    assert [(turn["role"], turn["turn"]) for turn in first["turns"]] == order
    assert all(turn["context"] > 0 and turn["verdict"] is not None for turn in first["turns"])


class Fives(FakeSampler):
    """Return the same parsable completion every time."""

    def _one(self, ids, sampling, policy, k):
        tokens = [*self.tokenizer.encode("answer: 5"), self.tokenizer.stop_ids[0]]
        logps, versions = np.full(len(tokens), -0.5, np.float32), np.full(len(tokens), self.version, np.int32)
        return FakeAnswer(np.asarray(tokens, np.int32), logps, "stop", versions)


class Sometimes:
    """A verifier that is down for every third call."""

    calls = 0

    async def score(self, chats):
        self.calls += 1
        if self.calls % 3 == 0:
            raise ConnectionError("down")
        return [0.5] * len(chats)


def test_a_score_that_does_not_come_costs_an_episode_and_not_the_run():
    task = ArithmeticDebate(scorer=Sometimes(), n_examples=12)
    with contextlib.closing(make_rollout(task, Fives(), n_examples=6, samples=2, budget=16)) as rollout:
        samples, _, metrics = rollout({}, rollout.init(None, None))
    failed = metrics["episodes/failed/score_missing"]
    assert metrics["episodes"] == 12 and 0 < failed == metrics["episodes/failed"] < 12
    assert int((samples.completion_lengths > 0).sum()) == 4 * (12 - failed)


@pytest.mark.parametrize("same", [True, False])
def test_models_that_take_turns_in_one_chat_need_equal_tokenizers(same):
    """Compare by value, because copies of a model have different objects."""
    first = merging_tokenizer()
    second = merging_tokenizer.__wrapped__() if same else dataclasses.replace(first, template=f"{first.template} ")
    assert second is not first
    speakers = [Speaker(FakeSampler(tokenizer=t), t, Sampling(max_new_tokens=8), 4000) for t in (first, second)]
    seating = lambda seat, turn: min(turn, 1)  # noqa: E731
    rollout = make_rollout(ArithmeticDebate(n_examples=12), n_examples=2, speakers=speakers, seating=seating)
    with contextlib.closing(rollout):
        _, _, metrics = rollout({}, rollout.init(None, None))
    assert metrics["episodes/finished"] == (4 if same else 0) and metrics["episodes/failed"] == (0 if same else 4)


def test_policies_of_agents_and_turns_are_refused_for_agents_that_are_not_there():
    config = tiny_task.get_config("grpo+arithmetic_debate")
    config.agents = ConfigDict({"ada": "main", "ben": "main", "cleo": "other"})
    config.policies.other = defaults.policy()
    with pytest.raises(ConfigError, match="config.agents.cleo is not a seat of arithmetic_debate"):
        validate.check(config)
