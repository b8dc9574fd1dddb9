"""Search for a workflow by edits that are scored on validation questions, as in AFlow.

Round 1 is the workflow with one step. Every later round chooses a parent among round 1 and the best rounds so far,
edits it, and scores the result on `search.examples` validation questions. An editor is the policy itself, a remote
model, or "random". Edits that are not JSON, or whose graph is invalid or known, cost a round but no episodes.

The first editor has `search.rounds` rounds. The others continue until they have generated as many tokens, edits
included. Then the best workflow of each editor is tested once, and compared with the one step alone and with the vote
of N samples of the one step (maj@N). N is chosen so that a question costs about as many generated tokens as with the
workflow.

Every round and test is a line of search.jsonl. Running the same command again continues after the last line.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import math
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from envs.tasks.data import fingerprint_of, order
from envs.tasks.design import prompts
from envs.tasks.design.execution import Execution
from envs.tasks.task import Ask, Outcome, Task
from envs.tasks.workflow import edits
from envs.tasks.workflow.designs import SINGLE, DesignError, canonical, read_json
from marl_jax.errors import RunError
from marl_jax.evaluation import intervals, task_scores
from marl_jax.rollouts.host.episodes import Job
from marl_jax.running.metrics import read_json_lines, replace_text
from marl_jax.serving.remote import is_remote
from marl_jax.serving.remote_speaker import remote_speaker
from marl_jax.setup.tasks import TaskSetup

log = logging.getLogger(__name__)

FILE, TABLE = "search.jsonl", "search.md"
POLICY, RANDOM = "policy", "random"
TOP = 4
"""Number of best rounds among which a parent is chosen, in addition to round 1."""
UNIFORM, SHARPNESS = 0.3, 0.2
"""Weight of the uniform distribution over parents, and factor of the scores in percent in the softmax."""
MOST_ROUNDS = 10
"""Maximum number of rounds of later editors, as a multiple of `search.rounds`."""
MOST_VOTES = 32
SHOWN_FAILURES, SHOWN_EDITS = 3, 5
ONE_STEP = "one step"

Record = dict[str, Any]
"""A line of search.jsonl."""


@dataclasses.dataclass(frozen=True)
class Played:
    """Episodes of a workflow.

    Attributes:
        groups: For every question, its episodes as {"success", "answer", "failed"}.
        tokens: Number of generated tokens.
    """

    groups: Sequence[Sequence[Mapping[str, Any]]]
    tokens: int

    @property
    def scores(self) -> list[float]:
        """Success on each question: of one sample, or of the most common answer."""
        return [task_scores.majority(group) if len(group) > 1 else group[0]["success"] for group in self.groups]


class Player(Protocol):
    """Plays workflows and writes edits."""

    def play(self, workflow: Mapping[str, Any], part: str, samples: int) -> Played:
        """Play a workflow on the questions of a split."""
        ...

    def question(self, number: int) -> str:
        """Return a validation question."""
        ...

    def edit(self, editor: str, prompt: str, number: int) -> tuple[str, int]:
        """Return a completion of an editor, and its number of tokens."""
        ...


# ------------------------------------------------------------------------------------------------------------- rounds


def parent_weights(scores: Sequence[float]) -> list[float]:
    """Return the probability of each candidate parent, given their scores from 0 to 1."""
    highest = max(scores)
    weights = [math.exp(SHARPNESS * 100 * (score - highest)) for score in scores]
    return [UNIFORM / len(scores) + (1 - UNIFORM) * weight / sum(weights) for weight in weights]


def choose_parent(rounds: Sequence[Record], rng: random.Random) -> Record:
    """Choose a parent among round 1 and the best of the scored rounds."""
    first, *others = [one for one in rounds if one["score"] is not None]
    some = [first, *sorted(others, key=lambda one: -one["score"])[:TOP]]
    return rng.choices(some, parent_weights([one["score"] for one in some]))[0]


def winner(rounds: Sequence[Record]) -> Record:
    """Return the round with the highest score, and among equals the fewest tokens."""
    return min((one for one in rounds if one["score"] is not None), key=lambda one: (-one["score"], one["tokens"]))


class Search:
    """A search, which continues after the records in its file.

    Args:
        player: Plays workflows and writes edits.
        path: File of the records.
        identity: Settings that must match to continue.
        editors: Names of the editors.
        rounds: Number of rounds of the first editor, round 1 included.
        seed: Random seed.
    """

    def __init__(self, player: Player, path: Path, identity: str, editors: Sequence[str], rounds: int, seed: int):
        self.player, self.path, self.editors, self.rounds, self.seed = player, path, editors, rounds, seed
        self.records: list[Record] = read_json_lines(path)
        if path.exists() and not path.read_bytes().endswith(b"\n"):  # the last line was cut off
            replace_text(path, "".join(json.dumps(one) + "\n" for one in self.records))
        if not self.records:
            self._write({"kind": "start", "identity": identity})
        elif self.records[0].get("identity") != identity:
            raise RunError(f"{path} is from a search with other settings. Choose another --workdir or delete it")

    def run(self) -> list[Record]:
        """Search with every editor, test, and return all records."""
        first = next((one for one in self.records if one["kind"] == "round"), None)
        if first is None:
            first = self._write(self._score({"kind": "round", "editor": "", "round": 1, "workflow": SINGLE}))
        budget = None
        for editor in self.editors:
            tokens = self._search(editor, first, budget)
            budget = tokens if budget is None else budget
        self._test_all()
        return self.records

    def of(self, editor: str) -> list[Record]:
        """Return the rounds of an editor, beginning with round 1."""
        return [one for one in self.records if one["kind"] == "round" and one["editor"] in ("", editor)]

    def spent(self, editor: str) -> int:
        """Return the number of generated tokens of an editor's rounds."""
        return sum(one["tokens"] + one.get("edit_tokens", 0) for one in self.of(editor))

    def _search(self, editor: str, first: Record, budget: int | None) -> int:
        while True:
            rounds = self.of(editor)
            number = len(rounds) + 1
            if number > self.rounds * (1 if budget is None else MOST_ROUNDS):
                break
            if budget is not None and self.spent(editor) >= budget:
                break
            record = self._write(self._round(editor, rounds, number))
            result = record["problem"] or f"success {record['score']:.3f}"
            log.info(
                "%s, round %d of %s: %s", editor, number, self.rounds if budget is None else "equal tokens", result
            )
        return self.spent(editor)

    def _round(self, editor: str, rounds: Sequence[Record], number: int) -> Record:
        rng = random.Random(f"workflow search {self.seed} {editor} {number}")
        parent = choose_parent(rounds, rng)
        record: Record = {"kind": "round", "editor": editor, "round": number, "parent": parent["round"], "edit": None,
                          "edit_tokens": 0, "workflow": None, "score": None, "tokens": 0, "problem": ""}  # fmt: skip
        try:
            if editor == RANDOM:
                record["edit"] = edits.random_edit(parent["workflow"], rng)
            else:
                text, record["edit_tokens"] = self.player.edit(editor, self._prompt(parent, rounds), number)
                record["edit"] = read_json(text)
            record["workflow"] = edits.apply(parent["workflow"], record["edit"])
        except DesignError as error:
            return record | {"problem": f"{error.reason}: {error}"}
        known = {canonical(one["workflow"]): one["round"] for one in rounds if one["workflow"] is not None}
        if (same := known.get(canonical(record["workflow"]))) is not None:
            return record | {"workflow": None, "problem": f"duplicate: round {same} has the same workflow"}
        return self._score(record)

    def _prompt(self, parent: Record, rounds: Sequence[Record]) -> str:
        children = [one for one in rounds if one.get("parent") == parent["round"] and one["edit"] is not None]
        tried = [
            f"{json.dumps(one['edit'])[:300]}: "
            + ("rejected" if one["score"] is None else f"{one['score']:.0%} of the questions right")
            for one in children[-SHOWN_EDITS:]
        ]
        failures = [self.player.question(number) for number in parent["wrong"][:SHOWN_FAILURES]]
        return prompts.edit(parent["workflow"], parent["score"], failures, tried)

    def _score(self, record: Record) -> Record:
        played = self.player.play(record["workflow"], "validation", 1)
        scores = played.scores
        wrong = [number for number, score in enumerate(scores) if score < 1]
        result = {"score": sum(scores) / len(scores), "wrong": wrong, "tokens": played.tokens, "problem": ""}
        return record | result

    # -------------------------------------------------------------------------------------------------------- tests

    def _test_all(self) -> None:
        """Test the one step, every winner, and the vote at the winner's tokens."""
        one_step = self._test(ONE_STEP, SINGLE, 1)
        for editor in self.editors:
            best = winner(self.of(editor))
            tested = self._test(f"search by {editor}", best["workflow"], 1, best)
            votes = round(tested["tokens"] / max(one_step["tokens"], 1))
            self._test(f"maj@N for {editor}", SINGLE, min(max(votes, 1), MOST_VOTES))

    def _test(self, name: str, workflow: Mapping[str, Any], samples: int, best: Record | None = None) -> Record:
        tests = [one for one in self.records if one["kind"] == "test"]
        if (done := next((one for one in tests if one["name"] == name), None)) is not None:
            return done
        key = [canonical(workflow), samples]
        same = next((one for one in tests if one["key"] == key), None)
        if same is None:
            played = self.player.play(workflow, "test", samples)
            same = {"scores": played.scores, "tokens": played.tokens}
        return self._write({
            "kind": "test", "name": name, "key": key, "workflow": workflow, "samples": samples,
            "round": None if best is None else best["round"], "scores": same["scores"], "tokens": same["tokens"],
        })  # fmt: skip

    def _write(self, record: Record) -> Record:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")
        self.records.append(record)
        return record


def table(search: Search, confidence: float) -> str:
    """Return the results of a finished search as Markdown."""
    tests = {one["name"]: one for one in search.records if one["kind"] == "test"}
    heads = ["method", "validation", "test", "difference from maj@N", "from random edits", "tokens per question",
             "search tokens", "rounds", "scored"]  # fmt: skip
    lines = [heads, ["---"] * len(heads)]
    lines.append([ONE_STEP, _percent(search.of("")[0]["score"]), *_tested(tests[ONE_STEP], confidence), "0", "1", "1"])
    for editor in search.editors:
        ours, votes, rounds = tests[f"search by {editor}"], tests[f"maj@N for {editor}"], search.of(editor)
        share, *_, tokens = _tested(ours, confidence)
        chance = tests.get(f"search by {RANDOM}") if editor != RANDOM else None
        points = [_difference(ours, votes, confidence), _difference(ours, chance, confidence) if chance else ""]
        scored = sum(one["score"] is not None for one in rounds)
        best = f"{_percent(winner(rounds)['score'])} (round {ours['round']})"
        cost = [tokens, f"{search.spent(editor):,}", str(len(rounds)), str(scored)]
        lines.append([f"search by {editor}", best, share, *points, *cost])
        lines.append([f"maj@{votes['samples']} for {editor}", "", *_tested(votes, confidence), "0", "", ""])
    n = len(tests[ONE_STEP]["scores"])
    note = f"Success in percent on {n} test questions with {confidence:.0%} intervals; differences are paired."
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + f"\n\n{note}\n"


def _difference(one: Record, other: Record, confidence: float) -> str:
    """Return the difference of two tests in percentage points, with its interval."""
    gain = intervals.paired(one["scores"], other["scores"], confidence)
    return f"{100 * gain.value:+.1f} [{100 * gain.low:+.1f}, {100 * gain.high:+.1f}]"


def _tested(test: Record, confidence: float) -> tuple[str, str, str, str]:
    share = intervals.wilson(sum(test["scores"]), len(test["scores"]), confidence)
    text = f"{100 * share.value:.1f} [{100 * share.low:.1f}, {100 * share.high:.1f}]"
    return text, "", "", f"{test['tokens'] / len(test['scores']):.0f}"


def _percent(score: float) -> str:
    return f"{100 * score:.1f}"


# ------------------------------------------------------------------------------------------------------------- models


class Editing(Task):
    """A message to an editor, whose reply is the answer of the episode."""

    roles = ("editor",)

    async def play(self, ask: Ask, example: str) -> Outcome:
        """Send the message."""
        reply = await ask.chat(0, system=prompts.SYSTEM).say(example)
        return Outcome(0.0, answer=reply.text)


class PolicyPlayer:
    """Plays workflows with the policy of a run.

    Args:
        setup: Parts of the run.
        weights: Weights of its models.
    """

    def __init__(self, setup: TaskSetup, weights: dict):
        self._setup, self._config = setup, setup.config
        assert isinstance(setup.task, Execution)
        self._task = setup.task
        setup.sampler.publish(weights, version=0)
        numbers = {"validation": self._config.search.examples, "test": self._config.eval.games}
        self._examples = {part: self._chosen(part, most) for part, most in numbers.items()}

    def _chosen(self, part: str, most: int) -> list[Any]:
        examples = self._task.examples(part)
        return [examples[order(self._config.eval.seed, 0, i, len(examples))] for i in range(min(most, len(examples)))]

    @property
    def fingerprint(self) -> str:
        """Hash of the questions."""
        return fingerprint_of([*self._examples["validation"], *self._examples["test"]])

    def question(self, number: int) -> str:
        """Return a validation question."""
        return self._examples["validation"][number]["question"]

    def play(self, workflow: Mapping[str, Any], part: str, samples: int) -> Played:
        """Play a workflow on the questions of a split."""
        task = dataclasses.replace(self._task, workflow=workflow)
        jobs = [Job(0, i, k, row) for i, row in enumerate(self._examples[part]) for k in range(samples)]
        records, tokens = self._played(task, jobs)
        return Played([records[i : i + samples] for i in range(0, len(records), samples)], tokens)

    def edit(self, editor: str, prompt: str, number: int) -> tuple[str, int]:
        """Return a completion of the policy or of a remote model."""
        changes: dict[str, Any] = {}
        if is_remote(editor):
            sampling = self._setup.speakers(self._config.eval.temperature)[0].sampling
            changes = dict(
                speakers=[remote_speaker(editor, sampling, self._setup.remote_models)], seating=lambda seat, turn: 0
            )
        [record], tokens = self._played(Editing(), [Job(number, 0, 0, prompt)], **changes)
        return record["answer"] or "", tokens

    def _played(self, task: Task, jobs: Sequence[Job], **changes: Any) -> tuple[list[Record], int]:
        c = self._config.eval
        with contextlib.closing(self._setup.runner(c.temperature, c.seed, task=task, **changes)) as runner:
            episodes = runner.play(jobs)
        records = [
            {"success": float(one.outcome.success), "answer": one.outcome.answer, "failed": None}
            if one.outcome is not None
            else {"success": 0.0, "answer": None, "failed": one.failed}
            for one in episodes
        ]
        said = [answer for one in episodes for chat in one.chats for turn in chat.said for answer in turn.answers]
        return records, sum(len(answer.tokens) for answer in said)


def search(setup: TaskSetup, weights: dict, workdir: Path) -> str:
    """Search, test, and write and return the table."""
    c = setup.config
    player = PolicyPlayer(setup, weights)
    identity = canonical([
        player.fingerprint, list(c.search.editors), c.search.rounds, c.eval.seed, c.eval.temperature,
        c.task.max_new_tokens, c.model.name, c.model.weights, c.model.init_from,
    ])  # fmt: skip
    running = Search(player, workdir / FILE, identity, c.search.editors, c.search.rounds, c.eval.seed)
    running.run()
    text = table(running, c.eval.confidence)
    replace_text(workdir / TABLE, text)
    return text
