"""The `search` task: answer questions with a search engine.

A completion contains one action in tags: `<search>words</search>` shows the best passages, `<answer>text</answer>` ends
the episode. In the form "single" one agent searches and answers in one conversation. In the form "roles" a searcher
writes at most `turns` - 1 queries, or `<done/>`, and a reader answers from the passages. Both forms have at most
`turns` completions. The F1 of the answer is the success of the episode.

Rewards: an answer earns a team reward of its F1. A query earns an agent reward of `search_reward` if its passages are
the first that mention the answer. A completion with a readable action earns a process reward of `format_reward`. If the
run samples K candidates (AT-GRPO), each of them is rewarded so, and one is continued. Otherwise the F1 is the reward of
the last completion of each role, so that more queries never earn more than `search_reward`.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.data import Dataset
from envs.tasks.replies import Reply
from envs.tasks.revising import FORMS, MAX_TURNS
from envs.tasks.search import scoring, sources
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

MAX_QUERY, MAX_ANSWER = 200, 200
"""Maximum number of characters of a query and of an answer; a longer one is not read."""
_ACTION = re.compile(r"<(search|answer)>(.*?)</\1>|<(done)\s*/?>", re.DOTALL)
_QUERY = "To search for passages, write <search>a few words</search>."
_ANSWER = "To answer, write <answer>a few words</answer>."
SINGLE = f"You answer questions with a search engine. {_QUERY} {_ANSWER} Write one of them at a time."
SEARCHER = (
    f"You search for the passages that answer a question, for a reader who answers it. {_QUERY} When the passages are "
    "sufficient, write <done/>. Write one of them at a time."
)
READER = f"You answer questions from passages. {_ANSWER}"


@dataclasses.dataclass(frozen=True)
class Action:
    """The action of a completion.

    Attributes:
        kind: "search", "answer", "done", or "none" if it is not readable.
        text: Query or answer, or "".
    """

    kind: str
    text: str = ""


def read_action(text: str) -> Action:
    """Return the last action of a completion.

    A completion with several queries, or with a query and an answer, is not readable: the agent would answer without
    having seen the passages.
    """
    actions = [Action(match[1] or match[3], (match[2] or "").strip()) for match in _ACTION.finditer(text)]
    limits = {"search": MAX_QUERY, "answer": MAX_ANSWER}
    if len(actions) != 1 or (actions[0].kind != "done" and not 0 < len(actions[0].text) <= limits[actions[0].kind]):
        return Action("none")
    return actions[0]


@dataclasses.dataclass(frozen=True)
class Search(Task):
    """Questions for one agent with a search engine, or for a searcher and a reader.

    Attributes:
        dataset: "squad", "hotpotqa", "sample", or a .jsonl file with id, question and answers.
        passages: With your own dataset, a .jsonl file with title and text.
        form: "single" for one agent, "roles" for two.
        turns: Maximum number of completions in an episode.
        k: Number of passages that a search shows.
        passage_limit: Maximum number of characters of a passage.
        search_reward: Reward of the first query whose passages mention the answer.
        format_reward: Process reward for a readable action.
        continuation: Candidate that is kept if a turn has several: "best", "random" or "first".
    """

    dataset: str = "squad"
    passages: str = ""
    form: str = "roles"
    turns: int = 3
    k: int = 3
    passage_limit: int = 600
    search_reward: float = 0.2
    format_reward: float = 0.1
    continuation: str = "best"

    def __post_init__(self):
        ranges = dict(
            turns=(2, MAX_TURNS), k=(1, 20), passage_limit=(1, 100_000), search_reward=(0, 100), format_reward=(0, 100)
        )
        check_params(self, dict(form=FORMS, continuation=CONTINUATIONS), ranges)
        sources.check_name(self.dataset, self.passages)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return ("searcher", "reader") if self.form == "roles" else ("searcher",)

    def examples(self, part: str) -> Dataset:
        """Return the questions of a split."""
        check_split(part)
        return sources.load(self.dataset, self.passages).splits[part]

    def prepare(self) -> None:
        """Build the index."""
        sources.load(self.dataset, self.passages)

    def gold_reply(self, example: dict[str, Any]) -> str:
        """Return the first gold answer."""
        return f"<answer>{example['answers'][0]}</answer>"

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Search, then answer."""
        return await _Episode(self, ask, example).play()


class _Episode:
    def __init__(self, task: Search, ask: Ask, row: dict[str, Any]):
        self.task, self.ask, self.row = task, ask, row
        self.single = task.form == "single"
        self.collection = sources.load(task.dataset, task.passages)
        self.shown: list[str] = []  # passages so far
        self.searches, self.turns, self.mentioned = 0, 0, False

    async def play(self) -> Outcome:
        question = f"Question: {self.row['question']}"
        searcher = self.ask.chat(0, system=SINGLE if self.single else SEARCHER)
        last: list[Reply] = []
        text, action = question, Action("search")
        while self.turns < self.task.turns - 1 and action.kind in ("search", "none"):
            reply, action = await self._say(searcher, text, answers=self.single)
            last, text = [reply], self._result(action)
        if action.kind != "answer":
            chat = searcher if self.single else self.ask.chat(1, system=READER)
            passages = "\n\n".join(self.shown) or "No passages were found."
            final = f"{text}\n\nAnswer now." if self.single else f"{passages}\n\n{question}"
            reply, action = await self._say(chat, final, answers=True)
            last = [reply] if self.single else [*last, reply]
        answer = action.text if action.kind == "answer" else None
        quality = scoring.f1(answer, self.row["answers"]) if answer else 0.0
        if self.ask.candidates == 1:
            for reply in last:
                reply.reward(team=quality)
        metrics = {
            "exact": answer is not None and scoring.exact(answer, self.row["answers"]), "no_answer": answer is None,
            "searches": self.searches, "mentioned": self.mentioned, "turns": self.turns,
        }  # fmt: skip
        return Outcome(quality, metrics, "done" if answer else "no_answer", answer and scoring.normalize(answer))

    async def _say(self, chat: Chat, text: str, answers: bool) -> tuple[Reply, Action]:
        """Play one turn, and search if the kept completion does.

        `answers` says whether an answer is possible; otherwise it counts as unreadable, and so does `<done/>` for one
        agent and for the reader.
        """
        self.turns += 1
        reply = await chat.say(text, n=self.ask.candidates, label="answer" if answers and not self.single else "act")
        searches = self.turns < self.task.turns
        accepted = (("search",) if searches else ()) + (("answer",) if answers else ("done",))
        actions = [read_action(candidate.text) for candidate in reply.replies]
        actions = [action if action.kind in accepted else Action("none") for action in actions]
        for candidate, action in zip(reply.replies, actions, strict=True):
            self._reward(candidate, action)
        kept = keep_one(self.ask, chat, reply, self.task.continuation)
        action = actions[reply.replies.index(kept)]
        if action.kind == "search":
            self.searches += 1
            passages = self._search(action.text)
            self.mentioned |= scoring.mentions("\n".join(passages), self.row["answers"])
            self.shown += [passage for passage in passages if passage not in self.shown]
        return kept, action

    def _reward(self, reply: Reply, action: Action) -> None:
        reply.reward(process=self.task.format_reward * (action.kind != "none"))
        if action.kind == "answer":
            quality = scoring.f1(action.text, self.row["answers"])
            reply.judge(quality, action.text)
            if self.ask.candidates > 1:
                reply.reward(team=quality)
        elif action.kind == "search":
            useful = scoring.mentions("\n".join(self._search(action.text)), self.row["answers"])
            reply.judge(useful, reason=action.text)
            reply.reward(agent=self.task.search_reward * (useful and not self.mentioned))
        else:
            reply.judge(self.mentioned and action.kind == "done", reason=action.kind)

    def _search(self, query: str) -> list[str]:
        rows = self.collection.search(query, self.task.k)
        return [f"{row['title']}: {row['text'][: self.task.passage_limit]}" for row in rows]

    def _result(self, action: Action) -> str:
        if action.kind == "none":
            return "The completion must contain exactly one action in tags."
        passages = self._search(action.text)
        return "\n\n".join(passages) if passages else "No passages were found."
