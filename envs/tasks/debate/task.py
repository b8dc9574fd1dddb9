"""Debate task: agents answer a question alone, then revise their answers in turns.

In later turns, agents see the last answers of the others. Within a turn, all agents answer at the same time. Every
agent has its own chat, which only grows. A vote decides the debate (`votes.py`). Rewards of answers follow `credit.py`:
the return and bonuses are the agent's reward, the format term is a process reward.

If the algorithm wants K candidates (AT-GRPO), each candidate is rewarded immediately: with its own score, the bonus for
a changed answer, and the format term. Later turns depend on the candidate that was kept, so they cannot distinguish the
candidates and are left out. With one candidate (PPO, or GRPO, which plays K complete debates), the credit is that of
the config.
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
    """A debate on questions with known answers.

    Attributes:
        dataset: Dataset of questions: arithmetic, nli, arc, sciq, question, or a dataset of math (`questions.py`).
        source: Parameters of the questions, such as the files of "question".
        agents: Number of agents. A single agent reflects on its own answer.
        turns: Maximum number of turns.
        eval_agents: Number of agents in evaluations; 0 uses `agents`.
        stop_at_consensus: Whether a debate ends once all agents agree, or once a single agent repeats its answer.
        scorer: "gold" to reward right answers with 1, or the address of a verifier to reward its scores.
        scorer_version: Version that the verifier must have, as its server shows it; "" accepts any.
        score_limit: Time limit of the verifier in seconds.
        verifier_lines: Whether agents see the verifier's scores of all last answers, including their own.
        preset: "paper" or "released"; see `credit.py`.
        credit: influence, cumulative, immediate, last or last_mean.
        gamma: Discount per turn; negative values use the preset's.
        alpha0: Size α0 of the bonuses in `credit.py`.
        alpha1: Size α1 of the bonuses.
        beta0: Size β0 of the bonuses.
        beta1: Size β1 of the bonuses.
        format_penalty: Amount subtracted from the reward of a malformed answer; negative values use the preset's.
        min_words: Minimum number of words of an answer. A shorter one is malformed, and the verifier does not score it.
        continuation: Candidate to keep if a turn has several: "best", "random" or "first".
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
            raise ValueError("verifier_lines is True with scorer 'gold', but that reveals who is right; use a verifier")
        if not self.score_limit > 0:
            raise ValueError(f"score_limit is {self.score_limit}, but must be > 0")
        _ = self.rules, self.questions  # raises errors early

    @functools.cached_property
    def rules(self) -> Credit:
        """Rules for the rewards of answers."""
        own = dict(kind=self.credit, alpha0=self.alpha0, alpha1=self.alpha1, beta0=self.beta0, beta1=self.beta1)
        given = dict(gamma=self.gamma, format_penalty=self.format_penalty)
        own |= {name: value for name, value in given.items() if value >= 0}
        return dataclasses.replace(PRESETS[self.preset], **own)

    @functools.cached_property
    def questions(self) -> Questions:
        """Questions of the debate."""
        return make_questions(self.dataset, self.source)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the agents in lower case."""
        return tuple(name.lower() for name in prompts.NAMES[: self.agents])

    def for_evaluation(self) -> Debate:
        """Return the debate with the number of agents for evaluation."""
        return dataclasses.replace(self, agents=self.eval_agents or self.agents)

    def examples(self, part: str) -> Sequence[Any]:
        """Return the questions of a split."""
        return self.questions.examples(part)

    @functools.cached_property
    def _scorer(self) -> Scorer | None:
        return make_scorer(self.scorer, self.scorer_version, self.score_limit)

    async def play(self, ask: Ask, example: Any) -> Outcome:
        """Play up to `turns` turns.

        The success is that of the vote: 1/n if the right answer is one of n that tie.
        """
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
        supporters = [a for a, answer in enumerate(last.answers) if answer == winner]
        # Without a verifier, the score of an answer is the fraction of agents that give it.
        score = len(supporters) / self.agents if self._scorer is None else _mean([last.scores[a] for a in supporters])
        reason = "consensus" if over else "turns"
        return Outcome(votes.vote(last.verdicts), metrics, reason, answer=winner, score=score)

    async def _turn(self, ask: Ask, chats: Sequence[Chat], example: Any, before: Sequence[_Turn]) -> _Turn:
        """Prompt all agents at the same time, then judge and score their replies."""
        number = len(before) + 1
        texts = [self._request(example, seat, before) for seat in range(self.agents)]
        # Every answer has its full return, so answers are only compared within a turn. The label ensures that.
        requests = [
            chat.say(text, n=ask.candidates, label=f"turn_{number}") for chat, text in zip(chats, texts, strict=True)
        ]
        replies = await asyncio.gather(*requests)
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
        """Return the prompt of an agent after the previous turns."""
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
        """Return the verifier's score of each reply, as if its agent had met no others.

        Malformed replies score 0 without a request. The verifier has learned from complete solutions, so its scores of
        other texts mean nothing, and agents would find those that score well.
        """
        scorer = self._scorer
        assert scorer is not None
        chat = [{"role": "user", "content": self.questions.question(example)}]
        if system := prompts.system(None, self.questions.system(example)):
            chat.insert(0, {"role": "system", "content": system})
        valid = [k for k, bad in enumerate(malformed) if not bad]
        chats = [[*chat, {"role": "assistant", "content": replies[k].text}] for k in valid]
        values = await ask_scores(ask, scorer, name, chats, self.score_limit) if chats else []
        scores = dict(zip(valid, values, strict=True))
        return [scores.get(k, 0.0) for k in range(len(replies))]

    def _pay(self, turns: Sequence[_Turn]) -> None:
        paid = pay(self.rules, *([getattr(t, name) for t in turns] for name in ("scores", "right", "malformed")))
        for t, turn in enumerate(turns):
            for a, reply in enumerate(turn.replies):
                reply.reward(agent=paid.returns[t][a] + paid.bonuses[t][a], process=paid.format[t][a])


@dataclasses.dataclass(frozen=True)
class _Turn:
    """The kept replies of a turn, one per agent."""

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
    """A debate of two turns on arithmetic.

    Attributes:
        levels: Difficulty levels; see `Arithmetic`.
        n_examples: Number of problems per split.
        seed: Random seed of the problems.
    """

    dataset: str = "arithmetic"
    turns: int = 2
    levels: tuple[int, ...] = (1, 2, 3)
    n_examples: int = 1000
    seed: int = 0

    @functools.cached_property
    def questions(self) -> Questions:
        """Arithmetic problems."""
        return ArithmeticQuestions(self.levels, self.n_examples, self.seed)
