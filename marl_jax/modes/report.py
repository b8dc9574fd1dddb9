"""`--mode=report`: write the report of a run, or compare several runs.

python launch.py --mode=report --workdir=runs/mine                  # one run
python launch.py --mode=report --workdir=runs/mine-sweep            # a sweep, or any folder that contains runs
python launch.py --mode=report --workdir=runs/mine,runs/other       # several runs
"""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marl_jax.running import rows
from marl_jax.running.events import read_events
from marl_jax.running.metrics import read_json_lines, replace_text
from marl_jax.schema import saved, stages, sweeps
from marl_jax.web import comparison, completion_changes
from marl_jax.web.comparison import ComparedRun
from marl_jax.web.report import WORKFLOW, build, stage_section

log = logging.getLogger(__name__)


def main(workdir: Path) -> Path:
    """Write the report of a run, or the comparison of several.

    Args:
        workdir: Folder of a run, of a sweep or of several runs, or folders of runs separated by commas.
    """
    workdir = Path(workdir)
    if (workdir / "config.json").exists():
        return _write(workdir / "report.html", _report(workdir))
    if (workdir / sweeps.FILE).exists():
        return _compare_sweep(workdir)
    folders = saved.runs_in(str(workdir))
    if not folders:
        saved.load(workdir)  # raises the error for a folder that is not that of a run
    parent = Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
    return _write_comparison(parent, "comparison", [_compared(folder, parent) for folder in folders])


def _report(workdir: Path) -> str:
    """Return the report of one run."""
    return build(
        config=saved.load(workdir),
        metrics=read_json_lines(workdir / "metrics.jsonl"),
        evals=read_json_lines(workdir / "eval.jsonl"),
        events=read_events(workdir),
        games=read_json_lines(workdir / "games.jsonl"),
        matches=_matches(workdir / "evaluation.json"),
        answers=completion_changes.read(workdir),
        first_stage=_first_stage(workdir / stages.FOLDER),
        workflow=_read_workflow(workdir / WORKFLOW),
    )


def read_sweep(workdir: Path) -> list[dict[str, Any]]:
    """Return the members of a sweep, or none if `sweep.json` is missing or damaged."""
    try:
        members = json.loads((workdir / sweeps.FILE).read_text(encoding="utf-8"))["members"]
        return [m for m in members if isinstance(m["name"], str) and isinstance(m["values"], dict)]
    except FileNotFoundError:
        return []
    except (ValueError, RecursionError, LookupError, TypeError):
        log.warning("%s is damaged; members of earlier commands are left out", workdir / sweeps.FILE)
        return []


def _compare_sweep(workdir: Path) -> Path:
    """Write the comparison of a sweep, and its results to `sweep.json`."""
    members = read_sweep(workdir)
    runs = [_compared(workdir / m["name"], workdir, m) for m in members]
    fields = list(dict.fromkeys(field for m in members for field in m["values"]))
    path = _write_comparison(workdir, "report", runs, fields)
    groups = comparison.group(runs, fields)
    results = comparison.results(groups)
    listed = [{**m, "state": run.state} for m, run in zip(members, runs, strict=True)]
    summary = [
        {
            "values": g.values,
            "runs": [run.name for run in g.runs],
            "results": {name: values[i] for name, values in results.items()},
        }
        for i, g in enumerate(groups)
    ]
    result = {"members": listed, "interval": comparison.INTERVAL, "groups": summary}
    replace_text(workdir / sweeps.FILE, json.dumps(result, indent=2) + "\n")
    return path


def _write_comparison(folder: Path, name: str, runs: Sequence[ComparedRun], fields: list[str] | None = None) -> Path:
    """Write a comparison as HTML and Markdown."""
    groups, title = comparison.group(runs, fields), f"{folder.name}: comparison of {len(runs)} runs"
    table = comparison.markdown(title, groups)
    replace_text(folder / f"{name}.md", table)
    log.info("%s", "\n".join(line for line in table.splitlines()[4:] if line))
    return _write(folder / f"{name}.html", comparison.build(title, groups))


def _write(path: Path, page: str) -> Path:
    replace_text(path, page)
    log.info("report: %s", path)
    return path


def _compared(folder: Path, parent: Path, member: Mapping[str, Any] | None = None) -> ComparedRun:
    """Read a run; a member of a sweep that has not started has no files."""
    member = member or {"values": {}}
    begun = (folder / "config.json").exists()
    config = saved.load(folder) if begun else _nested(member["values"])
    metrics, evals = (read_json_lines(folder / name) for name in ("metrics.jsonl", "eval.jsonl"))
    solved = any(event["kind"] == "solved" for event in read_events(folder)) if begun else False
    finished = solved or bool(metrics) and metrics[-1]["step"] >= config.get("steps", 0)
    report = folder / "report.html"
    link = os.path.relpath(report, parent) if report.exists() else ""
    return ComparedRun(folder.name, config, metrics, evals, member.get("error", ""), finished, link)


def _nested(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return values by dotted names as nested groups."""
    config: dict[str, Any] = {}
    for name, value in values.items():
        *groups, key = name.split(".")
        functools.reduce(lambda here, group: here.setdefault(group, {}), groups, config)[key] = value
    return config


def _first_stage(workdir: Path) -> list[str]:
    """Return the collapsed section of the first stage, with its tables and curves."""
    if not (workdir / "config.json").is_file():
        return []
    config = saved.load(workdir)
    metrics, evals = (read_json_lines(workdir / name) for name in ("metrics.jsonl", "eval.jsonl"))
    earlier = _first_stage(workdir / stages.FOLDER)
    return stage_section(config, metrics, evals, read_events(workdir), earlier)


def _read_workflow(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""


def _matches(path: Path) -> Mapping:
    """Read the results of `--mode=eval`, or return {} if they are missing or damaged."""
    try:
        matches = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (ValueError, RecursionError):
        matches = None
    if matches is None or not rows.is_matches(matches):
        log.warning("%s is damaged and left out of the report; run --mode=eval to write it again", path)
        return {}
    return matches
