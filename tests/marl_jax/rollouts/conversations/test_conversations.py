"""Rows of several completions: log-probabilities, loss and gradients equal those of separate rows."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.agents import scoring
from marl_jax.algorithms import ALGORITHMS
from marl_jax.learning import update
from models.model import build
from tests.conftest import nightly_cases
from tests.marl_jax import tiny_conversations as tiny
from tests.marl_jax import tiny_play, tiny_samples
from tests.models.tiny_models import largest, largest_difference, quick_jit

pytestmark = pytest.mark.long

N, TIME, SIZE, WIDTH = 3, 64, 9, 3


@functools.cache
def policy(free=True, long_names=True, prefix=False, **settings):
    """Of two layers: with one, what a token that predicts nothing has seen would make no difference."""
    made = tiny_play.policy(long_names=long_names and not free, free=WIDTH if free else 0, **settings)
    model = build(dataclasses.replace(made.model.cfg, n_layers=2))
    return dataclasses.replace(made, model=model, rules=tiny_samples.PREFIX if prefix else ())


def names(policy):
    """The names of the actions as tokens; None for free text."""
    if not hasattr(policy.answers, "choices"):
        return None
    ids, lengths = policy.answers.written()
    return [row[:n].tolist() for row, n in zip(ids, lengths, strict=True)]


@dataclasses.dataclass(frozen=True)
class Watched:
    """PPO's objective, which also gives away the scores."""

    loss_weights_for = ALGORITHMS.get("ppo").objective.loss_weights_for

    def loss(self, *given):
        loss, metrics = ALGORITHMS.get("ppo").objective.loss(*given)
        return loss, {**metrics, "scores": given[2]}


@functools.cache
def program(policy, **settings):
    """(state, samples) -> (gradients, metrics), compiled once for all rows of one shape."""
    algo = tiny_play.ppo(value_clip=0.0, gae="token", **settings)
    scheduled = update.Scheduled(algo.entropy_coef)
    return quick_jit(lambda state, samples: update.summed_gradients(policy, Watched(), algo, scheduled, state, samples))


@functools.cache
def train_state(policy):
    return update.TrainState(*tiny_play.weights(policy), None, np.int32(0))


def check(policy, rows, size=SIZE, **settings):
    """Learns from the rows in both layouts and compares."""
    skip, width = len(policy.prefix), policy.width
    samples = tiny.together(rows, skip, TIME, size, width, strided=names(policy) is not None)
    alone = tiny.apart(rows, skip, TIME, size, width)
    scores, expected = agree(policy, samples, alone, **settings)
    for name, found, wanted in zip(scores._fields, scores, expected, strict=True):
        for i, row in enumerate(rows):
            for s, (_, answer) in enumerate(tiny.prompts_of(row)):
                mine = np.asarray(found[i])[np.asarray(samples.completion_of[i]) == s]
                other = np.asarray(wanted[i * size + s, : len(answer.tokens)])
                np.testing.assert_allclose(mine, other, rtol=1e-5, atol=2e-6, err_msg=f"{name} of {i}, {s}")
    return samples


def agree(policy, samples, alone, packed=None, **settings):
    """Checks that loss, metrics and gradients are the same, and gives the scores of both."""
    state = train_state(policy)
    grads, metrics = program(policy, **settings, **(packed or {}))(state, samples)
    expected, expected_metrics = program(policy, **settings)(state, alone)
    scores, expected_scores = metrics.pop("scores"), expected_metrics.pop("scores")
    assert largest_difference(grads, expected) < 1e-5 * largest(expected)
    assert largest(expected) > 1e-3
    for name, value in expected_metrics.items():
        np.testing.assert_allclose(metrics[name], value, rtol=1e-5, atol=2e-6, err_msg=name)
    return scores, expected_scores


CASES = {
    "one-token names": dict(free=False, long_names=False),
    "free text": dict(),
    "separate critic": dict(critic="separate", prefix=True),
    "central critic": dict(critic="central"),
    "adapters and names": dict(lora=2, free=False, prefix=True),
}


@pytest.mark.nightly_for("adapters and names", "central critic")
@pytest.mark.parametrize("case", nightly_cases(CASES, "separate critic", "one-token names"))
def test_later_answers_see_earlier_ones(case):
    """One conversation in each row: no mask, plain causal attention."""
    made = policy(**CASES[case])
    rng = np.random.default_rng(0)
    rows = tiny.random_rows(rng, N, 1, 4, made.width, names=names(made), policies=2 if made.lora else 1)
    samples = check(made, rows)
    assert samples.segment is None and samples.branch is None
    assert int(jnp.max(jnp.sum(samples.completion_lengths > 0, axis=1))) > 1


@pytest.mark.nightly_for("separate critic")
@pytest.mark.parametrize("case", ["separate critic", "adapters and names"])
def test_conversations_share_a_row_and_candidates_branch_off_them(case):
    made = policy(**CASES[case])
    rng = np.random.default_rng(1)
    rows = tiny.random_rows(rng, N, 2, 2, made.width, 2, names=names(made), policies=2 if made.lora else 1)
    samples = check(made, rows)
    assert samples.segment is not None
    assert (samples.branch is not None) == (made.width > 1), "of a candidate of one token nothing is read"


@pytest.mark.parametrize("seed", range(2, 6))
def test_any_conversations(seed):
    """Other rows of the same shapes, with adapters after a prefix; all of them are one program."""
    made = policy(lora=2, prefix=True)
    check(made, tiny.random_rows(np.random.default_rng(seed), N, 2, 2, made.width, 2, policies=2))


@pytest.mark.nightly_for("segments")
@pytest.mark.parametrize("branches", [False, True], ids=["segments", "branches"])
def test_only_segments_or_only_branches(branches):
    made = policy()
    rng = np.random.default_rng(9)
    samples = check(made, tiny.random_rows(rng, N, 1 if branches else 2, 3, WIDTH, 3 if branches else 1))
    assert (samples.segment is None, samples.branch is None) == (branches, not branches)


@pytest.mark.nightly_for("settings1")
@pytest.mark.parametrize("settings", [dict(loss_agg="sequence"), dict(loss_agg="sequence", ratio="sequence")])
def test_means_are_over_answers_not_rows(settings):
    check(policy(), tiny.random_rows(np.random.default_rng(4), N, 2, 2, WIDTH, 2), **settings)


@pytest.mark.nightly_for("adapter and prefix")
@pytest.mark.parametrize(
    "settings",
    [dict(critic="head"), dict(critic="none", lora=1, prefix=True)],
    ids=["value head", "adapter and prefix"],
)
def test_packed_conversations(settings):
    """Rows of several answers share rows of twice their length; loss and gradients are those of the answers alone."""
    made = policy(**settings)
    rows = tiny.random_rows(np.random.default_rng(5), 4, 1, 4, WIDTH)
    layout = (len(made.prefix), TIME, 4, WIDTH)
    samples, alone = tiny.together(rows, *layout), tiny.apart(rows, *layout)
    assert int(jnp.max(jnp.sum(samples.completion_lengths > 0, axis=1))) > 1
    agree(made, samples, alone, packed=dict(pack=2))


@pytest.mark.nightly
@pytest.mark.parametrize("case", nightly_cases(["free text", "adapters and names"], "free text"))
def test_candidates_behind_one_prompt(case):
    """`from_prompts` with K answers, which has its own layout, against K rows of one answer."""
    made = policy(**CASES[case])
    rng, k = np.random.default_rng(6), 3
    rows = []
    for number in range(N):
        answers = [tiny.random_answer(rng, made.width, names(made)) for _ in range(k)]
        reads = rng.integers(1, tiny.VOCABULARY, rng.integers(1, 9)).tolist()
        rows.append(tiny.Row([[tiny.Exchange(reads, answers, 0, answers[0].tokens)]], number % 2 if made.lora else 0))
    skip = len(made.prefix)
    alone = tiny.apart(rows, skip, TIME, k, made.width)
    samples = behind_one_prompt(alone, k, skip)
    assert bool(samples.branch_len) == (made.width > 1) and samples.n_completions == k
    mask = np.asarray(alone.mask(), bool)
    scores, expected = agree(made, samples, alone)
    for name, found, wanted in zip(scores._fields, scores, expected, strict=True):
        found = np.asarray(found).reshape(mask.shape)
        np.testing.assert_allclose(found[mask], np.asarray(wanted)[mask], rtol=1e-5, atol=2e-6, err_msg=name)


def behind_one_prompt(alone, k, skip):
    """Rows of one answer as rows of k answers to the prompt of each k-th."""
    n, width = alone.n // k, alone.width
    lengths = alone.context_len[::k, 0] - skip
    prompts = jnp.where(jnp.arange(TIME) < lengths[:, None], alone.tokens[::k, :TIME], 0)
    grouped = lambda x: x.reshape(n, k, *x.shape[2:])  # noqa: E731
    same = {name: grouped(getattr(alone, name)) for name in ("rewards", "action", "legal", "loss_weights")}
    samples = tiny.from_prompts(
        prompts, lengths, alone.targets.reshape(n, k, width), grouped(alone.completion_lengths),
        alone.logps.reshape(n, k, width), skip=skip, policy=alone.policy[::k], **same,
    )  # fmt: skip
    wide = {name: getattr(alone, name).reshape(n, k * width) for name in ("values", "advantages", "returns")}
    return samples.replace(**wide)


def test_what_a_branch_says_is_not_heard_elsewhere():
    """Other tokens on a branch change its own answer and nothing else."""
    made = policy(critic="head")
    rows = tiny.random_rows(np.random.default_rng(7), N, 2, 2, WIDTH, 2)
    samples = tiny.together(rows, 0, TIME, SIZE, WIDTH)
    heard = np.asarray(samples.branch >= 0)
    row, place = (int(i[0]) for i in np.nonzero(heard))
    branch = int(samples.branch[row, place])
    other = samples.replace(tokens=samples.tokens.at[row, place].add(1))
    score = quick_jit(lambda s: scoring.score(made, train_state(made).weights, s).logps)
    changed = np.abs(np.asarray(score(other) - score(samples))) > 1e-7
    mine = (np.asarray(samples.completion_of) == branch) & (np.arange(N) == row)[:, None]
    assert changed[mine].any() and not changed[~mine].any()


def test_answers_that_do_not_exist_change_nothing():
    """Room for more answers, tokens and central views, whatever it holds: zeros."""
    made = policy(critic="central")
    rows = tiny.random_rows(np.random.default_rng(8), N, 1, 2, WIDTH)
    tight = tiny.together(rows, 0, TIME, SIZE, WIDTH)
    exists = tight.completion_lengths > 0
    tokens, lengths = tight.central
    empty = tight.replace(central=(tokens, jnp.where(exists, lengths, 0)))
    found, expected = (program(made)(train_state(made), samples)[0] for samples in (empty, tight))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)
