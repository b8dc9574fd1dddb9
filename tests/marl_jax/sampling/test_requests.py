"""The life of a request: several samples, cancellation, deadlines, new weights, order of arrival, models."""

import dataclasses
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from marl_jax.sampling import batcher as batcher_module
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread, check_routes
from marl_jax.sampling.settings import Sampling, sample_seed
from tests.marl_jax.tiny_engine import CONFIG, adapters, make_engine, model_and_params, random_prompts

pytestmark = pytest.mark.long

LENGTH = 48
PROMPTS = random_prompts([5, 12, 1, 20, 7, 3])
ENGINE = make_engine(with_adapters=True)  # not a fixture, since examples of a test cannot use one
NEW = [model_and_params(seed)[1] for seed in (0, 1, 2)]


def one_adapter(policy, factor=1.0):
    """Return the weights of one adapter, multiplied by a factor."""
    return jax.tree.map(lambda x: factor * x[:, policy], adapters()[0])


@pytest.fixture(scope="module")
def plain():
    return make_engine()


@pytest.fixture(scope="module")
def roles():
    return ENGINE


@pytest.fixture(autouse=True)
def old_weights(request):
    """Start every test with the weights of version 0."""
    if any(ENGINE.versions):
        ENGINE.update(NEW[0], *adapters())
    if "plain" in request.fixturenames and any((engine := request.getfixturevalue("plain")).versions):
        engine.update(NEW[0])


@pytest.fixture
def clock(monkeypatch):
    """Replace the clock by one that only moves when `now` is set."""
    clock = types.SimpleNamespace(now=100.0, perf_counter=time.perf_counter)
    clock.monotonic = lambda: clock.now
    monkeypatch.setattr(batcher_module, "time", clock)
    return clock


def make(engine, **kwargs):
    options = {"rows": 4, "max_length": LENGTH, "chunk": 4, "page_size": 4, "cache_tokens": 4 * LENGTH}
    return Batcher(engine, **{**options, **kwargs})


def squeeze(batcher, tokens):
    """Reserve pages until memory for this many tokens is left; programs do not change."""
    (part,) = batcher._rows.parts
    part.pool.take(part.pool.count - tokens // part.pool.size)
    return batcher


def alone(engine, prompt, sampling, policy=0):
    """Return the completion of an idle engine."""
    answers, _ = engine.generate(engine.prefill([prompt], slots=LENGTH, adapter_ids=[policy]), [sampling])
    return answers[0]


def check_equal(mine, theirs):
    assert mine.tokens.tolist() == theirs.tokens.tolist() and mine.finish == theirs.finish
    np.testing.assert_allclose(mine.logps, theirs.logps, atol=1e-5)
    assert mine.versions.dtype == np.int32 and mine.versions.tolist() == theirs.versions.tolist()


def rows_in_use(batcher):
    return len(batcher._rows.active)


# Samples


def test_samples_of_a_request_equal_single_requests_with_derived_seeds(plain):
    """More samples than rows; the number of samples does not affect any of them."""
    sampling = Sampling(max_new_tokens=9, seed=3)
    batcher = make(plain)
    many, few = batcher.submit(PROMPTS[0], sampling, n=7), batcher.submit(PROMPTS[0], sampling, n=2)
    answers = batcher.run()
    seeds = [sample_seed(3, k) for k in range(7)]
    for answer, seed in zip(answers[many], seeds, strict=True):
        check_equal(answer, alone(plain, PROMPTS[0], dataclasses.replace(sampling, seed=seed)))
    for mine, theirs in zip(answers[few], answers[many], strict=False):
        check_equal(mine, theirs)
    assert len(answers[few]) == 2 and len({tuple(a.tokens.tolist()) for a in answers[many]}) == 7


def test_seeds_of_samples_do_not_meet():
    """Sample 0 has the request's seed; samples of neighbouring seeds are unrelated."""
    seeds = [sample_seed(seed, k) for seed in (0, 1, 2, 2**32 - 1) for k in range(64)]
    assert len(set(seeds)) == len(seeds) and all(0 <= s < 2**32 for s in seeds)
    assert [sample_seed(s, 0) for s in (0, 7)] == [0, 7]
    assert sample_seed(5, 3) == 727168946, "the same in every run and on every machine"


# Cancel and deadline


def test_cancel_frees_the_rows_and_keeps_what_was_written(plain):
    sampling = Sampling(max_new_tokens=30, temperature=0)
    expected = [alone(plain, p, sampling) for p in PROMPTS[:2]]
    batcher = make(plain)
    gone, stays = batcher.submit(PROMPTS[0], sampling, n=6), batcher.submit(PROMPTS[1], sampling)
    batcher.step()
    assert rows_in_use(batcher) == 4 and batcher.usage.running == 1 and batcher.usage.waiting == 1
    assert batcher.cancel(gone) and batcher.results() == []
    batcher.step()
    ((number, answers),) = batcher.results()
    assert number == gone and [a.finish for a in answers] == ["cancelled"] * 6
    for answer in answers[:4]:
        assert answer.tokens.tolist() == expected[0].tokens[:4].tolist() and len(answer.logps) == 4
    assert [len(a.tokens) for a in answers[4:]] == [0, 0], "they never had a row"
    assert rows_in_use(batcher) == 1
    check_equal(batcher.run()[stays][0], expected[1])
    assert not batcher.cancel(gone) and not batcher.cancel(stays) and not batcher.cancel(99)


def test_cancel_keeps_samples_that_have_finished(plain):
    sampling = Sampling(max_new_tokens=30, seed=1)
    ends = [alone(plain, PROMPTS[2], dataclasses.replace(sampling, seed=sample_seed(1, k))).tokens[3] for k in range(2)]
    assert ends[0] != ends[1]
    batcher = make(plain)
    request = batcher.submit(PROMPTS[2], dataclasses.replace(sampling, stop_ids=(int(ends[0]),)), n=2)
    batcher.step()
    batcher.cancel(request)
    assert [a.finish for a in batcher.run()[request]] == ["stop", "cancelled"]


def test_a_deadline_ends_a_request_with_what_it_has(plain, clock):
    sampling = Sampling(max_new_tokens=30, temperature=0)
    expected = [alone(plain, p, sampling) for p in PROMPTS[:3]]
    batcher = make(plain, rows=2)
    numbers = [batcher.submit(p, sampling, deadline=d) for p, d in zip(PROMPTS, (101.0, None, 101.5), strict=False)]
    assert batcher.next_deadline == 101.0
    batcher.step()
    clock.now = 101.0
    batcher.step()
    clock.now = 101.5
    answers = batcher.run()
    late, free, later = (answers[n][0] for n in numbers)
    assert late.finish == later.finish == "deadline"
    assert late.tokens.tolist() == expected[0].tokens[:4].tolist()
    assert later.tokens.tolist() == expected[2].tokens[:4].tolist(), "it got the row of the first"
    check_equal(free, expected[1])
    number = batcher.submit(PROMPTS[0], sampling, deadline=90.0)
    assert [(a.finish, len(a.tokens)) for a in batcher.run()[number]] == [("deadline", 0)]


# Weights


def test_new_weights_wait_for_the_rows_in_flight_and_later_requests_for_them(plain):
    """A request that has begun keeps its weights, also for samples without a row; queued ones get the new weights."""
    fresh = make_engine(params=NEW[1])
    fresh.versions = [7]
    sampling = Sampling(max_new_tokens=10, seed=5)
    seeded = [dataclasses.replace(sampling, seed=sample_seed(5, k)) for k in range(6)]
    old = [alone(plain, PROMPTS[0], s) for s in seeded]
    batcher = make(plain)
    begun, queued = batcher.submit(PROMPTS[0], sampling, n=6), batcher.submit(PROMPTS[1], sampling)
    batcher.step()
    batcher.set_weights(0, NEW[2], version=6)
    batcher.set_weights(0, NEW[1], version=7)
    assert batcher.updating == {0} and batcher.usage.versions == (0,)
    after = batcher.submit(PROMPTS[2], sampling)
    answers = batcher.run()
    assert batcher.updating == set() and batcher.usage.versions == (7,)
    for mine, theirs in zip(answers[begun], old, strict=True):
        check_equal(mine, theirs)
    check_equal(answers[queued][0], alone(fresh, PROMPTS[1], sampling))
    check_equal(answers[after][0], alone(fresh, PROMPTS[2], sampling))
    assert answers[after][0].tokens.tolist() != alone(make_engine(), PROMPTS[2], sampling).tokens.tolist()


def test_an_idle_policy_has_its_weights_at_once_and_the_caller_may_donate_them(plain):
    batcher = make(plain)
    weights = jax.tree.map(jnp.copy, NEW[1])
    batcher.set_weights(0, weights, version=3)
    assert batcher.updating == set() and not batcher.busy
    jax.jit(lambda x: jax.tree.map(jnp.negative, x), donate_argnums=0)(weights)
    assert all(x.is_deleted() for x in jax.tree.leaves(weights))
    sampling = Sampling(max_new_tokens=6)
    number = batcher.submit(PROMPTS[0], sampling)
    answer = batcher.run()[number][0]
    assert answer.tokens.tolist() == alone(make_engine(params=NEW[1]), PROMPTS[0], sampling).tokens.tolist()
    assert answer.versions.tolist() == [3] * 6
    batcher.set_weights(0, make_engine(params=NEW[2]).weights.params, version=4)  # already laid out for decoding
    number = batcher.submit(PROMPTS[0], sampling)
    expected = alone(make_engine(params=NEW[2]), PROMPTS[0], sampling)
    assert batcher.run()[number][0].tokens.tolist() == expected.tokens.tolist()


@pytest.mark.nightly
def test_an_adapter_changes_without_disturbing_the_others(roles):
    """Rows of policy 1 are waited for; those of policy 2 continue, and new ones begin."""
    sampling = Sampling(max_new_tokens=20, seed=2)
    changed = make_engine(with_adapters=True)
    changed.set_weights(1, one_adapter(1, -1.5), 4)
    before = [alone(roles, p, sampling, policy) for p, policy in zip(PROMPTS, (1, 2, 2), strict=False)]
    batcher = make(roles)
    first = [batcher.submit(p, sampling, policy) for p, policy in zip(PROMPTS[:2], (1, 2), strict=True)]
    batcher.step()
    batcher.set_weights(1, one_adapter(1, -1.5), version=4)
    waits, other = batcher.submit(PROMPTS[3], sampling, 1), batcher.submit(PROMPTS[2], sampling, 2)
    batcher.step()
    assert sorted(s.request.policy for s in batcher._rows.active) == [1, 2, 2]
    answers = batcher.run()
    for number, theirs in zip((*first, other), before, strict=True):
        check_equal(answers[number][0], theirs)
    check_equal(answers[waits][0], alone(changed, PROMPTS[3], sampling, 1))
    assert answers[waits][0].versions.tolist() == [4] * 20 and batcher.usage.versions == (0, 4, 0)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", [{}, {"repetition_penalty": 1.7, "top_k": 20}])
def test_an_update_in_flight_continues_the_tokens_under_the_new_weights(plain, kind):
    """Two updates in one completion; every token keeps its version, and the budget does not change."""
    samplings = [Sampling(max_new_tokens=n, seed=i, **kind) for i, n in enumerate((20, 7, 14))]
    engines = [make_engine(params=params) for params in NEW]
    batcher = make(plain, in_flight_updates=True)
    numbers = [batcher.submit(p, s) for p, s in zip(PROMPTS, samplings, strict=False)]
    batcher.step()
    batcher.set_weights(0, NEW[1], version=1)
    batcher.step()
    batcher.set_weights(0, NEW[2], version=2)
    read = sum(len(p) - 1 for p in PROMPTS[:3]) + sum(len(p) + 4 - 1 for p in PROMPTS[:3])
    assert batcher.usage.read == read
    answers = batcher.run()
    assert batcher.usage.read == read + sum(len(PROMPTS[i]) + 8 - 1 for i in (0, 2)), "the second was done"
    assert batcher.usage.reused == 0
    for i, (prompt, sampling) in enumerate(zip(PROMPTS[:3], samplings, strict=True)):
        answer = answers[numbers[i]][0]
        written = []
        for engine, length in zip(engines, (4, 4, 20), strict=True):
            left = sampling.max_new_tokens - len(written)
            if left:
                part = alone(engine, prompt + written, dataclasses.replace(sampling, max_new_tokens=left))
                written += part.tokens[:length].tolist()
        assert answer.tokens.tolist() == written and answer.finish == "length"
        assert answer.versions.tolist() == ([0] * 4 + [1] * 4 + [2] * 20)[: len(written)]
        assert len(answer.logps) == len(written) == sampling.max_new_tokens


@pytest.mark.nightly
def test_an_update_in_flight_reads_the_rows_of_its_policy_only(roles):
    sampling = Sampling(max_new_tokens=12, seed=4)
    other = alone(roles, PROMPTS[1], sampling, 2)
    batcher = make(roles, in_flight_updates=True)
    numbers = [batcher.submit(PROMPTS[0], sampling, 1), batcher.submit(PROMPTS[1], sampling, 2)]
    batcher.step()
    batcher.set_weights(1, one_adapter(1, -1.5), version=9)
    answers = batcher.run()
    assert batcher.usage.read == len(PROMPTS[0]) - 1 + len(PROMPTS[1]) - 1 + len(PROMPTS[0]) + 4 - 1
    assert answers[numbers[0]][0].versions.tolist() == [0] * 4 + [9] * 8
    check_equal(answers[numbers[1]][0], other)


# Order of arrival

requests = st.lists(
    st.tuples(
        st.integers(0, len(PROMPTS) - 1),  # prompt
        st.integers(1, 12),  # budget
        st.integers(0, 3),  # seed
        st.sampled_from([0.0, 1.0]),  # temperature
        st.integers(0, 2),  # policy
        st.integers(1, 3),  # samples
        st.booleans(),  # filters
    ),
    min_size=1, max_size=6,
)  # fmt: skip


def play(batcher, drawn, order, pauses):
    """Submit requests in this order with steps in between, and return their completions."""
    numbers, answers = {}, {}
    for i, steps in zip(order, pauses, strict=True):
        prompt, budget, seed, temperature, policy, n, filters = drawn[i]
        kind = {"top_k": 11} if filters else {}
        sampling = Sampling(max_new_tokens=budget, seed=seed, temperature=temperature, **kind)
        numbers[batcher.submit(PROMPTS[prompt], sampling, policy, n)] = i
        for _ in range(steps):
            batcher.step()
            answers |= dict(batcher.results())
    answers |= batcher.run()
    assert set(answers) == set(numbers), "every request is answered once"
    return {numbers[number]: found for number, found in answers.items()}


@pytest.mark.nightly
@given(requests, st.data(), st.booleans())
@settings(max_examples=15, deadline=None)
def test_answers_do_not_depend_on_the_order_of_arrival(drawn, data, fixed):
    """Nor on memory: tokens are always the same, and with fixed shapes log-probs are bit-equal."""
    plays = []
    for _ in range(2):
        order = data.draw(st.permutations(range(len(drawn))))
        pauses = data.draw(st.lists(st.integers(0, 2), min_size=len(drawn), max_size=len(drawn)))
        memory = data.draw(st.sampled_from([1, 2, 4])) * LENGTH
        plays.append(play(squeeze(make(ENGINE, fixed_shapes=fixed), memory), drawn, order, pauses))
    check_plays(plays, fixed)


def check_plays(plays, fixed):
    for other in plays[1:]:
        for i, found in plays[0].items():
            for mine, theirs in zip(other[i], found, strict=True):
                check_equal(mine, theirs)
                assert not fixed or mine.logps.tobytes() == theirs.logps.tobytes()


@pytest.mark.nightly_for("True")
@pytest.mark.parametrize("fixed", [False, True])
def test_many_requests_in_three_orders_and_with_three_memory_budgets(fixed):
    """Eighty requests with common prefixes; memory for four conversations, for two, and for one."""
    rng = np.random.default_rng(3)
    drawn = [
        (int(rng.integers(len(PROMPTS))), int(rng.integers(1, 13)), i, float(rng.integers(2)), int(rng.integers(3)),
         int(rng.choice([1, 1, 2, 3])), False) for i in range(80)
    ]  # fmt: skip
    plays, preempted = [], []
    for order, memory in ((range(80), 4), (range(79, -1, -1), 2), (rng.permutation(80).tolist(), 1)):
        batcher = squeeze(make(ENGINE, fixed_shapes=fixed), memory * LENGTH)
        plays.append(play(batcher, drawn, order, [0] * 80))
        preempted.append(batcher.usage.preempted)
        held = batcher.memory().slots
        assert held == 4 * LENGTH - memory * LENGTH, "no page is lost"
    check_plays(plays, fixed)
    assert preempted[0] == 0 and (preempted[2] > 0) != fixed, "with fixed shapes nobody gives a row up"


@pytest.mark.nightly
def test_fixed_shapes_use_one_program_whatever_comes():
    """One batch size and one prefill size; plain and filtered requests never decode together."""
    engine = make_engine(own_programs=True)
    batcher = make(engine, rows=4, fixed_shapes=True)
    for i, kind in enumerate([{}, {}, {}, {}, {}, {"top_p": 0.5}, {"stop_ids": (1, 2, 3, 4, 5)}, {}]):
        batcher.submit(PROMPTS[i % 3], Sampling(max_new_tokens=3 + 2 * i, seed=i, **kind))
    kinds = set()
    while batcher.busy:
        batcher.step()
        kinds.add(frozenset(s.program for s in batcher._rows.active))
    assert {len(kind) for kind in kinds} <= {0, 1} and len(batcher.results()) == 8
    assert engine._decode_rows._cache_size() == 3, "one for each kind of settings"
    assert engine._read_lines._cache_size() == 1


# Several models


@pytest.mark.nightly
def test_a_thread_serves_several_models(roles):
    """Policies of three adapters and of another model, in the order of the routes."""
    other, sampling = make_engine(params=NEW[1]), Sampling(max_new_tokens=11, seed=8)
    with BatcherThread(make(roles), make(other, rows=2), routes=[(0, 2), (1, 0), (0, 1)]) as sampler:
        sampler.pause()
        requests = zip(PROMPTS, (0, 1, 2, 1), strict=False)
        futures = [sampler.ask(prompt, sampling, policy, n=2) for prompt, policy in requests]
        late = sampler.ask(PROMPTS[4], sampling, 1, deadline=0.0)
        sampler.resume()
        completions = [future.result(60) for future in futures]
        assert late.result(60)[0].finish == "deadline"
        sampler.set_weights(1, NEW[2], version=5)
        after = sampler.ask(PROMPTS[3], sampling, 1).result(60)
        sampler.drain()
        usage = sampler.usage
        with pytest.raises(ValueError, match="policy is 3, but must be 0 to 2"):
            sampler.ask(PROMPTS[0], sampling, 3)
    engine, updated = (make_engine(params=params) for params in NEW[1:])
    updated.versions = [5]
    for prompt, found, (reference, policy) in zip(
        [*PROMPTS[:4], PROMPTS[3]],
        [*completions, after],
        [(roles, 2), (engine, 0), (roles, 1), (engine, 0), (updated, 0)],
        strict=True,
    ):
        for k, completion in enumerate(found):
            seeded = dataclasses.replace(sampling, seed=sample_seed(8, k))
            check_equal(completion, alone(reference, prompt, seeded, policy))
    assert usage.generated == (4 * 2 + 1) * 11
    assert usage.read == sum(len(p) - 1 for p in [*PROMPTS[:4], PROMPTS[3]]), "once for both samples"
    assert (usage.waiting, usage.running, usage.versions) == (0, 0, (0, 5, 0))


def test_routes_name_a_policy_of_a_batcher_at_most_once():
    assert check_routes([3, 1], None) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    with pytest.raises(ValueError, match=r"routes\[0\] is \(1, 1\)"):
        check_routes([3, 1], [(1, 1)])
    with pytest.raises(ValueError, match="every policy of a batcher at most once"):
        check_routes([3], [(0, 1), (0, 1)])


def test_a_thread_refuses_what_a_model_cannot_serve(roles):
    with BatcherThread(make(roles), make(make_engine(), max_length=16)) as sampler:
        sampler.ask([1] * 20, Sampling(max_new_tokens=1), policy=0).result(60)
        with pytest.raises(ValueError, match="exceeds max_length 16"):
            sampler.ask([1] * 10, Sampling(max_new_tokens=20), policy=3)
        with pytest.raises(ValueError, match=r"must be of shape \(97, 32\)"):
            sampler.set_weights(3, NEW[0] | {"embed": jnp.zeros((CONFIG.vocab_size, 1))}, 1)
        assert sampler.running
