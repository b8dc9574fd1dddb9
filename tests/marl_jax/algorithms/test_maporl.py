"""MAPoRL's PPO: token GAE with a KL per token, against loops in NumPy over one (question, turn, agent) at a time."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from configs import algorithms, defaults, published
from marl_jax.agents.scoring import Scores
from marl_jax.algorithms import ALGORITHMS, algorithm, ppo, settings_from
from marl_jax.learning.update import Scheduled
from marl_jax.schema import validate
from tests.marl_jax.tiny_samples import by_hand

QUESTIONS, AGENTS, TURNS, LONGEST = 4, 2, 3, 5
ON_HOST = types.SimpleNamespace(on_host=True, keeps_cache=False, critic="head")


def prepared(samples, algo, monkeypatch, values, reference):
    """Samples with advantages; the critic and the reference say what is given."""

    @jax.jit
    def compute(samples, values, reference):
        scores = Scores(samples.logps, 0 * samples.logps, values)
        monkeypatch.setattr(ppo, "score_in_parts", lambda *_: scores)
        monkeypatch.setattr(algorithm, "score_in_parts", lambda *_: reference)
        return ppo.compute_advantages(ON_HOST, {}, samples, algo)[0]

    return jax.device_get(compute(samples, np.asarray(values, np.float32), np.asarray(reference, np.float32)))


class Debates:
    """Random debates: `of[q, t, a]` holds the arrays of one answer, and `samples` all of them, a row for each chat."""

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.of = {}
        for place in np.ndindex(QUESTIONS, TURNS, AGENTS):
            n = int(rng.integers(1, LONGEST + 1))
            noise = {name: rng.normal(size=n) for name in ("values", "drift", "step", "value_step")}
            logps = -1 + 0.3 * rng.normal(size=n)
            self.of[place] = dict(
                logps=logps, ref=logps - noise["drift"], new=logps + 0.3 * noise["step"], reward=rng.normal(),
                values=noise["values"], new_values=noise["values"] + 0.4 * noise["value_step"],
            )  # fmt: skip
        self.places = {}
        completion_of = np.full((QUESTIONS * AGENTS, TURNS * LONGEST), -1)
        turn, seat = (np.zeros((QUESTIONS * AGENTS, TURNS), np.int32) for _ in range(2))
        rewards = np.zeros((QUESTIONS * AGENTS, TURNS, AGENTS), np.float32)
        completion_at, ends = np.zeros((TURNS * AGENTS, QUESTIONS), np.int32), np.zeros(turn.shape, bool)
        for q, a in np.ndindex(QUESTIONS, AGENTS):
            x, row = 0, q * AGENTS + a
            for t in range(TURNS):
                size = len(self.of[q, t, a]["logps"])
                self.places[q, t, a] = row, slice(x, x + size)
                completion_of[row, x : x + size], x = t, x + size
                turn[row, t], seat[row, t], rewards[row, t, a] = t, a, self.of[q, t, a]["reward"]
                completion_at[t * AGENTS + a, q], ends[row, t] = row * TURNS + t, (t, a) == (TURNS - 1, AGENTS - 1)
        self.samples = by_hand(
            completion_of, n_seats=AGENTS, turn=turn, seat=seat, ends=ends, rewards=rewards,
            completion_at=completion_at, logps=self.wide("logps"),
        )  # fmt: skip

    def wide(self, name):
        """An array of the answers as rows [N, X]."""
        found = np.zeros((QUESTIONS * AGENTS, TURNS * LONGEST))
        for place, (row, x) in self.places.items():
            found[row, x] = self.of[place][name]
        return found.astype(np.float32)


def reference(answers, kl_coef, train_turns):
    """Advantages, returns, loss and its gradients by new log-probabilities and values, as the paper has them."""
    advantages, returns = {}, {}
    for place, one in answers.items():
        paid = -kl_coef * (one["logps"] - one["ref"])
        paid[-1] += one["reward"]
        following, after, found = 0.0, 0.0, []
        for k in reversed(range(len(paid))):
            following = paid[k] + after - one["values"][k] + 0.95 * following
            after = one["values"][k]
            found.insert(0, following)
        advantages[place] = np.array(found)
        returns[place] = advantages[place] + one["values"]
    for t, a in np.ndindex(TURNS, AGENTS):
        if t in train_turns:
            every = np.concatenate([advantages[q, t, a] for q in range(QUESTIONS)])
            for q in range(QUESTIONS):
                advantages[q, t, a] = (advantages[q, t, a] - every.mean()) / (every.std() + 1e-6)
    tokens = sum(len(one["logps"]) for (_, t, _), one in answers.items() if t in train_turns)
    loss, by_logp, by_value = 0.0, {}, {}
    for (q, t, a), one in answers.items():
        ratio, advantage = np.exp(one["new"] - one["logps"]), advantages[q, t, a]
        clipped = np.clip(ratio, 0.8, 1.2)
        free = -advantage * ratio >= -advantage * clipped
        near = one["values"] + np.clip(one["new_values"] - one["values"], -0.2, 0.2)
        far, close = one["new_values"] - returns[q, t, a], near - returns[q, t, a]
        inside = np.abs(one["new_values"] - one["values"]) < 0.2
        learns = (t in train_turns) / tokens
        loss += learns * np.sum(np.maximum(-advantage * ratio, -advantage * clipped))
        loss += learns * 0.1 * 0.5 * np.sum(np.maximum(far**2, close**2))
        by_logp[q, t, a] = learns * np.where(free, -advantage * ratio, 0.0)
        by_value[q, t, a] = learns * 0.1 * np.where(far**2 >= close**2, far, np.where(inside, close, 0.0))
    return advantages, returns, loss, by_logp, by_value


@pytest.mark.nightly_for("False")
@pytest.mark.parametrize("released", [False, True])
def test_advantages_loss_and_gradients_are_those_of_the_paper(released, monkeypatch):
    debates, algo = Debates(released), settings_from(published.maporl(TURNS, released))
    learns = np.isin(debates.samples.turn, algo.train_turns).astype(np.float32)
    given = debates.samples.replace(loss_weights=jnp.asarray(learns))
    rows = prepared(given, algo, monkeypatch, debates.wide("values"), debates.wide("ref"))
    advantages, returns, loss, by_logp, by_value = reference(debates.of, 2e-3 if released else 2e-4, (1, 2))
    for place, (row, x) in debates.places.items():
        np.testing.assert_allclose(rows.returns[row, x], returns[place], atol=1e-5)
        if place[1]:
            np.testing.assert_allclose(rows.advantages[row, x], advantages[place], atol=1e-4)
    objective = ALGORITHMS.get("ppo").objective

    def ours(logps, values):
        weighed = objective.loss_weights_for(rows, algo)
        return objective.loss(rows, weighed, Scores(logps, 0 * logps, values), algo, Scheduled(algo.entropy_coef))[0]

    found, gradients = jax.jit(jax.value_and_grad(ours, (0, 1)))(debates.wide("new"), debates.wide("new_values"))
    assert float(found) == pytest.approx(loss, abs=1e-5)
    gradients = jax.device_get(gradients)
    for place, (row, x) in debates.places.items():
        for gradient, expected in zip(gradients, (by_logp, by_value), strict=True):
            np.testing.assert_allclose(gradient[row, x], expected[place], atol=2e-6, err_msg=str(place))
            assert place[1] or not np.any(gradient[row, x]), "the first turn does not learn"
    assert max(np.abs(g).max() for g in by_logp.values()) > 1e-3 < max(np.abs(g).max() for g in by_value.values())


def test_a_kl_per_token_by_hand(monkeypatch):
    """Log-probabilities 0.5, -0.2 and 0.1 above the reference, weight 0.1, values 0.2, 0.4 and 0.1, reward 1."""
    algo = algorithms.ppo(
        gae="token", gamma=0.0, lam=0.95, kl_coef=0.1, kl_in="reward", kl_kind="k1", whiten="none", tis_clip=0.0
    )
    samples = by_hand([[0, 0, 0, -1]], rewards=np.ones((1, 1, 1), np.float32), ends=np.ones((1, 1), bool),
                      completion_at=np.zeros((1, 1), np.int32))  # fmt: skip
    rows = prepared(samples, algo, monkeypatch, [[0.2, 0.4, 0.1, 9.0]], [[-0.5, 0.2, -0.1, 9.0]])
    last = 1 - 0.01 - 0.1  # the value after the last token is 0
    middle = 0.02 + 0.1 - 0.4 + 0.95 * last
    first = -0.05 + 0.4 - 0.2 + 0.95 * middle
    np.testing.assert_allclose(rows.advantages, [[first, middle, last, 0]], atol=1e-6)
    np.testing.assert_allclose(rows.returns, [[first + 0.2, middle + 0.4, last + 0.1, 0]], atol=1e-6)


@pytest.mark.parametrize("gae", ["token", "turn"])
def test_an_answer_pays_for_the_kl_of_later_ones_where_turns_are_a_stream(gae, monkeypatch):
    """Without discounts and with λ 1, the return is the sum of the rewards and of the KL from this token on."""
    debates = Debates(5)
    algo = algorithms.ppo(
        gae=gae, gamma=1.0, lam=1.0, kl_coef=0.1, kl_in="reward", kl_kind="k1", whiten="none", tis_clip=0.0
    )
    nothing = 0 * debates.wide("values")
    rows = prepared(debates.samples, algo, monkeypatch, nothing, debates.wide("ref"))
    for (q, t, a), (row, x) in debates.places.items():
        own = [debates.of[q, u, a] for u in range(t, TURNS)]
        total = sum(one["reward"] - 0.1 * np.sum(one["logps"] - one["ref"]) for one in own)
        spent = -0.1 * np.cumsum(own[0]["logps"] - own[0]["ref"])
        expected = total - np.concatenate([[0], spent[:-1]]) if gae == "token" else total
        np.testing.assert_allclose(rows.advantages[row, x], expected, atol=1e-4)


@pytest.mark.parametrize("kind", ["agent", "turn"])
def test_advantages_are_whitened_by_agent_or_by_agent_and_turn(kind, monkeypatch):
    debates, algo = Debates(7), published.maporl(TURNS, whiten=kind)
    rows = prepared(debates.samples, algo, monkeypatch, debates.wide("values"), debates.wide("ref"))
    means = {}
    for t, a in np.ndindex(TURNS, AGENTS):
        of_turn = [rows.advantages[row, x] for (_, u, b), (row, x) in debates.places.items() if (u, b) == (t, a)]
        means.setdefault(a if kind == "agent" else (t, a), []).extend(np.concatenate(of_turn))
    assert len(means) == (AGENTS if kind == "agent" else AGENTS * TURNS)
    for found in means.values():
        np.testing.assert_allclose((np.mean(found), np.std(found)), (0, 1), atol=1e-4)


def test_the_preset_is_accepted_for_a_task_and_refused_for_a_game():
    config = defaults.get_config()
    defaults.use_task(config, "arithmetic_debate", agents=2, turns=3)
    config.algo = published.maporl()
    config.optim.update(published.MAPORL_OPTIM)
    validate.check(config)
    assert config.algo.train_turns == (1, 2) and published.maporl(2, released=True).train_turns == (1,)
    game = defaults.get_config()
    game.rollout.completion, game.algo = "free", published.maporl()
    with pytest.raises(ValueError) as refused:
        validate.check(game)
    for field in ("critic_reads is 'completion'", "whiten is 'turn'", "train_turns is (1, 2)"):
        assert field in str(refused.value)
