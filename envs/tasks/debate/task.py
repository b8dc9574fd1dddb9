"""The debate: A agents answer a question alone, then T − 1 times more with the others' last answers before them.

Within a turn all speak at once. Every agent has a chat of its own, which only grows. The debate is decided by a vote
(`votes.py`), and every answer is paid by `credit.py`: its return and bonuses as the agent's reward, the format term as
a process reward.

Where a run asks for K candidates (AT-GRPO), each is paid when it is given: its own score, the bonus for changing its
answer, and the format term. What comes later follows from the candidate that was kept, so it cannot tell candidates
apart and is left out. With one candidate (PPO; GRPO, which plays K whole debates) the credit is that of the config.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.debate import prompts, votes
from envs.tasks.debate.credit import PRESETS, Credit, is_malformed, pay, pay_candidate
from envs.tasks.debate.questions import ArithmeticQuestions, Questions, make_questions
from envs.tasks.debate.scoring import GOLD, Scorer, ask_scores, check_scorer, make_scorer
from envs.tasks.replies import Reply, Verdict
from envs.tasks.task import Ask, Outcome, Task


@dataclasses.dataclass(frozen=True)
class Debate(Task):
    """The task.

    dataset            what is debated: arithmetic, nli, arc, sciq, question, or a data set of math (`questions.py`)
    source             parameters of the questions, such as the files of "question"
    agents, turns      size of the debate; a single agent reflects on its own answer
    eval_agents        agents in evaluations; 0: as many
    stop_at_consensus  whether a debate ends once all agree; a single agent, once it repeats its answer
    scorer             "gold": a right answer scores 1; or the address of a verifier, whose scores are paid
    scorer_version     that the verifier must have, as its server shows it; "" is any
    score_limit        seconds in which the verifier must have answered
    verifier_lines     whether agents see the verifier's scores of their own and the others' last answers
    preset             "paper" or "released", see `credit.py`
    credit             influence, cumulative, immediate, last or last_mean
    gamma              discount per turn; below 0: the preset's
    alpha0 … beta1     bonuses of the two tables of `credit.py`
    format_penalty     taken from the reward of a malformed answer; below 0: the preset's
    min_words          an answer with fewer words is malformed, and no verifier is asked about it
    continuation       the candidate that is kept, where the run asks for several: "best", "random" or "first"
    """

    dataset: str = "sample"
    source: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    agents: int = 2
    turns: int = 3
    eval_agents: int = 0
    stop_at_consensus: bool = False
    scorer: str | Scorer = GOLD
    scorer_version: str = ""
    score_limit: float = 60.0
    verifier_lines: bool = False
    preset: str = "paper"
    credit: str = "influence"
    gamma: float = -1.0
    alpha0: float = 0.0
    alpha1: float = 0.0
    beta0: float = 0.0
    beta1: float = 0.0
    format_penalty: float = -1.0
    min_words: int = 0
    continuation: str = "best"

    def __post_init__(self):
        most = len(prompts.NAMES)
        for name, value, low in (("agents", self.agents, 1), ("eval_agents", self.eval_agents, 0)):
            if not low <= value <= most:
                raise ValueError(f"{name} is {value}, but must be {low} to {most}")
        if self.turns < 1:
            raise ValueError(f"turns is {self.turns}, but must be >= 1")
        for name, value, accepted in (
            ("preset", self.preset, tuple(PRESETS)),
            ("continuation", self.continuation, CONTINUATIONS),
        ):
            if value not in accepted:
                raise ValueError(f"{name} is {value!r}, but must be one of: {', '.join(accepted)}")
        check_scorer(self.scorer)
        if self.verifier_lines and self.scorer == GOLD:
            raise ValueError("verifier_lines is True with scorer 'gold', which tells who is right; give a verifier")
        if not self.score_limit > 0:
            raise ValueError(f"score_limit is {self.score_limit}, but must be > 0 seconds")
        _ = self.rules, self.questions  # what cannot work is refused here

    @functools.cached_property
    def rules(self) -> Credit:
        """How answers are paid."""
        own = dict(kind=self.credit, alpha0=self.alpha0, alpha1=self.alpha1, beta0=self.beta0, beta1=self.beta1)
        given = dict(gamma=self.gamma, format_penalty=self.format_penalty)
        own |= {name: value for name, value in given.items() if value >= 0}
        return dataclasses.replace(PRESETS[self.preset], **own)

    @functools.cached_property
    def questions(self) -> Questions:
        """What is debated."""
        return make_questions(self.dataset, self.source)

    @property
    def roles(self) -> tuple[str, ...]:
        """The agents' names, lower case."""
        return tuple(name.lower() for name in prompts.NAMES[: self.agents])

    def for_evaluation(self) -> Debate:
        """The debate as evaluations play it."""
        return dataclasses.replace(self, agents=self.eval_agents or self.agents)

    def examples(self, part: str) -> Sequence[Any]:
        """The questions of a part."""
        return self.questions.examples(part)

    @functools.cached_property
    def _scorer(self) -> Scorer | None:
        return make_scorer(self.scorer, self.scorer_version, self.score_limit)

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Up to `turns` turns; success is that of the vote, 1/n for a right answer among n that tie."""
        system = self.questions.system(example)
        meet = self.agents > 1 and self.turns > 1
        names = [name if meet else None for name in prompts.NAMES[: self.agents]]
        chats = [ask.chat(seat, system=prompts.system(name, system)) for seat, name in enumerate(names)]
        turns: list[_Turn] = []
        over = False
        while len(turns) < self.turns and not over:
            turns.append(await self._turn(ask, chats, example, turns))
            over = self.stop_at_consensus and votes.consensus([turn.answers for turn in turns])
        if ask.candidates == 1:
            self._pay(turns)
        last = turns[-1]
        metrics = votes.metrics([turn.verdicts for turn in turns], self.turns)
        metrics["malformed"] = _mean([bad for turn in turns for bad in turn.malformed])
        if self._scorer is not None:
            metrics |= {f"score_turn_{t + 1}": _mean(turn.scores) for t, turn in enumerate(turns)}
        if self.stop_at_consensus:
            metrics |= {"consensus": float(over), "turns": float(len(turns))}
        winner = votes.winners(last.answers)[0]
        behind = [a for a, answer in enumerate(last.answers) if answer == winner]
        # Without a verifier, an answer is as good as the number of agents behind it.
        score = len(behind) / self.agents if self._scorer is None else _mean([last.scores[a] for a in behind])
        reason = "consensus" if over else "turns"
        return Outcome(votes.vote(last.verdicts), metrics, reason, answer=winner, score=score)

    async def _turn(self, ask: Ask, chats: Sequence[Chat], example: Any, before: Sequence[_Turn]) -> _Turn:
        """One answer of every agent, given at the same time, judged and scored."""
        number = len(before) + 1
        texts = [self._request(example, seat, before) for seat in range(self.agents)]
        # With a label of its own, a turn's answers are compared with each other: each has its whole return.
        asked = [
            chat.say(text, n=ask.candidates, label=f"turn_{number}") for chat, text in zip(chats, texts, strict=True)
        ]
        replies = await asyncio.gather(*asked)
        candidates = [candidate for reply in replies for candidate in reply.replies]
        verdicts = await self.questions.graded(ask, candidates, example)
        malformed = [
            is_malformed(reply.text, verdict["answer"], self.min_words)
            for reply, verdict in zip(candidates, verdicts, strict=True)
        ]
        scores = [float(verdict["right"]) for verdict in verdicts]
        if self._scorer is not None:
            scores = await self._verifier_scores(ask, f"scores_turn_{number}", candidates, malformed, example)
        for candidate, verdict, score in zip(candidates, verdicts, scores, strict=True):
            shown = None if self._scorer is None else score
            candidate.judge(verdict["right"], verdict["answer"], verdict["reason"], shown)
        kept = []
        for seat, (chat, reply) in enumerate(zip(chats, replies, strict=True)):
            first = seat * ask.candidates
            if ask.candidates > 1:
                for k, candidate in enumerate(reply.replies, first):
                    right, right_before = bool(verdicts[k]["right"]), before[-1].right if before else None
                    paid = pay_candidate(self.rules, scores[k], right, malformed[k], right_before, seat)
                    candidate.reward(agent=paid.returns + paid.bonuses, process=paid.format)
            kept.append(first + reply.replies.index(keep_one(ask, chat, reply, self.continuation)))
        return _Turn(*([values[k] for k in kept] for values in (candidates, verdicts, scores, malformed)))

    def _request(self, example: Any, seat: int, before: Sequence[_Turn]) -> str:
        """What an agent is asked after the turns before."""
        question = self.questions.question(example)
        if not before:
            return question
        return prompts.again(
            question, self.questions.format(example), prompts.NAMES[: self.agents], seat,
            [reply.text for reply in before[-1].replies], before[-1].scores if self.verifier_lines else None,
        )  # fmt: skip

    async def _verifier_scores(
        self, ask: Ask, name: str, replies: Sequence[Reply], malformed: Sequence[bool], example: Any
    ) -> list[float]:
        """The verifier's score of each reply, which it reads as the answer of an agent that met no other.

        It is not asked about malformed ones, which score 0: it has learnt from whole solutions, its scores of other
        texts mean nothing, and agents find those that score well.
        """
        scorer = self._scorer
        assert scorer is not None
        chat = [{"role": "user", "content": self.questions.question(example)}]
        if system := prompts.system(None, self.questions.system(example)):
            chat.insert(0, {"role": "system", "content": system})
        said = [k for k, bad in enumerate(malformed) if not bad]
        chats = [[*chat, {"role": "assistant", "content": replies[k].text}] for k in said]
        found = await ask_scores(ask, scorer, name, chats, self.score_limit) if chats else []
        scores = dict(zip(said, found, strict=True))
        return [scores.get(k, 0.0) for k in range(len(replies))]

    def _pay(self, turns: Sequence[_Turn]) -> None:
        paid = pay(self.rules, *([getattr(t, name) for t in turns] for name in ("scores", "right", "malformed")))
        for t, turn in enumerate(turns):
            for a, reply in enumerate(turn.replies):
                reply.reward(agent=paid.returns[t][a] + paid.bonuses[t][a], process=paid.format[t][a])


@dataclasses.dataclass(frozen=True)
class _Turn:
    """The answers of a turn that were kept, one of each agent."""

    replies: list[Reply]
    verdicts: list[Verdict]
    scores: list[float]
    malformed: list[bool]

    @property
    def answers(self) -> list[str | None]:
        return [verdict["answer"] for verdict in self.verdicts]

    @property
    def right(self) -> list[bool]:
        return [bool(verdict["right"]) for verdict in self.verdicts]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclasses.dataclass(frozen=True)
class ArithmeticDebate(Debate):
    """A debate of two turns on arithmetic; levels, n_examples and seed are those of `Arithmetic`."""

    dataset: str = "arithmetic"
    turns: int = 2
    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0

    @functools.cached_property
    def questions(self) -> Questions:
        """Problems of arithmetic."""
        return ArithmeticQuestions(self.levels, self.n_examples, self.seed)
