"""The `retrieval` task: a searcher brings numbered passages, and a writer answers with citations.

The writer is the learner. It reads the passages that the searcher brings for the question, and either writes
`<search>words</search>`, which the searcher answers with further passages, or `<answer>text [1]</answer>`, where the
numbers are those of passages that contain the answer. In the form "scripted" the searcher follows one of SEARCHERS,
chosen by the schedule (`envs.tasks.partners`); "plain" is the search engine alone. In the form "model" it is a second
seat, which writes a query and may add a note.

The F1 of the answer is the success. The reward is the F1 plus `citation_reward` times the share of citations whose
passage contains a gold answer. With the goal "cooperative" the team earns it, with "adversarial" a searcher that is a
model earns 1 minus the F1. A completion without a readable action, or with a citation of a passage that does not exist,
costs a process reward of -`penalty`.
"""

from __future__ import annotations

import dataclasses

from envs.tasks.chat import Chat
from envs.tasks.data import Dataset, from_list
from envs.tasks.partners import Partners, shared_random
from envs.tasks.replies import Reply
from envs.tasks.retrieval.citations import measure, read_citations
from envs.tasks.retrieval.searchers import SEARCHERS, Request, Row
from envs.tasks.search import scoring, sources
from envs.tasks.search.task import read_action
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("scripted", "model")
GOALS = ("cooperative", "adversarial")
WRITER, SEARCHER = 0, 1
SYSTEM = (
    "You answer a question from numbered passages that a searcher brings. The searcher may be wrong. To see other "
    "passages, write <search>a few words</search>. To answer, write <answer>a few words [1]</answer> with the numbers "
    "of the passages that contain the answer. Write one of them at a time."
)
SEARCHER_SYSTEM = (
    "You search for passages for a writer who answers a question. Write <search>a few words</search> once. Anything "
    "else that you write is a note to the writer."
)
NO_ACTION = "The completion must contain exactly one action in tags."


@dataclasses.dataclass(frozen=True)
class Retrieval(Task):
    """Questions that a writer answers from the passages of a searcher.

    Attributes:
        dataset: "squad", "hotpotqa", "sample", or a .jsonl file with id, question and answers.
        passages: With your own dataset, a .jsonl file with title and text.
        form: "scripted" or "model", the kind of searcher.
        goal: "cooperative" or "adversarial".
        partners: Strategies of the searcher: helpful, plain, lazy, distracting, misleading.
        schedule: "fixed", "pool", "switch" or "each" (`envs.tasks.partners`).
        switch_at: Updates at which the searcher switches to the next strategy.
        turns: Maximum number of completions of the writer.
        k: Number of passages that a search returns.
        passage_limit: Maximum number of characters of a passage.
        note_limit: Maximum number of characters of a searcher's note; the rest is cut.
        citation_reward: Reward of an answer whose citations all contain the answer.
        penalty: Amount subtracted for a completion without a readable action or with an invented citation.
    """

    dataset: str = "squad"
    passages: str = ""
    form: str = "scripted"
    goal: str = "cooperative"
    partners: tuple[str, ...] = ("helpful",)
    schedule: str = "fixed"
    switch_at: tuple[int, ...] = ()
    turns: int = 2
    k: int = 3
    passage_limit: int = 600
    note_limit: int = 300
    citation_reward: float = 0.2
    penalty: float = 0.1

    def __post_init__(self):
        ranges = dict(
            turns=(1, 16), k=(1, 20), passage_limit=(1, 100_000), note_limit=(0, 10_000), citation_reward=(0, 100),
            penalty=(0, 10),
        )  # fmt: skip
        check_params(self, dict(form=FORMS, goal=GOALS), ranges)
        self._partners.check(SEARCHERS)
        sources.check_name(self.dataset, self.passages)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return ("writer", "searcher") if self.form == "model" else ("writer",)

    @property
    def _partners(self) -> Partners:
        return Partners(tuple(self.partners), self.schedule, tuple(self.switch_at))

    def examples(self, part: str) -> Dataset:
        """Return the questions of a split."""
        check_split(part)
        rows = sources.load(self.dataset, self.passages).splits[part]
        return self._partners.assign(from_list([{**row, "key": row["id"]} for row in rows], rows.name))

    def prepare(self) -> None:
        """Build the index."""
        sources.load(self.dataset, self.passages)

    def for_evaluation(self) -> Retrieval:
        """Return questions with all scripted searchers in turn."""
        return dataclasses.replace(self, form="scripted", partners=tuple(SEARCHERS), schedule="each", switch_at=())

    async def play(self, ask: Ask, example: Row) -> Outcome:
        """Exchange requests and passages until the writer answers, and score the answer."""
        return await _Episode(self, ask, example, self._partners.at(ask.step, example)).play()


class _Episode:
    def __init__(self, task: Retrieval, ask: Ask, row: Row, partner: str):
        self.task, self.ask, self.row, self.partner = task, ask, row, partner
        self.collection, self.rng = sources.load(task.dataset, task.passages), shared_random(ask, row)
        self.shown: list[str] = []
        self.searcher: Chat | None = None
        self.found: Reply | None = None
        self.invalid = 0

    async def play(self) -> Outcome:
        question = f"Question: {self.row['question']}"
        writer = self.ask.chat(WRITER, system=SYSTEM)
        text = f"{question}\n\n{await self._brought(self.row['question'])}"
        for left in reversed(range(self.task.turns)):
            reply = await writer.say(text if left else f"{text}\n\nAnswer now.")
            action = read_action(reply.text)
            if action.kind == "answer":
                return self._end(reply, action.text)
            if action.kind == "search" and left:
                reply.judge(True, reason=action.text)
                text = await self._brought(action.text)
            else:
                self._refuse(reply, action.kind)
                text = NO_ACTION
        return self._end(reply, "")

    def _refuse(self, reply: Reply, reason: str) -> None:
        reply.judge(False, reason=reason)
        reply.reward(process=-self.task.penalty)
        self.invalid += 1

    async def _brought(self, request: str) -> str:
        """Return the searcher's numbered passages and its note."""
        if self.task.form == "model":
            rows, note = await self._model(request)
        else:
            wanted = Request(request, self.row, self.collection, self.task.k, self.rng)
            rows, note = SEARCHERS[self.partner].bring(wanted)
        lines = []
        for row in rows:
            passage = f"{row['title']}: {row['text'][: self.task.passage_limit]}"
            if passage not in self.shown:
                self.shown.append(passage)
            lines.append(f"[{self.shown.index(passage) + 1}] {passage}")
        parts = ["\n".join(lines) or "The searcher found no passages."]
        return "\n\n".join([*parts, f"Note of the searcher: {note}"] if note else parts)

    async def _model(self, request: str) -> tuple[list[Row], str]:
        """Let a model search and write a note."""
        text = f"The writer wants: {request}"
        if self.searcher is None:
            self.searcher = self.ask.chat(SEARCHER, system=f"{SEARCHER_SYSTEM} {SEARCHERS[self.partner].prompt}")
        self.found = reply = await self.searcher.say(text)
        action = read_action(reply.text)
        note = " ".join(reply.text.partition("<search>")[0].split())[: self.task.note_limit]
        if action.kind != "search":
            reply.judge(False, reason=action.kind)
            reply.reward(process=-self.task.penalty)
            return [], note
        rows = self.collection.search(action.text, self.task.k)
        reply.judge(any(scoring.mentions(row["text"], self.row["answers"]) for row in rows), reason=action.text)
        return rows, note

    def _end(self, reply: Reply, text: str) -> Outcome:
        """Score the answer and reward the seats."""
        task, golds = self.task, self.row["answers"]
        answer, numbers = read_citations(text)
        quality = scoring.f1(answer, golds) if answer else 0.0
        cited = measure(numbers, self.shown, golds)
        if answer and cited["invented"]:
            reply.reward(process=-task.penalty)
        if text:
            reply.judge(quality, answer)
        amount = quality + task.citation_reward * cited["supported"]
        reply.reward(**{"team" if task.goal == "cooperative" else "agent": amount})
        if task.goal == "adversarial" and self.found is not None:
            self.found.reward(agent=1 - quality)
        metrics = {
            **cited, "exact": float(bool(answer) and scoring.exact(answer, golds)), "no_answer": float(not answer),
            "mentioned": float(scoring.mentions("\n".join(self.shown), golds)), "passages": float(len(self.shown)),
            "invalid": self.invalid / task.turns, f"success_vs_{self.partner}": quality,
        }  # fmt: skip
        return Outcome(quality, metrics, "done" if answer else "no_answer", scoring.normalize(answer) or None)
