"""The task of negotiations: a learner and a partner exchange messages with binding offers.

In the form "scripted" the partner follows one of STRATEGIES, chosen by the schedule (`envs.tasks.partners`). In the
form "model" the partner is a second seat, whose prompt describes the strategy. With one message per seat, the learner
makes a single proposal, and the partner's rule for accepting it is the judge.

Rewards follow the goal. "own" and "adversarial" reward each seat on its last message, with its share of the points that
it could get, or with this share minus the other's. "cooperative" rewards the team with the share of the highest joint
points. A message that breaks the rules costs a process reward of -`penalty`.
"""

from __future__ import annotations

import dataclasses

from envs.tasks.chat import Chat
from envs.tasks.data import Dataset
from envs.tasks.judges.referee import PARTNER as AGAINST_PARTNER
from envs.tasks.judges.referee import Contest, ruled
from envs.tasks.negotiation import contexts, deals, messages, strategies
from envs.tasks.negotiation.deals import Bundle, Context
from envs.tasks.negotiation.messages import ACCEPT, INVALID, OFFER, QUIT, Message
from envs.tasks.negotiation.strategies import STRATEGIES
from envs.tasks.partners import Partners, shared_random
from envs.tasks.replies import Reply
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("scripted", "model")
LEARNER, PARTNER = 0, 1
MAX_TURNS = 8


@dataclasses.dataclass(frozen=True)
class Negotiation(Task):
    """Negotiation of a learner with a scripted partner or with another model.

    Attributes:
        source: "generated", "dealornodeal" or "casino".
        form: "scripted" or "model", the kind of partner.
        goal: "own", "cooperative" or "adversarial".
        partners: Strategies of the partner.
        schedule: "fixed", "pool", "switch" or "each" (`envs.tasks.partners`).
        switch_at: Updates at which the partner switches to the next strategy.
        turns: Number of messages of each seat, 1 to 8.
        test_turns: The same in evaluations.
        starts: Seat that speaks first: "learner", or "either" for one chosen by the context.
        message_limit: Maximum number of characters of a message's free text; the rest is cut.
        penalty: Amount subtracted for a message that breaks the rules.
        seed: Random seed of generated contexts.
        n_train: Number of generated train contexts.
        n_validation: Number of generated validation contexts.
        n_test: Number of generated test contexts.
    """

    source: str = "generated"
    form: str = "scripted"
    goal: str = "own"
    partners: tuple[str, ...] = ("fair",)
    schedule: str = "fixed"
    switch_at: tuple[int, ...] = ()
    turns: int = 3
    test_turns: int = 3
    starts: str = "either"
    message_limit: int = 400
    penalty: float = 0.2
    seed: int = 0
    n_train: int = 2048
    n_validation: int = 128
    n_test: int = 512

    def __post_init__(self):
        choices = dict(source=contexts.SOURCES, form=FORMS, goal=tuple(messages.GOALS), starts=("learner", "either"))
        ranges = dict(
            turns=(1, MAX_TURNS), test_turns=(1, MAX_TURNS), message_limit=(1, 10_000), penalty=(0, 10),
            n_train=(1, 10**4), n_validation=(1, 10**4), n_test=(1, 10**4),
        )  # fmt: skip
        check_params(self, choices, ranges)
        self._partners.check(STRATEGIES)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return ("learner", "partner") if self.form == "model" else ("learner",)

    @property
    def contests(self) -> tuple[str, ...]:
        """Texts that a judge can compare the learner's with: the partner's side."""
        return (AGAINST_PARTNER,)

    @property
    def _partners(self) -> Partners:
        return Partners(tuple(self.partners), self.schedule, tuple(self.switch_at))

    def examples(self, part: str) -> Dataset:
        """Return the contexts of a split."""
        check_split(part)
        sizes = (self.n_train, self.n_validation, self.n_test)
        return self._partners.assign(contexts.load(self.source, self.seed, sizes)[part])

    def for_evaluation(self) -> Negotiation:
        """Return negotiations with all scripted partners in turn, whatever the learner was trained with."""
        return dataclasses.replace(
            self, form="scripted", partners=tuple(STRATEGIES), schedule="each", switch_at=(), turns=self.test_turns,
            starts="either",
        )  # fmt: skip

    async def play(self, ask: Ask, example: Context) -> Outcome:
        """Negotiate until a deal, the end of a seat's patience or the last message."""
        return await _Episode(self, ask, example, self._partners.at(ask.step, example)).play()


class _Episode:
    def __init__(self, task: Negotiation, ask: Ask, context: Context, partner: str):
        self.task, self.ask, self.context, self.partner = task, ask, context, partner
        self.strategy, self.rng = STRATEGIES[partner], shared_random(ask, context)
        self.first = LEARNER if task.starts == "learner" else context["first"]
        self.chats: dict[int, Chat] = {}
        self.last: dict[int, Reply] = {}
        self.written, self.invalid = 0, 0
        self.texts: tuple[list[str], list[str]] = [], []  # of each seat, for a judge

    async def play(self) -> Outcome:
        """Alternate messages, then reward the seats."""
        last: Message | None = None
        for ply in range(2 * self.task.turns):
            seat = (self.first + ply) % 2
            scripted = seat == PARTNER and self.task.form == "scripted"
            message = self._scripted(ply // 2, last) if scripted else await self._model(seat, ply // 2, last)
            self.texts[seat].append(messages.line_of(self.context, message))
            if message.kind == QUIT:
                return await self._end(None, QUIT)
            if message.kind == ACCEPT:
                assert last is not None and last.bundle is not None
                given = deals.rest(self.context["counts"], last.bundle)
                return await self._end(given if seat == LEARNER else last.bundle, "deal")
            last = message
        return await self._end(None, "turns")

    def _scripted(self, turn: int, last: Message | None) -> Message:
        """Return the next message of the scripted partner."""
        counts, values = self.context["counts"], self.context["values"][PARTNER]
        offered = None if last is None or last.bundle is None else deals.rest(counts, last.bundle)
        bundle = strategies.decide(self.strategy, self.rng, values, counts, turn, self.task.turns, offered)
        if bundle is None:
            return Message(ACCEPT, "")
        return Message(OFFER, messages.scripted_text(self.context, self.strategy, turn), bundle)

    async def _model(self, seat: int, turn: int, last: Message | None) -> Message:
        """Return the next message of a model."""
        parts = [] if last is None else [messages.heard(self.context, last)]
        if seat not in self.chats:
            persona = self.strategy if seat == PARTNER else None
            self.chats[seat] = self.ask.chat(seat, system=messages.system(self.task.goal, persona))
            parts.insert(0, messages.opening(self.context, seat))
        text = "\n\n".join([*parts, messages.left(self.task.turns - turn)])
        self.last[seat] = reply = await self.chats[seat].say(text)
        on_table = last is not None and last.kind == OFFER
        items, counts = self.context["items"], self.context["counts"]
        message = messages.read_message(reply.text, items, counts, on_table, self.task.message_limit)
        self.written += seat == LEARNER
        self.invalid += seat == LEARNER and message.kind == INVALID
        reply.judge(message.kind != INVALID, reason=message.problem)
        if message.kind == INVALID:
            reply.reward(process=-self.task.penalty)
        return message

    async def _end(self, bundle: Bundle | None, reason: str) -> Outcome:
        """Reward the seats; `bundle` is the learner's part of the deal, or None."""
        context, goal = self.context, self.task.goal
        earned = (0, 0) if bundle is None else deals.both_points(context, bundle)
        own, other = (earned[seat] / deals.most(context, seat) for seat in (LEARNER, PARTNER))
        joint = sum(earned) / deals.max_joint(context)
        gains = {"own": (own, other), "adversarial": (own - other, other - own), "cooperative": (joint, joint)}[goal]
        ruling = await ruled(self.ask, *gains, lambda against: self._contest((own, other)))
        if goal == "cooperative":
            for reply in list(self.last.values())[:1]:
                reply.reward(team=ruling.own)
        else:
            for seat, reply in self.last.items():
                reply.reward(agent=(ruling.own, ruling.other)[seat])
        won = (1 + (earned[0] > earned[1]) - (earned[0] < earned[1])) / 2
        success = {"own": own, "adversarial": won, "cooperative": joint}[goal]
        metrics = {
            **self._metrics(bundle, own, other, joint, won),
            **ruling.metrics,
            f"success_vs_{self.partner}": success,
        }
        return Outcome(success, metrics, reason)

    def _contest(self, shares: tuple[float, float]) -> Contest:
        """Compare both sides of the negotiation: what they wrote, and their shares of the points."""
        sides = ["\n".join([*texts, f"Result: {share:.0%} of the points that it could get."])
                 for texts, share in zip(self.texts, shares, strict=True)]  # fmt: skip
        return Contest(messages.judged(self.context), sides[LEARNER], sides[PARTNER], shares)

    def _metrics(self, bundle: Bundle | None, own: float, other: float, joint: float, won: float) -> dict[str, float]:
        """Return the measures of a negotiation.

        `own`, `other` and `joint` are shares of the highest possible points, 0 without a deal. `best` is the share of
        the exact best response to the scripted partner, above 1 with luck against the random one. `pareto` and the two
        kinds of envy are measured for deals only.
        """
        context = self.context
        metrics = {
            "own": own, "other": other, "joint": joint, "win": won, "deal": float(bundle is not None),
            "invalid": self.invalid / max(self.written, 1), "messages": self.written,
        }  # fmt: skip
        if bundle is not None:
            metrics["pareto"] = float(deals.is_pareto(context, bundle))
            metrics["envy"] = deals.envy(context, LEARNER, bundle)
            metrics["partner_envy"] = deals.envy(context, PARTNER, deals.rest(context["counts"], bundle))
        if self.task.form == "scripted":
            values = tuple(context["values"][LEARNER]), tuple(context["values"][PARTNER])
            counts = tuple(context["counts"])
            optimum = strategies.best_response(counts, values, self.partner, self.task.turns, self.first)
            if optimum:
                metrics["best"] = own * deals.most(context, LEARNER) / optimum
        return metrics
