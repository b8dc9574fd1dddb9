"""What has changed between the first and the last evaluation of a task: examples that were wrong and are right now."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marl_jax.evaluation.task_scores import FOLDER, by_example
from marl_jax.running import rows
from marl_jax.running.metrics import read_json_lines

SHOWN = 8
LONGEST = 2000  # characters of a text that are shown

Evaluations = Mapping[str, Sequence[Sequence[Mapping]]]
"""From a part to the episodes of its first and its last evaluation; of one, where there is no other."""


def read(workdir: Path) -> Evaluations:
    """The evaluations in a run's folder."""
    files: dict[str, list[Path]] = {}
    for path in sorted((workdir / FOLDER).glob("*_*.jsonl")):
        files.setdefault(path.stem.rpartition("_")[0], []).append(path)

    def episodes(path: Path) -> list[dict]:
        return [row for row in read_json_lines(path) if rows.is_episode(row)]

    return {part: [episodes(path) for path in (found[0], found[-1])] for part, found in files.items()}


def sections(evaluations: Evaluations) -> Iterator[str]:
    """Yield HTML for every part that was evaluated at two steps and whose episodes did not all fail."""
    for part, (first, last) in evaluations.items():
        measured = all(any(not episode.get("failed") for episode in episodes) for episodes in (first, last))
        if measured and first[0]["step"] != last[0]["step"]:
            yield from _section(part, first, last)


def changed(first: Sequence[Mapping], last: Sequence[Mapping]) -> tuple[list[tuple], list[tuple], int]:
    """(wrong and then right, right and then wrong, how many were compared); pairs of lists of samples.

    An example is right if half of its samples or more are. Those that are not the same in both are left out.
    """
    before, after = by_example(first), by_example(last)
    pairs = [(before[i], after[i]) for i in before if i in after and before[i][0].get("id") == after[i][0].get("id")]
    better = [pair for pair in pairs if not _right(pair[0]) and _right(pair[1])]
    worse = [pair for pair in pairs if _right(pair[0]) and not _right(pair[1])]
    return better, worse, len(pairs)


def _right(samples: Sequence[Mapping]) -> bool:
    return sum(sample["success"] for sample in samples) >= len(samples) / 2


def _section(part: str, first: Sequence[Mapping], last: Sequence[Mapping]) -> Iterator[str]:
    better, worse, total = changed(first, last)
    steps = f"step {first[0]['step']} to step {last[0]['step']}"
    yield f"<h2>What has changed on {html.escape(part)}, {steps}</h2>"
    now = f"{len(better)} were wrong and are right now, {len(worse)} were right and are wrong now"
    yield f"<p>Of {total} examples, {now}.</p>"
    for before, after in better[:SHOWN]:
        yield '<details class="card" style="margin-bottom:10px">'
        yield f"<summary><b>example {int(after[0]['example'])}</b>: {_one_line(after[0])}</summary>"
        for step, samples in ((first[0]["step"], before), (last[0]["step"], after)):
            shown = max(samples, key=lambda s: s["success"]) if samples is after else samples[0]
            yield f"<h3>step {int(step)}</h3>" + "".join(_turns(shown))
        yield "</details>"
    if len(better) > SHOWN:
        yield f'<p class="quiet">and {len(better) - SHOWN} more that are right now; all are in {FOLDER}/.</p>'


def _one_line(sample: Mapping) -> str:
    prompt = sample["turns"][0]["prompt"] if sample["turns"] else ""
    return html.escape(" ".join(prompt.split())[-160:])


def _turns(sample: Mapping) -> Iterator[str]:
    if sample["failed"]:
        yield f'<p class="bad">{html.escape(str(sample["failed"]))}: {html.escape(str(sample["error"]))}</p>'
    for turn in sample["turns"]:
        verdict = turn["verdict"] or {}
        said = f"right: {verdict['right']:g}" if verdict else ""
        said += f", {verdict['reason']}" if verdict.get("reason") else ""
        yield f"<p>{html.escape(turn['role'])}, turn {int(turn['turn']) + 1} "
        yield f'<span class="quiet">{html.escape(said)}</span></p>'
        yield f"<details><summary>prompt</summary><pre>{html.escape(turn['prompt'][-LONGEST:])}</pre></details>"
        yield f"<pre>{html.escape(turn['text'][:LONGEST])}</pre>"
