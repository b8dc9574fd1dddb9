"""`--mode=report`: write `report.html` from the files in the folder of a run."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path

from marl_jax.running import rows
from marl_jax.running.events import read_events
from marl_jax.running.metrics import read_json_lines, replace_text
from marl_jax.schema import saved, stages
from marl_jax.web import completion_changes
from marl_jax.web.report import WORKFLOW, build, stage_section

log = logging.getLogger(__name__)


def main(workdir: Path) -> Path:
    """Write `report.html` to the folder of a run."""
    workdir = Path(workdir)
    page = build(
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
    path = workdir / "report.html"
    replace_text(path, page)
    log.info("report: %s", path)
    return path


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
