"""`--mode=label`: sample completions from the untrained model and label them.

    python launch.py --config=experiments/verifier.py --mode=label --workdir=runs/labels

    <workdir>/labelled/train.jsonl, validation.jsonl, test.jsonl   see `marl_jax/rollouts/labelled.py`
    <workdir>/labelled/summary.json                                number of correct and wrong completions

Samples `algo.samples` completions for each of the first `algo.questions` questions of the train split, in the order of
the seed, and of `algo.held_out` questions of the other splits. The verifier of the task labels them. Questions are
written as they are finished, and running the same command again continues after the last one.

The model should be the one that the trained verifier will judge, because it learns little from completions of another
model. `model.init_from` loads a trained one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import logging
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
from ml_collections import ConfigDict

from envs.tasks.data import fingerprint_of, order
from envs.tasks.task import SPLITS
from marl_jax import setup as setups
from marl_jax.algorithms import verifier
from marl_jax.errors import ConfigError, RunError
from marl_jax.rollouts import labelled
from marl_jax.rollouts.host.episodes import Episode, EpisodeRunner, Job
from marl_jax.rollouts.labelled import LabelledCompletion, Question
from marl_jax.running.console import Progress
from marl_jax.running.metrics import replace_text, write_config
from marl_jax.running.private_files import make_private_folder
from marl_jax.running.processes import workdir_lock
from marl_jax.running.signals import GracefulStop
from marl_jax.setup.run_fingerprint import model_fingerprint
from marl_jax.setup.tasks import TaskSetup
from marl_jax.setup.weights import untuned_weights

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path) -> dict[str, Any]:
    """Label the remaining questions of every split and return a summary."""
    setup = setups.make(config, workdir=workdir)
    if not isinstance(setup, TaskSetup) or "balanced" not in setup.algorithm.verifies:
        raise ConfigError([f"config.algo.name is {config.algo.name!r}, but must be 'verifier' for --mode=label"])
    folder = workdir / verifier.FOLDER
    with workdir_lock(workdir), GracefulStop() as stop, contextlib.closing(setup), jax.set_mesh(setup.mesh):
        make_private_folder(folder)
        if not (workdir / "config.json").exists():
            write_config(config, workdir, done=False)
        with Labeller(setup) as labeller:
            for part in SPLITS:
                labeller.label(folder / f"{part}.jsonl", part, stop)
        if stop.asked:
            log.info("stopped by %s; run the same command to continue", stop.name)
            return {}
    return summarise(config, folder)


def summarise(config: ConfigDict, folder: Path) -> dict[str, Any]:
    """Count correct and balanced completions of every split, and write the counts to a file."""
    summary = {}
    for part in SPLITS:
        questions = labelled.read_file(folder / f"{part}.jsonl")[1]
        sampled = [answer for question in questions for answer in question.answers if not answer.gold]
        chosen = verifier.choose(config, questions)
        summary[part] = {
            "sampled": len(sampled),
            "failed": sum(question.failed for question in questions),
            "sampled_right": sum(answer.right for answer in sampled),
            **chosen.counts,
        }
        words = ", ".join(f"{name.replace('_', ' ')} {count}" for name, count in summary[part].items())
        log.info("%s, with algo.balanced %s: %s", part, config.algo.balanced, words)
    replace_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    return summary


class Labeller:
    """Samples and labels completions; starts the sampler when it is first needed."""

    def __init__(self, setup: TaskSetup):
        self._setup, self._config = setup, setup.config
        self._runner: EpisodeRunner | None = None
        self._gold_runner: EpisodeRunner | None = None
        self._known = KnownAnswers()

    def __enter__(self) -> Labeller:
        return self

    def __exit__(self, *_) -> None:
        for runner in (self._runner, self._gold_runner):
            if runner is not None:
                runner.close()

    def label(self, path: Path, part: str, stop: GracefulStop) -> None:
        """Label the questions of a split that its file does not have yet."""
        algo = self._config.algo
        examples = self._setup.task.examples(part)
        wanted = min(verifier.wanted(self._config, part), len(examples))
        if not wanted:
            raise RunError(f"the task {self._config.task.name} has no examples in the split {part!r}")
        header = self._header(part, wanted, examples)
        done = _begin(path, header)
        if done >= wanted:
            log.info("%s: all %d questions are labelled", path, wanted)
            return
        log.info("%s: %d of %d questions are labelled", path, done, wanted)
        self._start()
        step = max(1, self._config.task.n_episodes // algo.samples)
        progress = Progress(wanted, done, self._config.log.progress)
        right = total = 0
        with path.open("ab") as file:
            while done < wanted and not stop.asked:
                numbers = range(done, min(done + step, wanted))
                places = [order(self._config.seed, 0, i, len(examples)) for i in numbers]
                questions = self._questions(part, places, examples)
                file.write("".join(question.to_json() + "\n" for question in questions).encode())
                file.flush()
                os.fsync(file.fileno())
                done = numbers.stop
                labels = [answer.right for question in questions for answer in question.answers if not answer.gold]
                right, total = right + sum(labels), total + len(labels)
                progress.update(done, {"right": right / max(total, 1), "answers": total})
        progress.close()

    def _start(self) -> None:
        if self._runner is not None:
            return
        setup, c = self._setup, self._config
        self._runner = setup.runner(c.rollout.temperature, c.seed)
        setup.sampler.publish(untuned_weights(setup), version=0)
        speakers = [dataclasses.replace(speaker, sampler=self._known) for speaker in self._runner.speakers]
        self._gold_runner = setup.runner(c.rollout.temperature, c.seed, speakers=speakers)

    def _questions(self, part: str, places: Sequence[int], examples: Sequence[Any]) -> list[Question]:
        """Sample and label completions of some questions.

        Questions with fewer correct than wrong completions also get their gold solution.
        """
        step, samples = SPLITS.index(part), self._config.algo.samples
        assert self._runner is not None and self._gold_runner is not None
        jobs = [Job(step, place, k, examples[place]) for place in places for k in range(samples)]
        episodes = self._runner.play(jobs)
        if all(episode.failed for episode in episodes):
            raise RunError(f"all {len(episodes)} episodes failed; the first: {episodes[0].error}")
        questions = []
        for i, place in enumerate(places):
            own = [e for e in episodes[i * samples : (i + 1) * samples] if not e.failed]
            answers = tuple(LabelledCompletion(_reply(e), _succeeded(e)) for e in own)
            messages = _messages(own[0]) if own else ()
            questions.append(Question(f"{part}/{place}", messages, answers, failed=samples - len(own)))
            self._learn_gold(own, examples[place])
        few = [i for i, q in enumerate(questions) if 2 * sum(a.right for a in q.answers) < len(q.answers)]
        played = self._gold_runner.play([Job(step, places[i], -1, examples[places[i]]) for i in few])
        for i, episode in zip(few, played, strict=True):
            if not episode.failed and _succeeded(episode):
                gold = LabelledCompletion(_reply(episode), True, gold=True)
                questions[i] = dataclasses.replace(questions[i], answers=(*questions[i].answers, gold))
        self._known.forget()
        return questions

    def _learn_gold(self, episodes: Sequence[Episode], example: Any) -> None:
        gold = self._setup.task.gold_reply(example)
        if gold and episodes:
            said = episodes[0].chats[0].said[0]
            tokenizer = said.speaker.tokenizer
            ids = tokenizer.encode(tokenizer.strip_special(gold))
            self._known.learn(episodes[0].chats[0].tokens[: said.start], [*ids, tokenizer.stop_ids[0]])

    def _header(self, part: str, wanted: int, examples: Sequence[Any]) -> dict[str, Any]:
        c, backbone = self._config, self._setup.backbone
        model = model_fingerprint(backbone)
        return json.loads(json.dumps({
            "format": labelled.FORMAT, "part": part, "questions": wanted, "samples": c.algo.samples, "seed": c.seed,
            "temperature": c.rollout.temperature, "max_new_tokens": c.task.max_new_tokens,
            "task": c.task.name, "params": c.task.params.to_dict(), "data": fingerprint_of(examples)[:16],
            "model": {name: model[name] for name in ("model", "shape", "weights", "tokenizer", "init_from")},
        }))  # fmt: skip


class KnownAnswers:
    """A sampler that returns known completions by prompt, or empty ones for unknown prompts."""

    def __init__(self):
        self._answers: dict[tuple[int, ...], list[int]] = {}

    def learn(self, prompt: Sequence[int], answer: Sequence[int]) -> None:
        """Set the completion of a prompt."""
        self._answers[tuple(prompt)] = list(answer)

    def forget(self) -> None:
        """Forget all completions."""
        self._answers.clear()

    async def answer(self, ids, sampling, policy=0, n=1, deadline=None) -> list[KnownAnswer]:
        """Return n copies of the known completion; see `Sampler.answer`."""
        tokens = self._answers.get(tuple(ids), [])
        zeros = np.zeros((len(tokens),), np.float32)
        known = KnownAnswer(np.asarray(tokens, np.int32), zeros, "stop" if tokens else "unknown", zeros.astype(int))
        return [known] * n

    def set_weights(self, policy: int, weights: Any, version: int) -> None:
        """Ignore new weights."""


@dataclasses.dataclass(frozen=True)
class KnownAnswer:
    """A completion of `KnownAnswers`."""

    tokens: np.ndarray
    logps: np.ndarray
    finish: str
    versions: np.ndarray


def _begin(path: Path, header: dict[str, Any]) -> int:
    """Prepare a file for more questions and return how many it has.

    An incomplete last line is removed.

    Raises:
        RunError: If the file was labelled with other settings.
    """
    if not path.exists() or b"\n" not in path.read_bytes():
        replace_text(path, json.dumps(header, ensure_ascii=False) + "\n", private=True)
        return 0
    before, questions = labelled.read_file(path)
    for name in before.keys() | header.keys():
        if name != "questions" and before.get(name) != header.get(name):
            raise RunError(
                f"{path} was labelled with {name} {before.get(name)!r}, but it is {header.get(name)!r} now; use "
                "another --workdir or remove the file"
            )
    header = {**header, "questions": max(header["questions"], before["questions"])}
    data = path.read_bytes()
    whole = data[: data.rfind(b"\n") + 1]
    if whole != data or before != header:
        rest = whole.partition(b"\n")[2].decode()
        replace_text(path, json.dumps(header, ensure_ascii=False) + "\n" + rest, private=True)
    return len(questions)


def _succeeded(episode: Episode) -> bool:
    return episode.outcome is not None and episode.outcome.success >= 1


def _reply(episode: Episode) -> str:
    """Return the completion of an episode, which must have a single turn."""
    if len(episode.chats) != 1 or len(episode.chats[0].said) != 1:
        raise RunError(
            "an episode of the task has several turns or conversations, but a verifier judges one completion; change "
            "task.params so that each question is answered once"
        )
    said = episode.chats[0].said[0]
    return said.replies[said.kept or 0].text


def _messages(episode: Episode) -> tuple[dict[str, str], ...]:
    """Return the messages of the prompt."""
    chat = episode.chats[0]
    system = [] if chat.system is None else [{"role": "system", "content": chat.system}]
    return (*system, {"role": "user", "content": chat.said[0].text})
