"""A debate on arithmetic: the agents answer alone, then again with the others' last answers before them.

Within a turn all speak at once. An answer's score s is 1 if it is right. The reward of agent a at turn t is aware of
its influence on what follows (MAPoRL, arXiv 2502.18439):

    R(t, a) = [s(t, a) + Σ_{t' > t} γ^(t' − t) · mean over agents j of s(t', j)] / Σ_{t' ≥ t} γ^(t' − t)

It already contains the later turns, so it is the return of that one answer and not a step of a sum.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import Sequence

from envs.tasks.arithmetic import FORMAT, Problem, draw_problems, graded
from envs.tasks.task import Ask, Outcome

NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana")


@dataclasses.dataclass(frozen=True)
class ArithmeticDebate:
    """The task.

    agents, turns    size of the debate; one agent reflects on its own answer
    gamma            how much later turns count for earlier ones
    format_penalty   taken from an answer's own reward if no number can be read in it
    levels, n_examples, seed  of the problems, as in `Arithmetic`
    """

    agents: int = 2
    turns: int = 2
    gamma: float = 1.0
    format_penalty: float = 0.1
    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0

    def __post_init__(self):
        if not 1 <= self.agents <= len(NAMES):
            raise ValueError(f"agents is {self.agents}; accepted: 1 to {len(NAMES)}")
        if self.turns < 1:
            raise ValueError(f"turns is {self.turns}; accepted: 1 or more")

    @property
    def roles(self) -> tuple[str, ...]:
        """The agents' names, lower case."""
        return tuple(name.lower() for name in NAMES[: self.agents])

    def examples(self, part: str) -> list[Problem]:
        """Problems without repetition."""
        return draw_problems(part, self.levels, self.n_examples, self.seed)

    async def play(self, ask: Ask, example: Problem) -> Outcome:
        """`turns` rounds; success is the share of the vote, 1/n for a right answer among n that tie."""
        names = NAMES[: self.agents]
        chats = [ask.chat(seat, system=f"You are {name}. {FORMAT}") for seat, name in enumerate(names)]
        rounds, verdicts = [], []
        for turn in range(self.turns):
            texts = [
                example.question if turn == 0 else _next_round(example, names, seat, rounds[-1])
                for seat in range(self.agents)
            ]
            # With a label of its own, a turn's answers are compared with each other: each has its whole return.
            asked = [chat.say(text, label=f"turn_{turn + 1}") for chat, text in zip(chats, texts, strict=True)]
            rounds.append(await asyncio.gather(*asked))
            verdicts.append(await graded(ask, rounds[-1], example.answer))
        scores = [[float(v["right"]) for v in turn] for turn in verdicts]
        for t, replies in enumerate(rounds):
            for a, reply in enumerate(replies):
                unread = verdicts[t][a]["answer"] is None
                reply.reward(agent=influence_aware(scores, t, a, self.gamma), process=-self.format_penalty * unread)
        return Outcome(vote([v["answer"] for v in verdicts[-1]], example.answer), _metrics(scores, verdicts))


def influence_aware(scores: Sequence[Sequence[float]], turn: int, agent: int, gamma: float) -> float:
    """R(turn, agent) of the module's formula; scores[t][a]."""
    weights = [gamma ** (t - turn) for t in range(turn, len(scores))]
    own_and_later = [scores[turn][agent], *(sum(s) / len(s) for s in scores[turn + 1 :])]
    return sum(w * s for w, s in zip(weights, own_and_later, strict=True)) / sum(weights)


def vote(answers: Sequence[int | None], gold: int) -> float:
    """1 if most agents say `gold`, 1/n if it ties with n − 1 others; no answer loses against any answer."""
    counts = Counter(a for a in answers if a is not None)
    top = [a for a, n in counts.items() if n == max(counts.values())]
    return 1 / len(top) if gold in top else 0.0


def _next_round(example: Problem, names: Sequence[str], seat: int, replies: Sequence) -> str:
    others = [f"{names[s]} answered:\n```\n{r.text.strip()}\n```" for s, r in enumerate(replies) if s != seat]
    quoted = "\n\n".join(others) or "Read your answer again."
    return f"{quoted}\n\nThe question was: {example.question} Revise your answer if it is wrong. {FORMAT}"


def _metrics(scores, verdicts) -> dict[str, float]:
    metrics = {f"accuracy_turn_{t + 1}": sum(s) / len(s) for t, s in enumerate(scores)}
    answers = [v["answer"] for v in verdicts[-1]]
    metrics["agreement"] = float(None not in answers and len(set(answers)) == 1)
    if len(scores) > 1:
        steps = [pair for before, after in zip(scores, scores[1:], strict=False)
                 for pair in zip(before, after, strict=True)]  # fmt: skip
        metrics["right_to_wrong"] = steps.count((1.0, 0.0)) / len(steps)
        metrics["wrong_to_right"] = steps.count((0.0, 1.0)) / len(steps)
    return metrics
