"""The task of hidden-profile questions: seats exchange what they know, then choose an option.

In the form "team" all seats write a message at the same time, in one or more turns, and read those of the others. Then
every seat answers, `#### B`, and the vote of the seats decides. With `answer="program"` a seat answers by a program
that unites the lists and prints this line; it runs in the sandbox without any facts. In the form "seat" one agent
answers with the facts of the first seat, in the form "all" with all facts. The best success in the form "seat" is
1 / (options - 1); see `questions.py`. Evaluations of a team also sample an answer of each seat before the exchange
(`before`).

Rewards: the quality of an answer is 1 if it is right, otherwise 0. In a team without programs, `progress` is the weight
of a second measure in it: how well the answer's lists combine the seat's facts with those of the others
(`questions.pooled`). An answer earns its quality as an agent reward, and a process reward of -`penalty` if it is not
readable or not one of the options. A message earns the mean quality of the answers of its readers
(`envs/tasks/exchange.py`), and a process reward of -`penalty` if it is empty or too long; its readers then see a note
instead.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence

from envs.tasks.chat import CONTINUATIONS
from envs.tasks.data import Dataset
from envs.tasks.debate import votes
from envs.tasks.debate.prompts import NAMES, system
from envs.tasks.exchange import EMPTY, SENT, TOO_LONG, Exchange, Exchanged, History, quoted
from envs.tasks.hidden_profile.questions import (
    LETTERS,
    Question,
    everything,
    mentioned,
    pooled,
    shared,
    splits,
    unshared,
)  # fmt: skip
from envs.tasks.math import tool
from envs.tasks.replies import Reply, Verdict
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("team", "seat", "all")
LISTS, PROGRAM = "lists", "program"
SANDBOXES = ("auto", "process")
MAX_SEATS, MAX_TURNS = 4, 3
FINAL = "####"
PROGRAM_FAILURES = ("no_program", "not_run")
UNREADABLE = (*PROGRAM_FAILURES, "no_answer", "unknown_option")
_ANSWER = re.compile(r"[\s:*\"'(\[]*(\w+)")


@dataclasses.dataclass(frozen=True)
class Choice:
    """The verdict on an answer.

    Attributes:
        answer: The option, or None.
        kind: "right", "wrong" or one of UNREADABLE.
        reason: Description of the problem, or "".
        pooled: How well its lists combine the facts of the seats, 0 to 1 (`questions.pooled`).
        quality: Quality of the answer, 0 to 1.
    """

    answer: str | None
    kind: str
    reason: str = ""
    pooled: float = 0.0
    quality: float = 0.0

    @property
    def right(self) -> float:
        """1 if the answer is right, otherwise 0."""
        return float(self.kind == "right")

    @property
    def verdict(self) -> Verdict:
        """The verdict as a JSON value."""
        return {"right": self.right, "answer": self.answer, "reason": self.reason}


def read_choice(text: str, question: Question) -> Choice:
    """Return the option after the last `####` of a text."""
    _, separator, after = text.rpartition(FINAL)
    match = _ANSWER.match(after)
    if not separator or match is None:
        return Choice(None, "no_answer", f"no option follows {FINAL}" if separator else f"there is no {FINAL}")
    if match[1].upper() not in question["options"]:
        known = ", ".join(question["options"])
        return Choice(None, "unknown_option", f"the answer is {match[1]!r:.40}, but must be one of: {known}")
    answer = match[1].upper()
    return Choice(answer, "right" if answer == question["answer"] else "wrong")


@dataclasses.dataclass(frozen=True)
class HiddenProfile(Task):
    """Hidden-profile questions for a team or for one agent.

    Attributes:
        form: "team" for all seats; "seat" or "all" for one agent with the facts of the first seat or all facts.
        seats: Number of seats that hold facts, 2 to 4.
        options: Number of options, 3 to 6.
        answer: "lists" if a seat lists all facts and answers, "program" if it writes a program that does.
        turns: Number of messages of every seat, 1 to 3.
        message_limit: Maximum number of characters of a message.
        before: Whether to sample an answer of each seat before the exchange, which is not rewarded.
        seed: Random seed of the questions.
        n_train: Number of train questions.
        n_validation: Number of validation questions.
        n_test: Number of test questions.
        progress: Weight of the pooled facts in the quality of a team's answers by lists, 0 to 1.
        penalty: Amount subtracted for an unreadable answer or a message that is not delivered.
        continuation: Messages to keep in turns before the last: "best", "random" or "first".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Time limit of a program in seconds.
    """

    form: str = "team"
    seats: int = 2
    options: int = 4
    answer: str = LISTS
    turns: int = 1
    message_limit: int = 500
    before: bool = False
    seed: int = 0
    n_train: int = 2048
    n_validation: int = 128
    n_test: int = 512
    progress: float = 0.5
    penalty: float = 0.5
    continuation: str = "best"
    sandbox: str = "auto"
    wall: float = 3.0

    def __post_init__(self):
        ranges = dict(
            seats=(2, MAX_SEATS), options=(3, len(LETTERS)), turns=(1, MAX_TURNS), message_limit=(1, 10_000),
            n_train=(1, 10**6), n_validation=(1, 10**6), n_test=(1, 10**6), progress=(0, 1),
            penalty=(0, 10), wall=(0.1, 60),
        )  # fmt: skip
        choices = dict(form=FORMS, answer=(LISTS, PROGRAM), continuation=CONTINUATIONS, sandbox=SANDBOXES)
        check_params(self, choices, ranges)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats in lower case."""
        return tuple(name.lower() for name in NAMES[: self.seats if self.form == "team" else 1])

    def examples(self, part: str) -> Dataset:
        """Return the questions of a split."""
        check_split(part)
        return splits(self.seats, self.options, self.seed, self.n_train, self.n_validation, self.n_test)[part]

    def prepare(self) -> None:
        """Start the sandbox if programs are run.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        if self.answer == PROGRAM:
            shared_sandbox(self.sandbox)

    def for_evaluation(self) -> HiddenProfile:
        """Return the task with answers before the exchange."""
        return dataclasses.replace(self, before=self.form == "team")

    async def play(self, ask: Ask, example: Question) -> Outcome:
        """Exchange messages, then answer and vote."""
        seats, team = range(len(self.roles)), self.form == "team"
        first = await self._before(ask, example) if self.before and team else []
        exchange = Exchange(
            ask=ask, rounds=(tuple(seats),) * self.turns if team else (), answering=tuple(seats),
            limit=self.message_limit, penalty=self.penalty, continuation=self.continuation, system=self._system,
            request=lambda seat, history, answers: self._request(example, seat, history, answers),
            judge=lambda seat, reply, name: self._judge(ask, example, seat, reply, name),
        )  # fmt: skip
        played = await exchange.play()
        ballots = [choices for one in played for choices in zip(*one.answers.values(), strict=True)]
        right = [votes.vote([choice.verdict for choice in ballot]) for ballot in ballots]
        winner = votes.winners([choice.answer for choice in ballots[0]])[0]
        return Outcome(
            success=sum(right) / len(right), answer=winner, metrics=self._metrics(example, played, ballots, first)
        )

    async def _before(self, ask: Ask, question: Question) -> list[Choice]:
        """Sample an answer of each seat from its own facts."""
        chats = [ask.chat(seat, system=self._system(seat)) for seat in range(self.seats)]
        texts = [self._request(question, seat, (), True) for seat in range(self.seats)]
        replies = await asyncio.gather(*(c.say(t, label="before") for c, t in zip(chats, texts, strict=True)))
        read = (self._read(ask, question, reply.text, f"before_{seat}") for seat, reply in enumerate(replies))
        return list(await asyncio.gather(*read))

    async def _read(self, ask: Ask, question: Question, text: str, name: str) -> Choice:
        """Return the option that a completion, or its program, names."""
        if self.answer == LISTS:
            return read_choice(text, question)
        program = tool.program_of(text)
        if program is None:
            return Choice(None, "no_program", "there is no ```python block")
        result = await tool.run_in_episode(ask, shared_sandbox(self.sandbox).settings, program, self.wall, name)
        if result["status"] != "ok":
            return Choice(None, "not_run", f"the program ended with {result['limit'] or result['status']}")
        return read_choice(result["stdout"], question)

    async def _judge(self, ask: Ask, question: Question, seat: int, reply: Reply, name: str) -> Choice:
        choice = await self._read(ask, question, reply.text, f"answer_{name}")
        combines = self.form == "team" and self.answer == LISTS
        combined, weight = (pooled(question, seat, reply.text), self.progress) if combines else (0.0, 0.0)
        choice = dataclasses.replace(choice, pooled=combined, quality=(1 - weight) * choice.right + weight * combined)
        reply.judge(**choice.verdict)
        reply.reward(agent=choice.quality, process=-self.penalty * (choice.kind in UNREADABLE))
        return choice

    def _metrics(
        self, question: Question, played: Sequence[Exchanged], ballots: Sequence[Sequence[Choice]],
        first: Sequence[Choice],
    ) -> dict[str, float]:  # fmt: skip
        """Return shares of all answers and messages of an episode, including all candidates.

        `unshared_mentioned` is the share of unshared facts that their holder mentions to the others, `shared_mentioned`
        that of shared facts that anyone mentions.
        """
        choices = [choice for ballot in ballots for choice in ballot]
        metrics = {"right": _mean([choice.right for choice in choices])}
        metrics["lure"] = _mean([choice.answer == question["lure"] for choice in choices])
        for kind in [kind for kind in UNREADABLE if self.answer == PROGRAM or kind not in PROGRAM_FAILURES]:
            metrics[kind] = _mean([choice.kind == kind for choice in choices])
        if first:
            metrics["right_before"] = _mean([choice.right for choice in first])
            metrics["lure_before"] = _mean([choice.answer == question["lure"] for choice in first])
        if self.form == "team":
            metrics |= {f"message_{kind}": _mean([one.share(kind) for one in played]) for kind in (EMPTY, TOO_LONG)}
            if self.answer == LISTS:
                metrics["pooled"] = _mean([choice.pooled for choice in choices])
            metrics["unshared_mentioned"] = _mean([self._mentioned(question, one.history)[0] for one in played])
            metrics["shared_mentioned"] = _mean([self._mentioned(question, one.history)[1] for one in played])
        return metrics

    def _mentioned(self, question: Question, history: History) -> tuple[float, float]:
        """Return the shares of unshared and of shared facts in the messages that were delivered."""
        texts = [" ".join(said[seat].text for said in history if said[seat].kind == SENT) for seat in range(self.seats)]
        own = [unshared(question, seat) for seat in range(self.seats)]
        told = sum(len(mentioned(facts, text)) for facts, text in zip(own, texts, strict=True))
        common = shared(question)
        # All advantages of the answer may be unshared, but those of the lure never are.
        return told / sum(map(len, own)), len(mentioned(common, " ".join(texts))) / len(common)

    # --------------------------------------------------------------------------------------------------- prompts

    def _system(self, seat: int) -> str:
        return system(NAMES[seat] if self.form == "team" else None, "You choose the best option.") or ""

    def _request(self, question: Question, seat: int, history: History, answers: bool) -> str:
        facts = everything(question) if self.form == "all" else question["views"][seat]
        lines = [f"{option}: {', '.join(word for o, word in facts if o == option)}" for option in question["options"]]
        known = "These are all advantages of each" if self.form == "all" else "You know these advantages of each"
        text = f"Which {question['topic']} has the most different advantages? {known}:\n" + "\n".join(lines) + "\n\n"
        if self.form == "team":
            others = " and ".join(NAMES[other] for other in range(self.seats) if other != seat)
            text += f"{others} may know other advantages. Advantages that several of you know count once.\n\n"
        programs = answers and self.answer == PROGRAM
        for messages in history:
            # A program needs no own messages: the list above has the same facts.
            heard = [who for who in messages if not (programs and who == seat)]
            text += "".join(quoted("You" if who == seat else NAMES[who], messages[who]) for who in heard)
        if programs:
            return text + _program([NAMES[other] for other in history[0] if other != seat] if history else [])
        if answers:
            known = "yours and those of the messages" if history else "from the list above"
            topic = question["topic"]
            return (
                f"{text}Write one line for each {topic}: its letter, all of its different advantages, {known}, each "
                f'once, and their number, for example "A: red, old, big = 3". End with {FINAL} and the letter of the '
                f"{topic} with the highest number."
            )
        return (
            f"{text}Write what the others need to know, in the form of the list above and in at most "
            f"{self.message_limit} characters. Do not answer yet."
        )


def _program(others: Sequence[str]) -> str:
    """Return the request for a program.

    Args:
        others: Names of the seats whose messages were read.
    """
    form = "letter to its set of words, for example {'A': {'red', 'old'}, 'B': {'big'}}"
    wanted = f"`facts`, the advantages: a dictionary from each {form}"
    if others:
        *names, last = ["`own`", *(f"`{name.lower()}`" for name in others)]
        wanted = (
            f"{', '.join(names)} and {last}, the advantages from your list and from the messages: dictionaries from "
            f"each {form}. Then it unites the sets of each letter in `facts`"
        )
    return (
        f"Write a Python program in one ```python block. First it defines {wanted}. It ends with the line\n"
        f'print("{FINAL}", max(facts, key=lambda letter: len(facts[letter])))'
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
