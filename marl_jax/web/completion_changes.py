"""Report section on the examples that changed between the first and last evaluation."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marl_jax.evaluation.task_scores import FOLDER, by_example
from marl_jax.running import rows
from marl_jax.running.metrics import read_json_lines

SHOWN = 8
LONGEST = 2000  # maximum number of characters shown of a text

Evaluations = Mapping[str, Sequence[Sequence[Mapping]]]
"""Episodes of the first and the last evaluation, which may be the same, by split."""


def read(workdir: Path) -> Evaluations:
    """Return the first and last evaluation of each split in the folder of a run."""
    files: dict[str, list[Path]] = {}
    for path in sorted((workdir / FOLDER).glob("*_*.jsonl")):
        files.setdefault(path.stem.rpartition("_")[0], []).append(path)

    def episodes(path: Path) -> list[dict]:
        return [row for row in read_json_lines(path) if rows.is_episode(row)]

    return {part: [episodes(path) for path in (paths[0], paths[-1])] for part, paths in files.items()}


def sections(evaluations: Evaluations) -> Iterator[str]:
    """Yield HTML for every split that was evaluated at two steps.

    Splits with an evaluation in which all episodes failed are left out.
    """
    for part, (first, last) in evaluations.items():
        measured = all(any(not episode.get("failed") for episode in episodes) for episodes in (first, last))
        if measured and first[0]["step"] != last[0]["step"]:
            yield from _section(part, first, last)


def changed(first: Sequence[Mapping], last: Sequence[Mapping]) -> tuple[list[tuple], list[tuple], int]:
    """Return (wrong then right, right then wrong, number of compared examples).

    The first two are lists of pairs of samples, before and after. An example is right if at least half of its samples
    are. Examples that differ between the two evaluations are left out.
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
    yield f"<h2>Changes on {html.escape(part)}, {steps}</h2>"
    now = f"{len(better)} changed from wrong to right and {len(worse)} from right to wrong"
    yield f"<p>Of {total} examples, {now}.</p>"
    for before, after in better[:SHOWN]:
        yield '<details class="card" style="margin-bottom:10px">'
        yield f"<summary><b>example {int(after[0]['example'])}</b>: {_one_line(after[0])}</summary>"
        for step, samples in ((first[0]["step"], before), (last[0]["step"], after)):
            shown = max(samples, key=lambda s: s["success"]) if samples is after else samples[0]
            yield f"<h3>step {int(step)}</h3>" + "".join(_turns(shown))
        yield "</details>"
    if len(better) > SHOWN:
        yield f'<p class="quiet">and {len(better) - SHOWN} more that are now right; {FOLDER}/ has all of them.</p>'


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
