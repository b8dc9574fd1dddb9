"""Remote models of a run against a scripted server: failures, cache, cost, rate, drift and checks before a run."""

import asyncio
import dataclasses
import json
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marl_jax.errors import RunStopped
from marl_jax.rollouts.host.conversation import RemoteLost
from marl_jax.serving.remote import RemoteError
from marl_jax.serving.remote_limits import CostMeter, RateLimit, ServedModels
from marl_jax.serving.remote_models import RemoteModels, RemoteSettings
from tests.marl_jax.fake_openai import fake_openai

pytestmark = pytest.mark.quick

USER = [{"role": "user", "content": "Hello?"}]


def models(folder=None, **settings):
    return RemoteModels(RemoteSettings(**{"deadline": 5.0, **settings}), folder)


def complete(found, place, messages=USER, **settings):
    return asyncio.run(found.complete(place, messages, **settings))


@dataclasses.dataclass
class FakeTime:
    """A clock that only moves while somebody sleeps."""

    now: float = 0.0

    def clock(self):
        return self.now

    async def sleep(self, seconds):
        self.now += seconds
        await asyncio.sleep(0)


# -------------------------------------------------------------------------------------------------------- responses


def test_a_request_has_everything_and_is_not_repeated(tmp_path):
    with fake_openai(reply=lambda body: f"{body['messages'][-1]['content']} {body.get('seed')}") as server:
        found = models(tmp_path)
        settings = dict(n=2, temperature=0.7, max_tokens=9, seed=3, stop=("\n",))
        first = complete(found, server.place, **settings)
        assert first == [("Hello? 3", "stop")] * 2
        expected = {"model": "m", "messages": USER, **settings, "stop": ["\n"]}
        assert server.asked == [expected]
        assert complete(models(tmp_path), server.place, **settings) == first  # another process
        assert complete(found, server.place, **{**settings, "seed": 4}) != first
        assert len(server.asked) == 2 and found.totals == {"requests": 2, "cached": 0, "cost": 0}
        complete(models(tmp_path, cache=""), server.place, **settings)
        assert len(server.asked) == 3
        assert (tmp_path / "responses.jsonl").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_server_is_asked_again(status):
    with fake_openai(fail=lambda number: (status, {"Retry-After": "0"}) if number < 1 else None) as server:
        assert complete(models(), server.place) == [("A short reply.", "stop")]
        assert len(server.asked) == 2


def test_failures_fail_the_episode_only(monkeypatch):
    with fake_openai(fail=lambda number: (503, {})) as server, pytest.raises(RemoteLost, match="status 503"):
        complete(models(deadline=0.1), server.place)
    with fake_openai(hang=lambda body: True) as server, pytest.raises(RemoteLost, match="within 0.1 s"):
        complete(models(deadline=0.1), server.place)
    with fake_openai(reply=lambda body: 7) as server, pytest.raises(RemoteLost, match="1 choices"):
        complete(models(), server.place)
    monkeypatch.setenv("MY_KEY", "sk-secret")
    with fake_openai(key="other") as server, pytest.raises(RemoteLost, match="status 401") as error:
        complete(models(key_env="MY_KEY"), server.place)
    assert "sk-secret" not in str(error.value) and "***" in str(error.value)
    with fake_openai(key="sk-secret") as server:
        assert complete(models(key_env="MY_KEY"), server.place)


def test_a_run_checks_its_endpoints_before_it_starts(monkeypatch):
    with fake_openai(served=("m", "other")) as server:
        found = models()
        found.check({"config.agents.user": server.place})
        with pytest.raises(RemoteError, match=r"config.agents.user is .* does not serve 'n'; its models: m, other"):
            found.check({"config.agents.user": f"{server.url}#n"})
        server.key = "k"
        monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
        with pytest.raises(RemoteError, match="status 401") as error:
            found.check({"config.agents.user": server.place})
        assert "sk-secret" not in str(error.value)
        server.served, server.key = None, ""
        found.check({"config.agents.user": server.place})  # a server without a list of models
        assert not server.asked
    with pytest.raises(RemoteError, match="Connect call failed"):
        models(deadline=0.2).check({"config.agents.user": server.place})


# ------------------------------------------------------------------------------------------------------------- cost


def test_costs_are_reserved_and_settled_and_survive(tmp_path):
    prices = dict(price_in=1e6, price_out=2e6, max_cost=1000.0)  # a token costs 1 or 2
    with fake_openai(usage=(10, 5)) as server:
        found = models(tmp_path, **prices)
        complete(found, server.place, max_tokens=100)
        assert found.totals["cost"] == 20
        again = models(tmp_path, **prices)
        assert again.totals["cost"] == 20
        with pytest.raises(RunStopped, match="config.remote.max_cost is 1000, but 20 are spent"):
            complete(again, server.place, max_tokens=500)
        assert len(server.asked) == 1
        complete(again, server.place, max_tokens=100)  # known
        server.usage = None
        with pytest.raises(RunStopped, match="no usage"):
            complete(again, server.place, max_tokens=101)
        cost = again.totals["cost"]
        assert cost > 20 + 2 * 101 and models(tmp_path, **prices).totals["cost"] == cost


def test_a_request_of_a_killed_run_keeps_its_reservation(tmp_path):
    path = tmp_path / "cost.jsonl"
    meter = CostMeter(path, (1e6, 1e6), 100)
    asyncio.run(meter.reserve(10, 20))
    path.write_bytes(path.read_bytes() + b'{"request": 1, "co')
    again = CostMeter(path, (1e6, 1e6), 100)
    assert again.total == 30
    number = asyncio.run(again.reserve(1, 1))
    again.settle(number, {"prompt_tokens": 1, "completion_tokens": 0})
    again.end(number)
    assert CostMeter(path, (1e6, 1e6), 100).total == again.total == 31
    for line in path.read_text().splitlines()[2:]:
        assert json.loads(line)["request"] == 1


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 30), st.floats(0, 1)), max_size=12), st.integers(1, 100))
def test_the_maximum_cost_is_never_exceeded(requests, most):
    async def all_of_them():
        time = FakeTime()
        meter = CostMeter(None, (1e6, 1e6), most, time.sleep)

        async def one(prompt, completion, share):
            number = await meter.reserve(prompt, completion)
            assert meter.total <= most + 1e-9
            await asyncio.sleep(0)
            meter.settle(number, {"prompt_tokens": prompt, "completion_tokens": int(share * completion)})
            meter.end(number)
            return prompt + int(share * completion)

        done = await asyncio.gather(*(one(*request) for request in requests), return_exceptions=True)
        assert sum(cost for cost in done if not isinstance(cost, RunStopped)) == pytest.approx(meter.total)
        assert all(isinstance(cost, int | RunStopped) for cost in done)
        if sum(prompt + completion for prompt, completion, _ in requests) <= most:
            assert not any(isinstance(cost, RunStopped) for cost in done)

    asyncio.run(all_of_them())


# ---------------------------------------------------------------------------------------------------- rate and drift


@given(st.integers(1, 5), st.lists(st.floats(0, 90), min_size=1, max_size=20))
def test_no_minute_has_more_requests_than_allowed(most, pauses):
    async def requests():
        time, sent = FakeTime(), []
        limit = RateLimit(most, time.clock, time.sleep)
        for pause in pauses:
            time.now += pause
            await limit.wait()
            sent.append(time.now)
        return sent

    sent = asyncio.run(requests())
    for i in range(len(sent) - most):
        assert sent[i + most] - sent[i] >= 60 - 1e-6


def test_retries_count_as_requests():
    time = FakeTime()
    with fake_openai(fail=lambda number: (429, {"Retry-After": "0"}) if number < 2 else None) as server:
        found = RemoteModels(RemoteSettings(requests_per_minute=1), None, (0, 1), time.clock, time.sleep)
        complete(found, server.place)
    assert time.now == pytest.approx(120)


def test_another_model_stops_the_run_or_is_logged(tmp_path, caplog):
    with fake_openai() as server:
        complete(models(tmp_path), server.place)
        assert json.loads((tmp_path / "models.json").read_text()) == {server.place: [["m", "v0"]]}
        server.fingerprint = "v1"
        with pytest.raises(RunStopped, match="now returns model 'm' with system_fingerprint 'v1', but"):
            complete(models(tmp_path), server.place, seed=1)
        with caplog.at_level(logging.WARNING):
            found = models(tmp_path, drift="log")
            complete(found, server.place, seed=1)
            complete(found, server.place, seed=2)
        assert len([record for record in caplog.records if "now returns" in record.message]) == 1
        complete(models(tmp_path), server.place, seed=3)  # accepted from now on
        server.fingerprint, server.model = "v0", "n"
        with pytest.raises(RunStopped, match="model 'n'"):
            complete(models(tmp_path), server.place, seed=4)


def test_strange_names_of_models_are_harmless():
    served = ServedModels(None, "stop")
    for answer in ({"model": 7}, {"model": None, "system_fingerprint": ["x"]}, {}):
        served.check("place", answer)
