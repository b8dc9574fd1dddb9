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
from marl_jax.samples import Samples, from_prompts
from models.model import build
from tests.conftest import nightly_cases
from tests.marl_jax import tiny_play, tiny_samples
from tests.models.tiny_models import largest, largest_difference, quick_jit

pytestmark = pytest.mark.long

N, TIME, SIZE, WIDTH = 3, 64, 9, 3
VOCABULARY = 256
NOISE = ("logps", "values", "advantages", "returns")


# ------------------------------------------------------------------------------------------------- random conversations


@dataclasses.dataclass
class Answer:
    """An answer and all that the learner is given with it.

    tokens     as they were sampled
    action     what a constrained one names, of those in `legal` [A]
    noise      one array of as many numbers as tokens for each of NOISE
    central    what a central critic reads
    """

    tokens: list[int]
    action: int
    legal: np.ndarray
    noise: dict[str, np.ndarray]
    weight: float
    central: list[int]


@dataclasses.dataclass
class Exchange:
    """A turn: the tokens read, the candidates, the kept one, and the tokens it is kept as."""

    reads: list[int]
    candidates: list[Answer]
    kept: int
    kept_as: list[int]


@dataclasses.dataclass
class Row:
    """Conversations, each a list of exchanges, of one policy."""

    conversations: list[list[Exchange]]
    policy: int


def random_answer(rng, width: int, names=None) -> Answer:
    """Up to `width` tokens of anything, or one of some names that are legal by chance."""
    action, legal = 0, np.ones(1, bool)
    if names is None:
        tokens = rng.integers(1, VOCABULARY, rng.integers(1, width + 1)).tolist()
    else:
        action = int(rng.integers(len(names)))
        legal = rng.random(len(names)) < 0.7
        legal[action] = True
        tokens = list(names[action])
    size = len(tokens)
    noise = {name: rng.standard_normal(size).astype(np.float32) for name in NOISE}
    noise["logps"] = (-5 + 0.1 * noise["logps"]).astype(np.float32)
    central = rng.integers(1, VOCABULARY, rng.integers(1, 6)).tolist()
    return Answer(tokens, action, legal, noise, float(rng.random() < 0.8), central)


def random_rows(rng, n: int, conversations: int, turns: int, width: int, candidates: int = 1, names=None, policies=1):
    """n rows of 1 … `conversations` conversations of 1 … `turns` exchanges of 1 … `candidates` answers."""

    def exchange():
        answers = [random_answer(rng, width, names) for _ in range(rng.integers(1, candidates + 1))]
        kept = int(rng.integers(len(answers)))
        # A template may end the turn in its own way: the last sampled token may differ from the one in the row.
        said = list(answers[kept].tokens)
        kept_as = said if rng.random() < 0.5 else [*said[:-1], *rng.integers(1, VOCABULARY, 2).tolist()]
        return Exchange(rng.integers(1, VOCABULARY, rng.integers(1, 5)).tolist(), answers, kept, kept_as)

    def row(number):
        count = conversations if number == 0 else rng.integers(1, conversations + 1)
        found = [[exchange() for _ in range(rng.integers(1, turns + 1))] for _ in range(count)]
        return Row(found, int(rng.integers(policies)))

    return [row(number) for number in range(n)]


class Places:
    """Where things stand in a row while it is written."""

    def __init__(self):
        self.tokens, self.positions, self.segment, self.branch = [], [], [], []
        self.answers = []  # (answer, sees, places whose hidden states predict its tokens)

    def put(self, token, position, segment, branch) -> int:
        self.tokens.append(token)
        self.positions.append(position)
        self.segment.append(segment)
        self.branch.append(branch)
        return len(self.tokens) - 1


def lay_out(row: Row, skip: int) -> Places:
    """One row: trunk and branches as they come, branches without their last token, of which nothing is read."""
    found = Places()
    for segment, conversation in enumerate(row.conversations):
        position, last = skip, None
        for exchange in conversation:
            for token in exchange.reads:
                last = found.put(token, position, segment, -1)
                position += 1
            context_len, before = position, last
            for number, answer in enumerate(exchange.candidates):
                reads, kept = [before], number == exchange.kept
                branch = -1 if kept else len(found.answers)
                for offset, token in enumerate(exchange.kept_as if kept else answer.tokens[:-1]):
                    reads.append(found.put(token, context_len + offset, segment, branch))
                found.answers.append((answer, context_len, reads[: len(answer.tokens)]))
                if kept:
                    position, last = context_len + len(exchange.kept_as), reads[-1]
    return found


def together(rows: list[Row], skip: int, time: int, size: int, width: int, strided: bool = False) -> Samples:
    """The conversations in rows of `time` tokens and `size` answers; `strided`: `width` places for every answer."""
    placed = [lay_out(row, skip) for row in rows]
    n, actions = len(rows), len(placed[0].answers[0][0].legal)
    numbers = lambda shape, fill=0: np.full((n, *shape), fill, np.int32)  # noqa: E731
    x = dict(tokens=numbers((time,)), positions=numbers((time,)), segment=numbers((time,), -1))
    x |= dict(branch=numbers((time,), -1), lengths=numbers(()), policy=np.array([row.policy for row in rows], np.int32))
    x |= {
        name: numbers((size,))
        for name in ("completion_lengths", "context_len", "seat", "episode", "turn", "member", "action")
    }
    x |= dict(
        group=numbers((size,)),
        ends=np.zeros((n, size), bool),
        truncated=np.zeros((n, size), bool),
        loss_weights=np.zeros((n, size), np.float32),
    )
    x |= dict(rewards=np.zeros((n, size, 1), np.float32), legal=np.zeros((n, size, actions), bool))
    x |= dict(
        completion_of=numbers((size * width,), -1),
        logits_index=numbers((size * width,)),
        targets=numbers((size * width,)),
    )
    x |= {name: np.zeros((n, size * width), np.float32) for name in NOISE}
    central, central_lengths = numbers((size, 6)), numbers((size,), 1)
    for i, row in enumerate(placed):
        used, at = len(row.tokens), 0
        assert used <= time and len(row.answers) <= size, (used, len(row.answers))
        for name in ("tokens", "positions", "segment", "branch"):
            x[name][i, :used] = getattr(row, name)
        x["lengths"][i] = used
        for s, (answer, context_len, reads) in enumerate(row.answers):
            at = s * width if strided else at
            place = slice(at, at + len(answer.tokens))
            x["completion_of"][i, place], x["logits_index"][i, place], x["targets"][i, place] = s, reads, answer.tokens
            for name in NOISE:
                x[name][i, place] = answer.noise[name]
            x["completion_lengths"][i, s], x["context_len"][i, s], x["action"][i, s] = (
                len(answer.tokens),
                context_len,
                answer.action,
            )
            x["legal"][i, s], x["loss_weights"][i, s] = answer.legal, answer.weight
            central[i, s, : len(answer.central)], central_lengths[i, s] = answer.central, len(answer.central)
            at = place.stop
    if all(len(row.conversations) == 1 for row in rows):
        x["segment"] = None
    if all(b == -1 for row in placed for b in row.branch):
        x["branch"] = None
    return Samples(**{name: None if y is None else jnp.asarray(y) for name, y in x.items()},
                   central=(jnp.asarray(central), jnp.asarray(central_lengths)))  # fmt: skip


def prompts_of(row: Row) -> list[tuple[list[int], Answer]]:
    """Every answer of a row with what its conversation had come to before it, in the order of the row's answers."""
    found = []
    for conversation in row.conversations:
        trunk = []
        for exchange in conversation:
            trunk = trunk + exchange.reads
            found += [(trunk, answer) for answer in exchange.candidates]
            trunk = trunk + exchange.kept_as
    return found


def apart(rows: list[Row], skip: int, time: int, size: int, width: int) -> Samples:
    """Return every completion as a separate row after its prompt; `size` rows each, some of weight 0."""
    cases = []
    for row in rows:
        mine = prompts_of(row)
        nothing = dataclasses.replace(mine[0][1], weight=0.0)
        cases += [(row.policy, *case) for case in mine + [(mine[0][0], nothing)] * (size - len(mine))]
    n = len(cases)
    prompts, said = np.zeros((n, time + width), np.int32), np.zeros((n, 1, width), np.int32)
    noise, central = {name: np.zeros((n, width), np.float32) for name in NOISE}, np.zeros((n, 1, 6), np.int32)
    for i, (_, prompt, answer) in enumerate(cases):
        prompts[i, : len(prompt)], said[i, 0, : len(answer.tokens)] = prompt, answer.tokens
        central[i, 0, : len(answer.central)] = answer.central
        for name in NOISE:
            noise[name][i, : len(answer.tokens)] = answer.noise[name]
    column = lambda values, dtype: jnp.asarray(np.array(values, dtype)[:, None])  # noqa: E731
    answers = [answer for *_, answer in cases]
    samples = from_prompts(
        jnp.asarray(prompts), jnp.asarray([len(prompt) for _, prompt, _ in cases], jnp.int32), jnp.asarray(said),
        column([len(a.tokens) for a in answers], np.int32), jnp.asarray(noise["logps"][:, None]), skip=skip,
        policy=jnp.asarray([policy for policy, *_ in cases], jnp.int32), rewards=jnp.zeros((n, 1, 1)),
        action=column([a.action for a in answers], np.int32), legal=column([a.legal for a in answers], bool),
        loss_weights=column([a.weight for a in answers], np.float32),
        central=(jnp.asarray(central), column([len(a.central) for a in answers], np.int32)),
    )  # fmt: skip
    return samples.replace(**{name: jnp.asarray(noise[name]) for name in NOISE if name != "logps"})


# ----------------------------------------------------------------------------------------------------------- programs


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
    samples = together(rows, skip, TIME, size, width, strided=names(policy) is not None)
    alone = apart(rows, skip, TIME, size, width)
    scores, expected = agree(policy, samples, alone, **settings)
    for name, found, wanted in zip(scores._fields, scores, expected, strict=True):
        if found is None:  # only with a loss toward legal names
            continue
        for i, row in enumerate(rows):
            for s, (_, answer) in enumerate(prompts_of(row)):
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
    rows = random_rows(rng, N, 1, 4, made.width, names=names(made), policies=2 if made.lora else 1)
    samples = check(made, rows)
    assert samples.segment is None and samples.branch is None
    assert int(jnp.max(jnp.sum(samples.completion_lengths > 0, axis=1))) > 1


@pytest.mark.nightly_for("separate critic")
@pytest.mark.parametrize("case", ["separate critic", "adapters and names"])
def test_conversations_share_a_row_and_candidates_branch_off_them(case):
    made = policy(**CASES[case])
    rng = np.random.default_rng(1)
    rows = random_rows(rng, N, 2, 2, made.width, 2, names=names(made), policies=2 if made.lora else 1)
    samples = check(made, rows)
    assert samples.segment is not None
    assert (samples.branch is not None) == (made.width > 1), "of a candidate of one token nothing is read"


@pytest.mark.parametrize("seed", range(2, 6))
def test_any_conversations(seed):
    """Other rows of the same shapes, with adapters after a prefix; all of them are one program."""
    made = policy(lora=2, prefix=True)
    check(made, random_rows(np.random.default_rng(seed), N, 2, 2, made.width, 2, policies=2))


@pytest.mark.nightly_for("segments")
@pytest.mark.parametrize("branches", [False, True], ids=["segments", "branches"])
def test_only_segments_or_only_branches(branches):
    made = policy()
    rng = np.random.default_rng(9)
    samples = check(made, random_rows(rng, N, 1 if branches else 2, 3, WIDTH, 3 if branches else 1))
    assert (samples.segment is None, samples.branch is None) == (branches, not branches)


@pytest.mark.nightly_for("settings1")
@pytest.mark.parametrize("settings", [dict(loss_agg="sequence"), dict(loss_agg="sequence", ratio="sequence")])
def test_means_are_over_answers_not_rows(settings):
    check(policy(), random_rows(np.random.default_rng(4), N, 2, 2, WIDTH, 2), **settings)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "settings",
    [dict(critic="head"), dict(critic="none", lora=1, prefix=True)],
    ids=["value head", "adapter and prefix"],
)
def test_packed_conversations(settings):
    """Rows of several answers share rows of twice their length; loss and gradients are those of the answers alone."""
    made = policy(**settings)
    rows = random_rows(np.random.default_rng(5), 4, 1, 4, WIDTH)
    layout = (len(made.prefix), TIME, 4, WIDTH)
    samples, alone = together(rows, *layout), apart(rows, *layout)
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
        answers = [random_answer(rng, made.width, names(made)) for _ in range(k)]
        reads = rng.integers(1, VOCABULARY, rng.integers(1, 9)).tolist()
        rows.append(Row([[Exchange(reads, answers, 0, answers[0].tokens)]], number % 2 if made.lora else 0))
    skip = len(made.prefix)
    alone = apart(rows, skip, TIME, k, made.width)
    samples = behind_one_prompt(alone, k, skip)
    assert bool(samples.branch_len) == (made.width > 1) and samples.n_completions == k
    mask = np.asarray(alone.mask(), bool)
    scores, expected = agree(made, samples, alone)
    for name, found, wanted in zip(scores._fields, scores, expected, strict=True):
        if found is None:  # only with a loss toward legal names
            continue
        found = np.asarray(found).reshape(mask.shape)
        np.testing.assert_allclose(found[mask], np.asarray(wanted)[mask], rtol=1e-5, atol=2e-6, err_msg=name)


def behind_one_prompt(alone, k, skip):
    """Rows of one answer as rows of k answers to the prompt of each k-th."""
    n, width = alone.n // k, alone.width
    lengths = alone.context_len[::k, 0] - skip
    prompts = jnp.where(jnp.arange(TIME) < lengths[:, None], alone.tokens[::k, :TIME], 0)
    grouped = lambda x: x.reshape(n, k, *x.shape[2:])  # noqa: E731
    same = {name: grouped(getattr(alone, name)) for name in ("rewards", "action", "legal", "loss_weights")}
    samples = from_prompts(
        prompts, lengths, alone.targets.reshape(n, k, width), grouped(alone.completion_lengths),
        alone.logps.reshape(n, k, width), skip=skip, policy=alone.policy[::k], **same,
    )  # fmt: skip
    wide = {name: getattr(alone, name).reshape(n, k * width) for name in ("values", "advantages", "returns")}
    return samples.replace(**wide)


def test_what_a_branch_says_is_not_heard_elsewhere():
    """Other tokens on a branch change its own answer and nothing else."""
    made = policy(critic="head")
    rows = random_rows(np.random.default_rng(7), N, 2, 2, WIDTH, 2)
    samples = together(rows, 0, TIME, SIZE, WIDTH)
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
    rows = random_rows(np.random.default_rng(8), N, 1, 2, WIDTH)
    tight = together(rows, 0, TIME, SIZE, WIDTH)
    exists = tight.completion_lengths > 0
    tokens, lengths = tight.central
    empty = tight.replace(central=(tokens, jnp.where(exists, lengths, 0)))
    found, expected = (program(made)(train_state(made), samples)[0] for samples in (empty, tight))
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=1e-6, atol=1e-7), found, expected)
