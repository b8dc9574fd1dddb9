"""Continuous batching: whatever decodes together, a request gets what it would get alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.sampling import batch_rows
from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.settings import Sampling
from tests.marl_jax.tiny_engine import CONFIG, greedy_chain, make_engine, model_and_params, random_prompts

SLOTS = 48
LENGTHS = [5, 12, 1, 20, 7, 3, 16, 9, 2]
BUDGETS = [9, 2, 14, 6, 20, 1, 3, 11, 5]


class Letters:
    """A tokenizer whose token i is the letter i mod 26."""

    @staticmethod
    def decode(ids):
        return "".join(chr(97 + i % 26) for i in ids)


@pytest.fixture(scope="module")
def engine():
    """Three adapters, the first switched off, so that one engine serves all tests of this file."""
    return make_engine(with_adapters=True)


@pytest.fixture(scope="module")
def requests():
    """(prompt, sampling, adapter): lengths in two buckets, all kinds of temperatures, budgets, stops and adapters."""
    return [
        (prompt, Sampling(temperature=(i % 4) / 2, max_new_tokens=n, seed=i, stop_ids=(4 * i, 50)), i % 3)
        for i, (prompt, n) in enumerate(zip(random_prompts(LENGTHS), BUDGETS, strict=True))
    ]


@pytest.fixture(scope="module")
def expected(engine, requests):
    return apart(engine, requests)


def apart(engine, requests):
    """Each request in a row of its own that nobody refills."""
    prompts, samplings, adapters = zip(*requests, strict=True)
    answers, _ = engine.generate(engine.prefill(prompts, slots=SLOTS, adapter_ids=adapters), samplings)
    return answers


def check_same(answers, expected):
    for mine, theirs in zip(answers, expected, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist() and mine.finish == theirs.finish
        np.testing.assert_allclose(mine.logps, theirs.logps, atol=1e-5)


def check_idle(batcher):
    """Nobody has a row, and no page is held."""
    assert not batcher._rows.active and batcher._rows.free == batcher._rows.rows
    assert all(part.pool.held == 0 and not part.pool.unread for part in batcher._rows.parts)
    assert batcher.memory().slots == 0


def answer_all(batcher, requests):
    numbers = [batcher.submit(*request) for request in requests]
    answers = batcher.run()
    check_idle(batcher)
    assert set(answers) == set(numbers) and not batcher.busy
    return [only(answers[n]) for n in numbers]


def only(answers):
    """The answer of a request for one."""
    (answer,) = answers
    return answer


@pytest.mark.parametrize(("rows", "chunk", "order"), [(4, 4, 1), (4, 3, -1), (2, 4, 1)])
def test_continuous_batching_equals_one_by_one(engine, requests, expected, rows, chunk, order):
    """Nine requests through few rows, in either order: the slots are refilled, the answers stay the same."""
    batcher = Batcher(engine, rows=rows, max_length=SLOTS, chunk=chunk)
    check_same(answer_all(batcher, requests[::order])[::order], expected)
    usage = batcher.usage
    assert usage.generated == sum(len(a.tokens) for a in expected) and usage.read == sum(LENGTHS)
    assert usage.decoded == usage.generated - len(expected), "the first token costs no decoding slot"
    assert usage.decoded <= usage.slots and 0 < usage.useful <= 1 and usage.seconds > 0
    assert (usage.waiting, usage.running, usage.versions) == (0, 0, (0, 0, 0))
    check_same(answer_all(batcher, requests), expected)  # and again with what is left in the cache


def test_requests_may_come_while_others_run(engine, requests, expected):
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    answers, waiting = {}, list(enumerate(requests))
    numbers = {}
    while waiting or len(answers) < len(requests):
        for i, request in waiting[:2]:
            numbers[batcher.submit(*request)] = i
        waiting = waiting[2:]
        batcher.step()
        answers |= {numbers[n]: only(answer) for n, answer in batcher.results()}
        assert batcher.results() == [], "an answer is handed out once"
    check_same([answers[i] for i in range(len(requests))], expected)


def test_the_batch_shrinks_at_the_end_and_grows_again(engine, requests):
    """One long answer does not drag three empty rows along; when others come, it keeps its place among them."""
    long = (random_prompts([4], seed=9)[0], Sampling(max_new_tokens=40, seed=1), 1)
    short = [(p, Sampling(max_new_tokens=3, seed=i), 0) for i, p in enumerate(random_prompts([3, 5, 2], seed=8))]
    expected = apart(engine, [long, *short])
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    numbers = [batcher.submit(*r) for r in (long, *short)]
    sizes = []
    for _ in range(4):
        batcher.step()
        sizes.append(len(batcher._rows.active))
    assert sizes == [4, 1, 1, 1]
    assert batcher.usage.slots == 4 * 4 + 3 * 4 and batcher.usage.decoded == 3 * 2 + 16
    numbers += [batcher.submit(*r) for r in (long, short[0])]
    batcher.step()
    assert len(batcher._rows.active) == 4
    check_idle(batcher)
    answers = batcher.run()
    check_same([only(answers[n]) for n in numbers], [*expected, *expected[:2]])


def test_full_rows_are_all_useful(engine):
    """Four requests of nine tokens: one from reading, eight from two chunks of four, no slot wasted."""
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    answer_all(batcher, [(p, Sampling(max_new_tokens=9, seed=1), 0) for p in random_prompts([3] * 4)])
    assert (batcher.usage.decoded, batcher.usage.slots, batcher.usage.useful) == (32, 32, 1.0)


def test_filters_and_penalties_among_plain_requests(engine):
    """What a row has seen follows it through chunks, refills and moves; plain rows are not touched."""
    prompts = random_prompts([4, 6, 3, 18, 5, 2], seed=4)
    kinds = [
        dict(repetition_penalty=3.0, temperature=0.0), dict(), dict(top_k=2), dict(repetition_penalty=1.7, top_p=0.8),
        dict(temperature=0.0), dict(top_p=0.3),
    ]  # fmt: skip
    requests = [
        (p, Sampling(max_new_tokens=8 + 3 * i, seed=i, **kind), 0)
        for i, (p, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    expected = apart(engine, requests)
    assert len(set(expected[0].tokens.tolist())) == 8, "the penalty was felt"
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    check_same(answer_all(batcher, requests), expected)
    answer_all(batcher, [(prompts[0], Sampling(max_new_tokens=3), 0)])
    assert batcher._rows.state.seen is None, "nobody needs it any more"


def test_stop_strings_end_an_answer_where_they_are_complete(engine):
    """In the middle of a chunk, across two chunks, at the first token; the neighbour continues."""
    prompts = random_prompts([5, 12, 1, 7])
    chain = greedy_chain(prompts, 16)
    text = [Letters.decode(c) for c in chain]
    stops = [text[0][5:8], text[1][3:5], text[2][:1], "not in it"]
    ends = [t.find(s) + len(s) if s in t else 16 for t, s in zip(text, stops, strict=True)]
    assert ends[2] == 1
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4, tokenizer=Letters())
    greedy = [Sampling(temperature=0, max_new_tokens=16, stop_strings=("never", s)) for s in stops]
    numbers = [batcher.submit(p, s) for p, s in zip(prompts, greedy, strict=True)]
    batcher.step()
    check_idle(batcher)  # the rows that have stopped know it, though their budget is not used up
    answers = batcher.run()
    answers = [only(answers[n]) for n in numbers]
    assert [a.tokens.tolist() for a in answers] == [c[:n] for c, n in zip(chain, ends, strict=True)]
    assert [a.finish for a in answers] == ["stop", "stop", "stop", "length"]
    assert [len(a.logps) for a in answers] == ends
    assert batcher.usage.decoded == sum(ends) - 4, "what is cut off was no use"


def test_a_stop_id_may_complete_a_stop_string(engine):
    """Both at once: the answer ends there, and the reason is the same."""
    chain = greedy_chain(random_prompts([5]), 6)[0]
    words = Letters.decode(chain[:4])
    sampling = Sampling(temperature=0, max_new_tokens=6, stop_ids=(chain[3],), stop_strings=(words,))
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4, tokenizer=Letters())
    answer = answer_all(batcher, [(random_prompts([5])[0], sampling, 0)])[0]
    assert answer.tokens.tolist() == chain[: chain.index(chain[3]) + 1] and answer.finish == "stop"


def test_settings_are_made_when_a_row_changes_hands_only(engine, monkeypatch):
    """Per chunk, the host looks at the results and nothing else; no program is compiled twice."""
    made, programs = [], []
    real = batch_rows.settings_for
    monkeypatch.setattr(batch_rows, "settings_for", lambda *args: made.append(args) or real(*args))
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    for seed in range(2):
        for i, prompt in enumerate(random_prompts([3, 9, 16, 2], seed)):
            batcher.submit(prompt, Sampling(max_new_tokens=25, seed=i, temperature=0.5 * i + seed))
        made.clear()
        batcher.run()
        assert len(made) == 2, "one admission, one plan for all seven chunks"
        programs.append([getattr(engine, p)._cache_size() for p in ("_admission", "_chunk", "_move", "_idle")])
    assert programs[0] == programs[1]


def test_a_mesh_gives_the_same_answers(requests, expected):
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    spread = make_engine(with_adapters=True, mesh=mesh)
    batcher = Batcher(spread, rows=4, max_length=SLOTS, chunk=4)
    check_same(answer_all(batcher, requests), expected)
    assert batcher._rows.state.cache.layers[0][0].sharding.shard_shape((4, SLOTS, 2, 8)) == (1, SLOTS, 1, 8)
    assert spread._chunk._cache_size() == 1, "rows cannot be halved here: four places"
    with pytest.raises(ValueError, match="rows is 6; accepted: multiples of 4"):
        Batcher(spread, rows=6, max_length=SLOTS)


def test_a_nan_ends_its_request_and_spoils_no_other(engine):
    """Neither its neighbours nor the request that gets its row next, which masks what is left there."""
    params = model_and_params()[1]
    weights = engine.weights
    prompts = [[1, 2, 3], [*[4] * 30, 7], [8], [1] * 20]
    samplings = [Sampling(max_new_tokens=9, temperature=0)] * 4
    expected = apart(engine, [(p, s, 0) for p, s in zip(prompts, samplings, strict=True)])
    assert not any(7 in a.tokens for a in expected)
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    spoilt = weights.params | {"embed": params["embed"].at[7].set(jnp.nan)}
    engine.weights = type(weights)(spoilt, weights.adapters, weights.scale)
    try:
        answers = answer_all(batcher, [(p, s, 0) for p, s in zip(prompts, samplings, strict=True)])
        again = answer_all(batcher, [(prompts[0], samplings[0], 0)] * 4)
    finally:
        engine.weights = weights
    assert answers[1].finish == "invalid" and len(answers[1].tokens) == 0
    check_same([answers[0], *answers[2:]], [expected[0], *expected[2:]])
    check_same(again, [expected[0]] * 4)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda b: b.submit([]), "prompt 0 is empty"),
        (lambda b: b.submit([1] * 49), "prompt 0 has 49 tokens"),
        (lambda b: b.submit([1] * 40, Sampling(max_new_tokens=9)), "40 tokens and max_new_tokens 9 do not fit .* 48"),
        (lambda b: b.submit([CONFIG.vocab_size]), "prompt 0 has token ids from 97 to 97"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1), 3), "policy is 3; accepted: 0 to 2"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1, stop_strings=("a",))), "stop_strings need a tokenizer"),
        (lambda b: b.submit([1], Sampling(stop_strings=("",))), "stop_strings is .* no empty string"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1), n=0), "n is 0; accepted: 1 or more"),
        (lambda b: b.set_weights(3, {}, 1), "policy is 3; accepted: 0 to 2"),
        (lambda b: b.set_weights(1, {}, 1), r"weights of policy 1: .*'a'.* is absent; expected: of shape \(2, 48, 4\)"),
        (lambda b: Batcher(b.engine, rows=0, max_length=16), "rows is 0"),
        (lambda b: Batcher(b.engine, rows=4, max_length=65), "max_length is 65; accepted: 1 to 64"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(engine, act, message):
    batcher = Batcher(engine, rows=4, max_length=SLOTS, chunk=4)
    with pytest.raises(ValueError, match=message):
        act(batcher)
    assert batcher.run() == {}
