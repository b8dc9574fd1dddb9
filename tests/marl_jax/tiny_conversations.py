"""Random conversations as rows of several completions, and as separate prompts for comparison."""

import dataclasses

import jax.numpy as jnp
import numpy as np

from marl_jax.samples import Samples, from_prompts

VOCABULARY = 256
NOISE = ("logps", "values", "advantages", "returns")


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
