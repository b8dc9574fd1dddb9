"""The `tools` task: questions that need tools.

In the form "single" one agent calls tools and answers in one conversation. In the form "roles" a caller calls tools, or
writes `<done/>`, and a reader answers from the calls and their results. Both forms have at most `turns` completions. A
completion with `<answer>text</answer>` and without calls ends the episode; the answer must be exact.

Rewards: a right answer earns a team reward of 1. The first calls whose results contain the answer earn an agent reward
of `call_reward`. A completion with only valid calls, or with a readable answer, earns a process reward of
`format_reward`. If the run samples K candidates (AT-GRPO), the calls of each of them run on a fork of the tools, each
is rewarded so, and one is continued. Otherwise the answer is the reward of the last completion of each role. Replies
are grouped by phase, which is known before they are sampled.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.data import DataError, Dataset, check_fields, from_list, make_splits, open_dataset
from envs.tasks.replies import Reply
from envs.tasks.revising import FORMS, MAX_TURNS
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split
from envs.tasks.tools import sample
from envs.tasks.tools.builtin import calculator, lookup_in
from envs.tasks.tools.functions import Functions
from envs.tasks.tools.limits import Limits, ToolUse
from envs.tasks.tools.mcp_server import SCOPES, McpServer
from envs.tasks.tools.python import Python
from envs.tasks.tools.tools import Combined, Tools

SAMPLE = "sample"
TOOLS = ("calculator", "lookup", "python")
MAX_ANSWER = 200
"""Maximum number of characters of an answer; a longer one is not read."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_WRITE = "write <answer>the answer</answer>, for a number with digits only."
SINGLE = f"You answer questions with tools. Look up facts and compute with them. When you know the answer, {_WRITE}"
CALLER = (
    "You call tools for a reader who answers a question from their results. Look up facts and compute with them. When "
    "the results are sufficient, write <done/>."
)
READER = f"You answer questions from the results of tools. Always {_WRITE}"
AGAIN = "Call a tool, or write the answer between <answer> and </answer>."
CALL_AGAIN = "Call a tool, or write <done/>."
NOW = "Answer now, without calling tools."


def read_answer(text: str) -> str | None:
    """Return the only answer in a completion, or None."""
    answers = [answer.strip() for answer in _ANSWER.findall(text)]
    return answers[0] if len(answers) == 1 and 0 < len(answers[0]) <= MAX_ANSWER else None


def is_right(answer: str, gold: str) -> bool:
    """Compare an answer with the gold one, as numbers if both are numbers."""
    one, other = _number(answer), _number(gold)
    if one is not None and other is not None:
        return one == other
    return " ".join(answer.casefold().split()) == " ".join(gold.casefold().split())


def _number(text: str) -> Fraction | None:
    text = text.strip()
    if re.fullmatch(r"[-+]?\d{1,3}(,\d{3})+", text):
        text = text.replace(",", "")
    return Fraction(text) if re.fullmatch(r"[-+]?\d+(\.\d+)?", text, re.ASCII) else None


@dataclasses.dataclass(frozen=True)
class ToolQuestions(Task):
    """Questions for one agent with tools, or for a caller and a reader.

    Attributes:
        dataset: "sample", or a .jsonl file with id, question and answer.
        tools: Built-in tools: "calculator", "lookup" (the table of the sample) and "python" (programs in the sandbox).
        server: Command line of an MCP server whose tools are added, or "". It is trusted.
        scope: "run" if the server has no state, "episode" for a process per episode.
        form: "single" for one agent, "roles" for two.
        turns: Maximum number of completions in an episode.
        calls: Maximum number of calls in an episode.
        per_turn: Maximum number of calls in a completion.
        result_tokens: Maximum number of tokens of a result.
        seconds: Time limit of a call.
        sandbox: Mode of the sandbox for "python": "auto" or "process".
        call_reward: Reward of the first calls whose results contain the answer.
        format_reward: Process reward for valid calls or a readable answer.
        continuation: Candidate that is kept if a turn has several: "best", "random" or "first".
    """

    dataset: str = SAMPLE
    tools: tuple[str, ...] = ("calculator", "lookup")
    server: str = ""
    scope: str = "run"
    form: str = "single"
    turns: int = 4
    calls: int = 8
    per_turn: int = 4
    result_tokens: int = 512
    seconds: float = 5.0
    sandbox: str = "auto"
    call_reward: float = 0.2
    format_reward: float = 0.1
    continuation: str = "best"

    def __post_init__(self):
        choices = dict(form=FORMS, continuation=CONTINUATIONS, scope=SCOPES, sandbox=("auto", "process"))
        ranges = dict(
            turns=(2, MAX_TURNS), calls=(1, 1000), per_turn=(1, 100), result_tokens=(1, 100_000), seconds=(0.1, 600),
            call_reward=(0, 100), format_reward=(0, 100),
        )  # fmt: skip
        check_params(self, choices, ranges)
        if unknown := [name for name in self.tools if name not in TOOLS]:
            raise ValueError(f"tools has {unknown[0]!r}, but must have only: {', '.join(TOOLS)}")
        if not self.tools and not self.server:
            raise ValueError("tools is (), but must have at least one tool without a server")
        if self.dataset != SAMPLE and not self.dataset.endswith((".jsonl", ".jsonl.gz", ".jsonl.xz")):
            raise ValueError(f"dataset is {self.dataset!r}, but must be {SAMPLE!r} or a .jsonl file")
        if self.dataset != SAMPLE and "lookup" in self.tools:
            raise ValueError(
                f"tools has 'lookup' with the dataset {self.dataset!r}, but its table is for the sample only"
            )

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return ("caller", "reader") if self.form == "roles" else ("caller",)

    @property
    def forks(self) -> bool:
        """Whether candidates are possible: an MCP server cannot be forked."""
        return not self.server

    @property
    def limits(self) -> Limits:
        """Limits of the calls."""
        return Limits(self.calls, self.per_turn, self.result_tokens, self.seconds)

    def examples(self, part: str) -> Dataset:
        """Return the questions of a split."""
        check_split(part)
        return _splits(self.dataset)[part]

    def prepare(self) -> None:
        """Start the sandbox and the MCP server if they are used."""
        if "python" in self.tools:
            shared_sandbox(self.sandbox)
        if self.server:
            self._server.prepare()

    def gold_reply(self, example: dict[str, Any]) -> str:
        """Return the gold answer."""
        return f"<answer>{example['answer']}</answer>"

    def episode_tools(self) -> Tools:
        """Return the tools of an episode."""
        functions = {"calculator": calculator, "lookup": _sample_lookup()}
        sources: list[Tools] = [
            Python(self.sandbox) if name == "python" else Functions(functions[name]) for name in self.tools
        ]
        return Combined(*sources, *([self._server.tools()] if self.server else []))

    async def play(self, ask: Ask, example: dict[str, Any]) -> Outcome:
        """Call tools, then answer."""
        async with ToolUse(ask, self.episode_tools(), self.limits) as use:
            return await _Episode(self, ask, example, use).play()

    @functools.cached_property
    def _server(self) -> McpServer:
        return McpServer(self.server, scope=self.scope, processes=4 if self.scope == "run" else 64)


@functools.cache
def _sample_lookup():
    return lookup_in(sample.collection()[0])


@functools.lru_cache(maxsize=4)
def _splits(dataset: str) -> Mapping[str, Dataset]:
    if dataset == SAMPLE:
        return {part: from_list(rows, f"sample ({part})") for part, rows in sample.collection()[1].items()}
    rows = open_dataset(dataset, "train")
    check_fields(rows, required=("id", "question", "answer"), filled=("id", "question"))
    for i in range(len(rows)):
        answer = rows.row(i)["answer"]
        if not isinstance(answer, str | int) or isinstance(answer, bool) or not str(answer).strip():
            raise DataError(f"{rows.where(i)}: answer is {answer!r}, but must be a string or an integer")
    return make_splits(rows, key="id")


@dataclasses.dataclass(frozen=True)
class _Turn:
    """A candidate of a turn.

    Attributes:
        kind: "calls", "answer", "done", or "none" if it is neither.
        use: The tools after its calls.
        results: Results of its calls.
        answer: Its answer, if there is one.
    """

    kind: str
    use: ToolUse
    results: Sequence[str] = ()
    answer: str | None = None


class _Episode:
    def __init__(self, task: ToolQuestions, ask: Ask, row: dict[str, Any], use: ToolUse):
        self.task, self.ask, self.row, self.use = task, ask, row, use
        self.gold = str(row["answer"])
        self.single = task.form == "single"
        self.shown: list[str] = []  # calls with their results
        self.turns, self.mentioned = 0, False

    async def play(self) -> Outcome:
        question = f"Question: {self.row['question']}"
        caller = self.ask.chat(0, system=SINGLE if self.single else CALLER, tools=self.use.tools)
        request, last, turn = question, [], _Turn("none", self.use)
        while self.turns < self.task.turns - (not self.single) and turn.kind in ("calls", "none"):
            reply, turn = await self._say(caller, request)
            last = [reply]
            request = turn.results or (AGAIN if self.single else CALL_AGAIN)
            if self.single and self.turns == self.task.turns - 1:
                request = [*turn.results[:-1], f"{turn.results[-1]}\n{NOW}"] if turn.results else NOW
        if not self.single:
            text = "\n".join(self.shown) or "No tool was called."
            reply, turn = await self._say(self.ask.chat(1, system=READER), f"{text}\n\n{question}", reads=True)
            last.append(reply)
        right = turn.answer is not None and is_right(turn.answer, self.gold)
        if self.ask.candidates == 1:
            for reply in last:
                reply.reward(team=float(right))
        metrics = {"no_answer": turn.answer is None, "turns": self.turns, "mentioned": self.mentioned}
        return Outcome(right, metrics | self.use.metrics(), "done" if turn.answer else "no_answer", turn.answer)

    async def _say(self, chat: Chat, request: str | Sequence[str], reads: bool = False) -> tuple[Reply, _Turn]:
        """Play one turn: run the calls of every candidate, and keep one."""
        self.turns += 1
        n, label = self.ask.candidates, "answer" if reads else "act"
        say = (
            chat.say(request, n=n, label=label) if isinstance(request, str) else chat.results(request, n=n, label=label)
        )
        reply = await say
        uses = [self.use] if n == 1 else [self.use.fork(k) for k in range(n)]
        before = self.use.counts["valid"]
        turns = await asyncio.gather(*(map(functools.partial(self._tried, chat, reads), reply.replies, uses)))
        for candidate, turn in zip(reply.replies, turns, strict=True):
            self._reward(candidate, turn, before)
        kept = keep_one(self.ask, chat, reply, self.task.continuation)
        turn = turns[reply.replies.index(kept)]
        self.use = turn.use
        if turn.kind == "calls":
            self.mentioned |= self._useful(turn)
            written = [f"{call.name}({call.arguments})" for call in kept.calls]
            self.shown += [f"{call} = {result}" for call, result in zip(written, turn.results, strict=False)]
        return kept, turn

    async def _tried(self, chat: Chat, reads: bool, reply: Reply, use: ToolUse) -> _Turn:
        """Run the calls of a candidate, or read its answer.

        Calls are not run if there is no turn left to read their results.
        """
        if reply.calls and self.turns < self.task.turns:
            return _Turn("calls", use, await use.run(chat, reply))
        if reply.calls:
            return _Turn("none", use)
        if self.single or reads:
            answer = read_answer(reply.text)
            return _Turn("none" if answer is None else "answer", use, answer=answer)
        return _Turn("done" if "<done/>" in reply.text else "none", use)

    def _reward(self, reply: Reply, turn: _Turn, before: int) -> None:
        fine = turn.kind in ("answer", "done")
        if turn.kind == "answer":
            right = turn.answer is not None and is_right(turn.answer, self.gold)
            reply.judge(right, turn.answer)
            if self.ask.candidates > 1:
                reply.reward(team=float(right))
        elif turn.kind == "calls":
            useful = self._useful(turn)
            reply.judge(useful, reason=", ".join(call.name for call in reply.calls))
            reply.reward(agent=self.task.call_reward * (useful and not self.mentioned))
            fine = turn.use.counts["valid"] - before == len(reply.calls)
        else:
            reply.judge(self.mentioned and turn.kind == "done", reason=turn.kind)
        reply.reward(process=self.task.format_reward * fine)

    def _useful(self, turn: _Turn) -> bool:
        """Return whether a result, which is no error, contains the answer."""
        word = re.compile(rf"(?<![\w.,-]){re.escape(self.gold)}(?![\w]|[.,]\d)")
        return any(word.search(result) for result in turn.results if not result.startswith("Error: "))
