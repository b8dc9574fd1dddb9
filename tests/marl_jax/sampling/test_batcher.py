"""Continuous batching: a request gets the same result as alone, whatever it decodes with."""

import dataclasses
import threading
import time
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from marl_jax.sampling.batcher import Batcher
from marl_jax.sampling.batcher_thread import BatcherThread
from marl_jax.sampling.settings import Sampling, sample_seed
from tests.marl_jax.tiny_engine import CONFIG, full_logits, greedy_chain, make_engine, model_and_params, random_prompts

pytestmark = pytest.mark.long

SLOTS, PAGE = 48, 4
LENGTHS = [5, 12, 1, 20, 7, 3, 16, 9, 2]
BUDGETS = [9, 2, 14, 6, 20, 1, 3, 11, 5]


class Letters:
    """A tokenizer whose token i is the letter i mod 26."""

    @staticmethod
    def decode(ids):
        return "".join(chr(97 + i % 26) for i in ids)


@pytest.fixture(scope="module")
def engine():
    """Return an engine with three adapters, the first one switched off, for all tests of this file."""
    return make_engine(with_adapters=True)


@pytest.fixture(scope="module")
def requests():
    """Return (prompt, sampling, adapter) with different lengths, temperatures, budgets, stops and adapters."""
    return [
        (prompt, Sampling(temperature=(i % 4) / 2, max_new_tokens=n, seed=i, stop_ids=(4 * i, 50)), i % 3)
        for i, (prompt, n) in enumerate(zip(random_prompts(LENGTHS), BUDGETS, strict=True))
    ]


@pytest.fixture(scope="module")
def expected(engine, requests):
    return apart(engine, requests)


def apart(engine, requests):
    """Decode each request in a separate row that is not refilled."""
    prompts, samplings, adapters = zip(*requests, strict=True)
    answers, _ = engine.generate(engine.prefill(prompts, slots=SLOTS, adapter_ids=adapters), samplings)
    return answers


def check_same(answers, expected):
    for mine, theirs in zip(answers, expected, strict=True):
        assert mine.tokens.tolist() == theirs.tokens.tolist() and mine.finish == theirs.finish
        np.testing.assert_allclose(mine.logps, theirs.logps, atol=1e-5)


def check_idle(batcher):
    """Check that no sample has a row and no page is held."""
    assert not batcher._rows.active and batcher._rows.free == batcher._rows.rows
    assert all(part.pool.held == 0 and not part.pool.unread for part in batcher._rows.parts)
    assert batcher.memory().slots == 0


def make(engine, rows=4, **kwargs):
    """Create a batcher with small pages, so that page boundaries are frequent."""
    options = {"max_length": SLOTS, "chunk": 4, "page_size": PAGE, "cache_tokens": 4 * SLOTS}
    return Batcher(engine, rows=rows, **{**options, **kwargs})


def answer_all(batcher, requests):
    numbers = [batcher.submit(*request) for request in requests]
    answers = batcher.run()
    check_idle(batcher)
    assert set(answers) == set(numbers) and not batcher.busy
    return [only(answers[n]) for n in numbers]


def only(answers):
    """Return the single completion of a request."""
    (answer,) = answers
    return answer


@pytest.mark.nightly_for("4-3--1")
@pytest.mark.parametrize(("rows", "chunk", "order"), [(4, 4, 1), (4, 3, -1), (2, 4, 1)])
def test_continuous_batching_equals_one_by_one(engine, requests, expected, rows, chunk, order):
    """Nine requests through few rows, in either order: rows are refilled, and results stay the same."""
    batcher = make(engine, rows, chunk=chunk)
    check_same(answer_all(batcher, requests[::order])[::order], expected)
    usage = batcher.usage
    assert usage.generated == sum(len(a.tokens) for a in expected)
    assert usage.read == sum(n - 1 for n in LENGTHS), "the last token is read by the first step of decoding"
    assert usage.generated <= usage.slots and usage.useful == usage.generated / usage.slots and usage.seconds > 0
    assert (usage.waiting, usage.running, usage.versions) == (0, 0, (0, 0, 0))
    assert (usage.reused, usage.preempted) == (0, 0)
    check_same(answer_all(batcher, requests), expected)  # again, with the contents of the pages
    again = batcher.usage
    assert again.read - usage.read == sum((n - 1) % PAGE for n in LENGTHS), "what full pages hold is found"
    assert again.reused == sum((n - 1) // PAGE * PAGE for n in LENGTHS)


def test_requests_may_come_while_others_run(engine, requests, expected):
    batcher = make(engine)
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


@pytest.mark.nightly
def test_the_batch_shrinks_at_the_end_and_grows_again(engine):
    """A long completion does not keep three empty rows; later requests decode together with it."""
    long = (random_prompts([4], seed=9)[0], Sampling(max_new_tokens=40, seed=1), 1)
    short = [(p, Sampling(max_new_tokens=3, seed=i), 0) for i, p in enumerate(random_prompts([3, 5, 2], seed=8))]
    expected = apart(engine, [long, *short])
    batcher = make(engine)
    numbers = [batcher.submit(*r) for r in (long, *short)]
    active, slots = [], []
    for step in range(6):
        if step == 4:
            numbers += [batcher.submit(*r) for r in (long, short[0])]
        before = batcher.usage.slots
        batcher.step()
        active.append(len(batcher._rows.active))
        slots.append(batcher.usage.slots - before)
    assert active == [1, 1, 1, 1, 2, 2] and slots == [4 * 4, 4, 4, 4, 4 * 4, 2 * 4]
    assert batcher.usage.generated == 6 * 4 + 2 * 4 + 4 * 3
    answers = batcher.run()
    check_idle(batcher)
    check_same([only(answers[n]) for n in numbers], [*expected, *expected[:2]])


def test_full_rows_are_all_useful(engine):
    """Four requests of eight tokens: two chunks of four, no unused slot."""
    batcher = make(engine)
    answer_all(batcher, [(p, Sampling(max_new_tokens=8, seed=1), 0) for p in random_prompts([3] * 4)])
    assert (batcher.usage.generated, batcher.usage.slots, batcher.usage.useful) == (32, 32, 1.0)


def test_filters_and_penalties_among_plain_requests(engine):
    """Seen tokens follow a row through chunks, refills and moves; plain rows are not affected."""
    prompts = random_prompts([4, 6, 3, 18], seed=4)
    kinds = [
        dict(repetition_penalty=3.0, temperature=0.0), dict(), dict(top_k=2), dict(repetition_penalty=1.7, top_p=0.8),
    ]  # fmt: skip
    requests = [
        (p, Sampling(max_new_tokens=8 + 3 * i, seed=i, **kind), 0)
        for i, (p, kind) in enumerate(zip(prompts, kinds, strict=True))
    ]
    expected = apart(engine, requests)
    assert len(set(expected[0].tokens.tolist())) == 8, "the penalty was felt"
    batcher = make(engine, rows=2)
    check_same(answer_all(batcher, requests), expected)
    sent, row_batch = [], batcher._rows._row_batch
    batcher._rows._row_batch = lambda *args: sent.append(row_batch(*args)) or sent[-1]
    answer_all(batcher, [(prompts[0], Sampling(max_new_tokens=3), 0)])
    assert [rows.filters for rows in sent] == [None], "nobody needs them any more"


def test_stop_strings_end_an_answer_where_they_are_complete(engine):
    """In the middle of a chunk, across two chunks, and at the first token; the other row continues."""
    prompts = random_prompts([5, 12, 1, 7])
    chain = greedy_chain(prompts, 16)
    text = [Letters.decode(c) for c in chain]
    stops = [text[0][5:8], text[1][3:5], text[2][:1], "not in it"]
    ends = [t.find(s) + len(s) if s in t else 16 for t, s in zip(text, stops, strict=True)]
    assert ends[2] == 1
    batcher = make(engine, tokenizer=Letters())
    greedy = [Sampling(temperature=0, max_new_tokens=16, stop_strings=("never", s)) for s in stops]
    numbers = [batcher.submit(p, s) for p, s in zip(prompts, greedy, strict=True)]
    batcher.step()
    assert len(batcher._rows.active) == sum(end > 4 for end in ends), "the rows that have stopped are free"
    answers = batcher.run()
    answers = [only(answers[n]) for n in numbers]
    assert [a.tokens.tolist() for a in answers] == [c[:n] for c, n in zip(chain, ends, strict=True)]
    assert [a.finish for a in answers] == ["stop", "stop", "stop", "length"]
    assert [len(a.logps) for a in answers] == ends
    assert batcher.usage.generated == sum(ends), "what is cut off was no use"


def test_a_stop_id_may_complete_a_stop_string(engine):
    """Both apply at once: the completion ends there with the same finish reason."""
    chain = greedy_chain(random_prompts([5]), 6)[0]
    words = Letters.decode(chain[:4])
    sampling = Sampling(temperature=0, max_new_tokens=6, stop_ids=(chain[3],), stop_strings=(words,))
    batcher = make(engine, tokenizer=Letters())
    answer = answer_all(batcher, [(random_prompts([5])[0], sampling, 0)])[0]
    assert answer.tokens.tolist() == chain[: chain.index(chain[3]) + 1] and answer.finish == "stop"


def test_no_program_is_compiled_twice(engine):
    """For any lengths, seeds, temperatures and adapters, and for prompts that are reused, copied or prefilled."""
    batcher, programs = make(engine), []
    for seed in range(3):
        for i, prompt in enumerate(random_prompts([3, 9, 16, 2], min(seed, 1))):
            batcher.submit(prompt, Sampling(max_new_tokens=25 - 5 * i, seed=i, temperature=0.5 * i + seed), i % 3, n=2)
        batcher.run()
        programs.append([getattr(engine, p)._cache_size() for p in ("_read_lines", "_decode_rows", "_copy_pages")])
    assert programs[0] == programs[1] == programs[2]


def test_programs_may_be_compiled_before_the_first_request(engine, requests, expected):
    batcher = make(engine)
    batcher.compile()
    programs = batcher._rows._compiled._programs
    first = [("read", 1), ("decode", 1, 4, None, False), ("_copy_pages",)]
    assert list(programs)[:3] == first, "what one request needs first"
    sizes = {"read": {1, 8}, "decode": {1, 2, 4}}
    assert {kind: {key[1] for key in programs if key[0] == kind} for kind in sizes} == sizes
    before = [getattr(engine, p)._cache_size() for p in ("_read_lines", "_decode_rows")]
    check_same(answer_all(batcher, requests), expected)
    assert [getattr(engine, p)._cache_size() for p in ("_read_lines", "_decode_rows")] == before
    batcher.close()


def test_the_first_call_of_every_program_counts_as_compiling(engine, requests):
    batcher = make(engine)
    assert batcher.compile_seconds == 0
    answer_all(batcher, requests)
    first = batcher.compile_seconds
    assert first > 0
    answer_all(batcher, requests)
    assert batcher.compile_seconds == first, "the same shapes again"
    other = make(engine)
    answer_all(other, requests[:1])
    with BatcherThread(batcher, other) as sampler:
        assert sampler.compile_seconds == first + other.compile_seconds


def test_a_wait_for_the_compiler_is_counted_while_it_lasts(engine, monkeypatch):
    compiled, read = threading.Event(), engine._read_lines
    monkeypatch.setitem(engine.__dict__, "_read_lines", lambda *args: compiled.wait(60) and read(*args))
    with BatcherThread(make(engine)) as sampler:
        answer = sampler.ask(random_prompts([5])[0], Sampling(max_new_tokens=2))
        while sampler.compile_seconds < 0.1:
            assert not answer.done()
            time.sleep(0.01)
        compiled.set()
        answer.result(60)


def test_a_program_that_cannot_be_compiled_fails_whoever_needs_it(engine, monkeypatch):
    def broken(*_):
        raise RuntimeError("no compiler")

    batcher = make(engine)
    monkeypatch.setitem(engine.__dict__, "_read_lines", types.SimpleNamespace(lower=broken))
    batcher.compile()
    batcher.submit(random_prompts([5])[0], Sampling(max_new_tokens=2))
    with pytest.raises(RuntimeError, match="no compiler"):
        batcher.run()
    batcher.close()


def test_a_mesh_gives_the_same_answers(engine, requests, expected):
    """Two rows in each of four parts, with memory for one conversation each, and samples that share a prompt."""
    mesh = jax.make_mesh((2, 2, 2), ("data", "fsdp", "tensor"), axis_types=(jax.sharding.AxisType.Auto,) * 3)
    spread = make_engine(with_adapters=True, mesh=mesh, own_programs=True)
    batcher = make(spread, rows=8)
    rows = batcher._rows  # one size of each program, since compiling for a mesh takes long
    rows._line_counts, rows._row_counts = rows._line_counts[-1:], rows._row_counts[-1:]
    batcher.compile()
    pages = batcher._rows.pages[0][0]
    assert pages.shape == (48, PAGE, 2, 8) and pages.sharding.shard_shape(pages.shape) == (12, PAGE, 1, 8)
    prompt, sampling = random_prompts([18], seed=3)[0], Sampling(max_new_tokens=29, seed=5)
    seeded = [dataclasses.replace(sampling, seed=sample_seed(5, k)) for k in range(6)]
    many = batcher.submit(prompt, sampling, 1, n=6)
    numbers = [batcher.submit(*request) for request in requests]
    answers = batcher.run()
    check_idle(batcher)
    check_same(answers[many], apart(engine, [(prompt, s, 1) for s in seeded]))
    check_same([only(answers[n]) for n in numbers], expected)
    assert batcher.usage.preempted > 0 and batcher.usage.reused >= 16, "memory was short and prompts were shared"
    assert spread._read_lines._cache_size() == spread._decode_rows._cache_size() == 0, "all was compiled before"
    with pytest.raises(ValueError, match="rows is 6, but must be a positive multiple of 4"):
        Batcher(spread, rows=6, max_length=SLOTS)


GOOD = [([1, 2, 3], 9), ([8], 9), ([1] * 20, 9), ([4] * 9, 30)]


def test_a_nan_ends_its_requests_and_spoils_no_other(engine):
    """Neither other rows nor later users of its pages are affected by a NaN, in a shared prompt or in a last token."""
    weights, greedy = engine.weights, lambda n: Sampling(max_new_tokens=n, temperature=0)
    good = [(prompt, greedy(n), 0) for prompt, n in GOOD]
    expected = apart(engine, good)
    assert not any(7 in a.tokens for a in expected)
    batcher = make(engine)
    spoilt = weights.params | {"embed": model_and_params()[1]["embed"].at[7].set(jnp.nan)}
    engine.weights = type(weights)(spoilt, weights.adapters, weights.scale)
    try:
        shared = batcher.submit([5, 7, *[6] * 12], greedy(31), n=3)  # the largest budget gets the first pages
        last = batcher.submit([*[4] * 30, 7], greedy(9))
        numbers = [batcher.submit(*request) for request in good]
        answers = batcher.run()
        check_idle(batcher)
        again = [answer_all(batcher, good) for _ in range(3)]  # several times through all pages
        cancelled = batcher.submit([7, *[3] * 30], greedy(9))
        batcher.refill()
        batcher._rows.read()
        assert batcher.cancel(cancelled)  # it has been prefilled, and the NaN has not been detected
        batcher.run()
        batcher._rows.forget(0)  # so that its pages are free and taken next
        again += [answer_all(batcher, good) for _ in range(3)]
    finally:
        engine.weights = weights
    assert [(a.finish, len(a.tokens)) for a in (*answers[shared], *answers[last])] == [("invalid", 0)] * 4
    check_same([only(answers[n]) for n in numbers], expected)
    for found in again:
        check_same(found, expected)


@pytest.mark.parametrize(
    ("act", "message"),
    [
        (lambda b: b.submit([]), "prompt 0 is empty"),
        (lambda b: b.submit([1] * 49), "prompt 0 has 49 tokens"),
        (
            lambda b: b.submit([1] * 40, Sampling(max_new_tokens=9)),
            "40 tokens with max_new_tokens 9 exceeds max_length 48",
        ),
        (lambda b: b.submit([CONFIG.vocab_size]), "prompt 0 has token ids from 97 to 97"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1), 3), "policy is 3, but must be 0 to 2"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1, stop_strings=("a",))), "stop_strings need a tokenizer"),
        (lambda b: b.submit([1], Sampling(stop_strings=("",))), "stop_strings is .* without empty strings"),
        (lambda b: b.submit([1], Sampling(max_new_tokens=1), n=0), "n is 0, but must be >= 1"),
        (lambda b: b.set_weights(3, {}, 1), "policy is 3, but must be 0 to 2"),
        (
            lambda b: b.set_weights(1, {}, 1),
            r"weights of policy 1: .*'a'.* is absent, but must be of shape \(2, 48, 4\)",
        ),
        (lambda b: Batcher(b.engine, rows=0, max_length=16), "rows is 0"),
        (lambda b: Batcher(b.engine, rows=4, max_length=65), "max_length is 65, but must be 1 to 64"),
    ],
)
def test_requests_that_cannot_be_answered_are_refused(engine, act, message):
    batcher = make(engine)
    with pytest.raises(ValueError, match=message):
        act(batcher)
    assert batcher.run() == {}


# Constraints


class Parity:
    """Even and odd tokens in turn."""

    def __init__(self):
        self.written = []

    def mask(self):
        return np.arange(CONFIG.vocab_size) % 2 == len(self.written) % 2

    def advance(self, token):
        self.written.append(token)


@pytest.mark.nightly
@pytest.mark.parametrize("rows", [2, 8])  # with the first, samples wait, and the most recent one loses its row
def test_a_constraint_binds_its_own_answers_and_nobody_elses(engine, requests, expected, rows):
    batcher = make(engine, rows=rows, cache_tokens=SLOTS if rows == 2 else 4 * SLOTS)
    numbers = [batcher.submit(*request) for request in requests]
    bound = Sampling(max_new_tokens=7, seed=4, constraint=Parity)
    prompt = random_prompts([6], seed=9)[0]
    numbers.insert(3, batcher.submit(prompt, bound, 0, n=2))
    answers = batcher.run()
    check_idle(batcher)
    check_same([only(answers[n]) for i, n in enumerate(numbers) if i != 3], expected)
    for answer in answers[numbers[3]]:
        tokens = answer.tokens.tolist()
        assert [token % 2 for token in tokens] == [0, 1, 0, 1, 0, 1, 0]
        logits = full_logits([[*prompt, *tokens]], [0])[0][len(prompt) - 1 : -1]
        masked = np.where(np.arange(CONFIG.vocab_size) % 2 == np.arange(7)[:, None] % 2, logits, -np.inf)
        logps = masked - np.logaddexp.reduce(masked, axis=1, keepdims=True)
        np.testing.assert_allclose(answer.logps, logps[np.arange(7), tokens], atol=1e-4)
    assert len({tuple(answer.tokens.tolist()) for answer in answers[numbers[3]]}) == 2
