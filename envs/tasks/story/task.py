"""The task of writing stories: a learner and a co-author add one sentence in turn.

The learner must use the words and the characters of a brief and end the story with a given word, whatever the co-author
writes. In the form "scripted" the co-author follows one of CO_AUTHORS, chosen by the schedule (`envs.tasks.partners`);
"silent" leaves the story to the learner. In the form "model" it is a second seat.

The reward is the score of the story by a rule (`scoring.py`), on the learner's last sentence. With the goal
"cooperative" the team earns it, with "adversarial" a co-author that is a model earns 1 minus the score. A contribution
that is not one sentence of the allowed length is left out of the story and costs a process reward of -`penalty`.
"""

from __future__ import annotations

import dataclasses

from envs.tasks.chat import Chat
from envs.tasks.data import Dataset
from envs.tasks.judges.referee import PARTNER, REFERENCE, Contest, Ruling, ruled
from envs.tasks.partners import Partners, shared_random
from envs.tasks.replies import Reply
from envs.tasks.story import briefs
from envs.tasks.story.briefs import Brief
from envs.tasks.story.coauthors import CO_AUTHORS, reference_story
from envs.tasks.story.scoring import problem_of, score
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("scripted", "model")
GOALS = ("cooperative", "adversarial")
LEARNER, CO_AUTHOR = 0, 1
SYSTEM = "You write a story together with another author, one sentence each in turn. Answer with one sentence only."


@dataclasses.dataclass(frozen=True)
class Story(Task):
    """Stories of a learner and a co-author.

    Attributes:
        form: "scripted" or "model", the kind of co-author.
        goal: "cooperative" or "adversarial".
        partners: Strategies of the co-author: helpful, plain, repeating, derailing, silent.
        schedule: "fixed", "pool", "switch" or "each" (`envs.tasks.partners`).
        switch_at: Updates at which the co-author switches to the next strategy.
        turns: Number of sentences of the learner, who also writes the last one.
        word_limit: Maximum number of words of a sentence.
        penalty: Amount subtracted for a contribution that is not one sentence.
        seed: Random seed of the briefs.
        n_train: Number of train briefs.
        n_validation: Number of validation briefs.
        n_test: Number of test briefs.
    """

    form: str = "scripted"
    goal: str = "cooperative"
    partners: tuple[str, ...] = ("helpful",)
    schedule: str = "fixed"
    switch_at: tuple[int, ...] = ()
    turns: int = 4
    word_limit: int = 30
    penalty: float = 0.1
    seed: int = 0
    n_train: int = 2048
    n_validation: int = 128
    n_test: int = 512

    def __post_init__(self):
        ranges = dict(
            turns=(1, 16), word_limit=(1, 200), penalty=(0, 10), n_train=(1, 10**5), n_validation=(1, 10**5),
            n_test=(1, 10**5),
        )  # fmt: skip
        check_params(self, dict(form=FORMS, goal=GOALS), ranges)
        self._partners.check(CO_AUTHORS)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return ("learner", "coauthor") if self.form == "model" else ("learner",)

    @property
    def contests(self) -> tuple[str, ...]:
        """Texts that a judge can compare the learner's with."""
        return REFERENCE, PARTNER

    @property
    def _partners(self) -> Partners:
        return Partners(tuple(self.partners), self.schedule, tuple(self.switch_at))

    def examples(self, part: str) -> Dataset:
        """Return the briefs of a split."""
        check_split(part)
        return self._partners.assign(briefs.splits(self.seed, (self.n_train, self.n_validation, self.n_test))[part])

    def for_evaluation(self) -> Story:
        """Return stories with all scripted co-authors in turn."""
        return dataclasses.replace(
            self, form="scripted", partners=tuple(CO_AUTHORS), schedule="each", switch_at=()
        )  # fmt: skip

    async def play(self, ask: Ask, example: Brief) -> Outcome:
        """Write a story and score it."""
        return await _Episode(self, ask, example, self._partners.at(ask.step, example)).play()


class _Episode:
    def __init__(self, task: Story, ask: Ask, brief: Brief, partner: str):
        self.task, self.ask, self.brief, self.partner = task, ask, brief, partner
        self.rng = shared_random(ask, brief)
        self.story: list[tuple[int, str]] = [(-1, brief["opening"])]
        self.chats: dict[int, Chat] = {}
        self.read: dict[int, int] = {LEARNER: 0, CO_AUTHOR: 0}
        self.last: dict[int, Reply] = {}
        self.invalid = 0

    async def play(self) -> Outcome:
        """Alternate sentences, beginning and ending with the learner, then reward the seats."""
        write = CO_AUTHORS[self.partner].write
        for turn in range(self.task.turns):
            await self._write(LEARNER, self.task.turns - turn)
            if turn == self.task.turns - 1:
                break
            if self.task.form == "model":
                await self._write(CO_AUTHOR, self.task.turns - 1 - turn)
            elif write is not None:
                texts = [text for _, text in self.story]
                self.story.append((CO_AUTHOR, write(self.brief, texts, self.rng)))
        measured = score(self.brief, self.story)
        ruling = await ruled(self.ask, measured["score"], 1 - measured["score"], self._contest)
        self._reward(ruling)
        metrics = {
            **measured,
            **ruling.metrics,
            "invalid": self.invalid / self.task.turns,
            f"success_vs_{self.partner}": measured["score"],
        }
        complete = all(measured[name] == 1 for name in ("words", "characters", "ending"))
        return Outcome(measured["score"], {**metrics, "complete": float(complete)}, "complete" if complete else "turns")

    def _reward(self, ruling: Ruling) -> None:
        if self.task.goal == "cooperative":
            self.last[LEARNER].reward(team=ruling.own)
            return
        self.last[LEARNER].reward(agent=ruling.own)
        if CO_AUTHOR in self.last:
            self.last[CO_AUTHOR].reward(agent=ruling.other)

    def _contest(self, against: str) -> Contest:
        """Compare the story with a reference, or the sentences of the authors."""
        prompt, own = f"{self._brief()}\n\n{self.story[0][1]}", score(self.brief, self.story)["score"]
        if against == REFERENCE:
            story = [(LEARNER, text) for text in reference_story(self.brief, 2 * self.task.turns - 1)]
            written, other = [text for _, text in self.story[1:]], [text for _, text in story[1:]]
        else:
            story = [(CO_AUTHOR - seat if seat >= 0 else seat, text) for seat, text in self.story]
            written, other = ([text for who, text in self.story if who == seat] for seat in (LEARNER, CO_AUTHOR))
        return Contest(prompt, "\n".join(written), "\n".join(other), (own, score(self.brief, story)["score"]))

    async def _write(self, seat: int, left: int) -> None:
        """Ask a model for its next sentence and add it to the story."""
        parts = []
        if seat not in self.chats:
            persona = "" if seat == LEARNER else f" {CO_AUTHORS[self.partner].prompt}"
            self.chats[seat] = self.ask.chat(seat, system=SYSTEM + persona)
            parts.append(self._brief())
        new = [text for who, text in self.story[self.read[seat] :] if who != seat]
        parts.append("The story continues:\n" + "\n".join(new) if new else "The other author has added nothing.")
        parts.append(
            "Write the last sentence." if left == 1 and seat == LEARNER else f"You write {left} more sentences."
        )
        self.last[seat] = reply = await self.chats[seat].say("\n\n".join(parts))
        problem = problem_of(reply.text, self.task.word_limit)
        reply.judge(not problem, reason=problem)
        if problem:
            reply.reward(process=-self.task.penalty)
            self.invalid += seat == LEARNER
        else:
            self.story.append((seat, reply.text.strip()))
        self.read[seat] = len(self.story)

    def _brief(self) -> str:
        names, words = " and ".join(self.brief["characters"]), ", ".join(self.brief["words"])
        return (
            f"The story is about {names}. Use these words: {words}. The last word of the story must be "
            f"'{self.brief['ending']}'. A sentence has at most {self.task.word_limit} words."
        )
