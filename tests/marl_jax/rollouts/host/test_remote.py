"""Rollouts with remote models and judges: no remote token reaches the learner, and a replay asks nobody."""

import asyncio

import numpy as np
import pytest

from envs.tasks.judges import Judge, Referee
from envs.tasks.judges.referee import Contest, ruled
from marl_jax.errors import RunStopped
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.settings import Sampling
from marl_jax.serving.remote_models import RemoteModels, RemoteSettings
from marl_jax.serving.remote_speaker import remote_speaker
from tests.marl_jax.fake_openai import fake_openai
from tests.marl_jax.judge_run import judge_of, judged
from tests.marl_jax.tiny_host import FakeSampler, assert_equal_samples, conversation, make_rollout

pytestmark = pytest.mark.quick

REMOTE_SEAT = 1


def roll(task, server, folder=None, sampler=None, settings=(), judge=None, **kwargs):
    """Play a rollout in which the second seat is remote; (samples, metrics, rollout)."""
    sampler = sampler or FakeSampler()
    models = RemoteModels(RemoteSettings(**{"deadline": 2.0, "cache": "", **dict(settings)}))
    own = Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=8), 4000)
    speakers = [own, remote_speaker(server.place, own.sampling, models)]
    rollout = make_rollout(
        task, sampler, speakers=speakers, seating=lambda seat, turn: int(seat == REMOTE_SEAT),
        journal=folder, remote_totals=lambda: models.totals, **kwargs,
    )  # fmt: skip
    rollout.runner.judge = judge
    try:
        samples, _, metrics = rollout({}, rollout.init(None, None))
    finally:
        rollout.close()
    return samples, metrics


def says(body):
    """Return a reply that depends on the request, in letters that no other text has."""
    return f"zZz{body['seed']}zZz"


@pytest.mark.parametrize("time_order", [False, True])
def test_no_remote_token_reaches_the_learner(time_order):
    with fake_openai(reply=says) as server:
        samples, metrics = roll(conversation, server, time_order=time_order)
        local, _ = roll(conversation, server, time_order=time_order)
        replies = [m["content"] for body in server.asked for m in body["messages"] if m["role"] == "assistant"]
        assert replies and all(text.startswith("zZz") for text in replies)  # the model sees its own replies
    assert metrics["remote/requests"] == metrics["episodes"] * 2 and metrics["episodes/failed"] == 0
    assert_equal_samples(samples, local)
    remote = np.asarray(samples.seat) == REMOTE_SEAT
    remote &= np.asarray(samples.completion_lengths) > 0
    rows = remote.any(axis=1)
    assert rows.sum() == metrics["episodes"] and not (~remote & (samples.completion_lengths > 0))[rows].any()
    assert (samples.policy[rows] == -1).all() and not samples.loss_weights[rows].any()
    assert (samples.completion_lengths[remote] == 1).all() and (samples.lengths[rows] == 1).all()
    for name in ("tokens", "targets", "logps"):
        assert not np.asarray(getattr(samples, name))[rows].any(), name
    assert (samples.lengths < 500).all()
    # Rewards of remote turns stay: team, own and process rewards of both of them.
    one = samples.rewards[rows][0][: int(remote[rows][0].sum())]
    assert one[:, 0].tolist() == [0, 1] and (one[:, REMOTE_SEAT] > [2, 3]).all()


def test_a_replay_repeats_no_request(tmp_path):
    with fake_openai(reply=says, fail=lambda number: (400, {}) if number == 3 else None) as server:
        first, metrics = roll(conversation, server, tmp_path)
        asked = len(server.asked)
        assert metrics["episodes/failed/remote_failed"] == 1 and asked == metrics["remote/requests"] > 4
        server.reply, server.fail = lambda body: "another reply", lambda number: (500, {})
        again, counted = roll(conversation, server, tmp_path)
        assert_equal_samples(first, again)
        assert len(server.asked) == asked and counted["remote/requests"] == 0
        assert counted["episodes/failed/remote_failed"] == 1


def test_an_interrupted_rollout_repeats_only_what_is_missing(tmp_path):
    with fake_openai(reply=says) as server:
        whole, metrics = roll(conversation, server)
        n = int(metrics["remote/requests"])
        server.asked.clear()
        prices = dict(price_in=0.0, price_out=1e6, max_cost=8.0 * 4)  # a request may cost 8
        server.usage = (1, 8)
        with pytest.raises(RunStopped, match="config.remote.max_cost"):
            roll(conversation, server, tmp_path, settings=prices)
        assert 0 < len(server.asked) < n
        done, _ = roll(conversation, server, tmp_path)
        assert_equal_samples(whole, done)
        bodies = [str(body) for body in server.asked]
        assert len(bodies) == len(set(bodies)) == n


def test_all_processes_stop_together():
    with fake_openai(reply=says) as server, pytest.raises(RunStopped, match="another process"):
        roll(conversation, server, gather=lambda value: [value, "another process"] if value == "" else [value])


# ----------------------------------------------------------------------------------------------------------- judges


def test_a_judge_rewards_episodes_in_both_orders(tmp_path):
    def prefers_reference(body):
        first, second = body["messages"][-1]["content"].partition("Answer A:")[2].split("Answer B:")
        return "Verdict: B" if "reference" in second.split("Compare")[0] else "Verdict: A"

    with fake_openai(reply=prefers_reference) as server:
        judge = judge_of(server.place, limit=3.0, weight=2.0, rule_weight=4.0)
        samples, metrics = roll(judged, server, tmp_path, judge=judge)
        assert metrics["task/judge_p"] == metrics["task/judge_flipped"] == metrics["task/judge_agreement"] == 0
        assert metrics["reward/one"] == 1.0 and metrics["success"] == 0.25  # 4 · 0.25 + 2 · 0
        assert len(server.asked) == 2 * metrics["episodes"]
        server.reply = lambda body: "Verdict: A"
        again, _ = roll(judged, server, tmp_path, judge=judge)
        assert_equal_samples(samples, again)
        assert len(server.asked) == 2 * metrics["episodes"]
        _, metrics = roll(judged, server, judge=judge)  # always the first one: a tie
        assert metrics["task/judge_flipped"] == 1 and metrics["task/judge_p"] == metrics["task/judge_agreement"] == 0.5
    _, metrics = roll(judged, server)
    assert metrics["reward/one"] == 0.25 and "task/judge_p" not in metrics


@pytest.mark.parametrize("reason", ["judge_nonsense", "judge_failed", "judge_timeout"])
def test_a_bad_judge_is_counted(reason, tmp_path):
    bad = lambda body: "train 1" in body["messages"][-1]["content"]  # noqa: E731  # one of the examples
    with fake_openai(reply=lambda body: "Verdict: tie") as server:
        judge = judge_of(server.place, limit=1.5)
        if reason == "judge_nonsense":
            server.reply = lambda body: "I like them both." if bad(body) else "Verdict: tie"
        elif reason == "judge_failed":
            server.fail = lambda number: (400, {}) if bad(server.asked[number]) else None
        else:
            server.hang = bad
        samples, metrics = roll(judged, server, tmp_path, judge=judge, n_examples=7)
        assert metrics[f"episodes/failed/{reason}"] == metrics["episodes/failed"] == 2
        server.reply, server.fail, server.hang = (lambda body: "Verdict: A"), (lambda number: None), lambda body: False
        asked = len(server.asked)
        again, counted = roll(judged, server, tmp_path, judge=judge, n_examples=7)
        assert_equal_samples(samples, again)
        assert len(server.asked) == asked and counted[f"episodes/failed/{reason}"] == 2


def test_a_limit_of_cost_in_a_judge_stops_the_run():
    class Expensive(Judge):
        async def prefer(self, prompt, first, second, criterion):
            raise RunStopped("too expensive")

    with fake_openai() as server, pytest.raises(RunStopped, match="too expensive"):
        roll(judged, server, judge=Referee(Expensive("judge")))


def test_the_rule_judges_by_its_scores():
    class Recorder:
        judge = Referee(None)

        async def record(self, name, call, limit):
            return await call

    async def decide(scores, texts=("a", "b")):
        return await ruled(Recorder(), 0.3, 0.7, lambda against: Contest("p", *texts, scores))

    for scores, p in (((1, 0), 1.0), ((0, 1), 0.0), ((0.5, 0.5), 0.5)):
        ruling = asyncio.run(decide(scores))
        assert (ruling.own, ruling.other) == (p, 1 - p)
    assert asyncio.run(decide((0, 1), ("", "b"))).own == 0
