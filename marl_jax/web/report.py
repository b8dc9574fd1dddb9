"""A self-contained HTML report of a run: evaluation, events, curves, games and config.

The page loads nothing and runs no script. Text from models is escaped. Drawings are embedded as images, in which
browsers run no scripts either.
"""

from __future__ import annotations

import base64
import html
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from marl_jax.evaluation import intervals
from marl_jax.running.events import fold_events
from marl_jax.web import completion_changes
from marl_jax.web.charts import Mark, Series, chart, label, legend

FIRST = ("success", "reward", "return", "draws", "game_length", "entropy", "kl", "explained_variance", "loss",
         "policy_loss", "value_loss", "grad_norm")  # fmt: skip
"""Prefixes of the curves shown at the top; the others are folded."""

EXACT = ("exploitability", "nash_conv", "payoff_seat_0", "payoff_seat_1")
"""Metrics of an evaluation that are computed exactly and have no interval."""

WORKFLOW = "workflow.svg"
"""File name of the drawing of a task's workflow in the folder of a run."""

GAMES_SHOWN = 6
MOVES_SHOWN = 100
EVENTS_SHOWN = 40
FAILED_SHOWN = 10  # maximum number of evaluations with failed episodes between the first and the last


def build(
    config: Mapping,
    metrics: Sequence[Mapping],
    evals: Sequence[Mapping],
    games: Sequence[Mapping],
    matches: Mapping,
    answers: completion_changes.Evaluations,
    first_stage: Sequence[str] = (),
    workflow: str = "",
    events: Sequence[Mapping] = (),
) -> str:
    """Return the report as one HTML string.

    Args:
        config: Config of the run.
        metrics: Rows of `metrics.jsonl`.
        evals: Rows of `eval.jsonl`.
        games: Rows of `games.jsonl`.
        matches: Results of `--mode=eval`, or {}.
        answers: Evaluations of tasks.
        first_stage: HTML lines about the stage before the run.
        workflow: SVG of the task's workflow, or "".
        events: Rows of `events.jsonl`.
    """
    model = config["model"].get("name", "?")
    title = text(f"{config.get('name') or 'run'}: {_environment(config).get('name', '?')} with {model}")
    style = Path(__file__).with_name("report.css").read_text()
    policy = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"
    body = "\n".join(
        [
            f"<h1>{title}</h1>",
            *_head(config, metrics, evals),
            *_evaluation(evals),
            *_workflow(workflow),
            *_everyone(matches),
            *completion_changes.sections(answers),
            *_events(events),
            *_curves(metrics, events),
            *first_stage,
            *_games(games, "Games" if _environment(config) is config["env"] else "Episodes"),
            "<h2>Config</h2>",
            f"<details><summary>all fields</summary><pre>{text(json.dumps(config, indent=2))}</pre></details>",
        ]
    )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{title}</title>\n<style>\n{style}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


def stage_section(
    config: Mapping, metrics: Sequence[Mapping], evals: Sequence[Mapping], events: Sequence[Mapping],
    earlier: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Render the stage before a run, folded, with its tables and curves.

    The stage before that one follows.
    """
    title = text(f"First stage: {config['algo'].get('name', '?')}")
    shown = [*_head(config, metrics, evals), *_evaluation(evals), *_events(events), *_curves(metrics, events)]
    return [f"<h2>{title}</h2>", "<details><summary>evaluation and curves</summary>", *shown, *earlier, "</details>"]


def text(value: object) -> str:
    """Escape a value for HTML."""
    return html.escape(str(value), quote=True)


def _head(config: Mapping, metrics: Sequence[Mapping], evals: Sequence[Mapping]) -> Iterator[str]:
    algo, seed = config["algo"].get("name", "?"), config.get("seed", "?")
    size = f"{config.get('rollout', {}).get('num_envs', '?')} parallel games"
    if _environment(config) is not config["env"]:
        size = f"{_environment(config).get('n_episodes', '?')} episodes per step"
    yield f'<p class="quiet">{text(algo)}, {text(size)}, seed {text(seed)}</p>'
    if not metrics:
        yield "<p>No step has been logged yet.</p>"
        return
    last = metrics[-1]
    shown = [("step", f"{last['step']} of {config.get('steps', '?')}"), ("time", _duration(metrics))]
    for row in {row["opponent"]: row for row in evals}.values():  # the newest row of each opponent
        for name in [name for name in row if f"{name}_low" in row and isinstance(row[name], int | float)][:1]:
            value = f"{100 * row[name]:.1f} %" if is_share(name) else label(row[name])
            shown.append((f"{name.replace('_', ' ')}, {row['opponent']}", value))
        if row.get("failed"):
            shown.append((f"episodes failed, {row['opponent']}", f"{row['failed']} of {row['games']}"))
    for name, words in (("games_per_s", "games/s"), ("episodes_per_s", "episodes/s"), ("tokens_per_s", "tokens/s")):
        values = sorted(row[name] for row in metrics if isinstance(row.get(name), int | float))
        if values:  # the median, because the first steps compile
            shown.append((words, label(values[len(values) // 2])))
    cards = (f'<div class="card"><span class="quiet">{text(n)}</span><b>{text(v)}</b></div>' for n, v in shown)
    yield f'<div class="figures">{"".join(cards)}</div>'


def _environment(config: Mapping) -> Mapping:
    """Return the config of the task, or that of the game."""
    task = config.get("task", {})
    return task if task.get("name") else config["env"]


def is_share(name: str) -> bool:
    """Return whether a metric is a fraction."""
    shares = ("rate", "accuracy", "precision")
    return any(word in name for word in shares) or name == "success" or "@" in name or name.startswith("right/")


def _duration(metrics: Sequence[Mapping]) -> str:
    """Return the total time between rows, without pauses between starts and clock jumps."""
    times = [row["time"] for row in metrics if row.get("time") is not None]
    gaps = sorted(b - a for a, b in zip(times, times[1:], strict=False) if b >= a)
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    seconds = sum(min(gap, 20 * usual) for gap in gaps)
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _evaluation(evals: Sequence[Mapping]) -> Iterator[str]:
    yield "<h2>Evaluation</h2>"
    if not evals:
        yield '<p class="quiet">This run has not been evaluated.</p>'
        return
    opponents = list(dict.fromkeys(str(row["opponent"]) for row in evals))
    metrics = [name for name in evals[-1] if f"{name}_low" in evals[-1] and f"{name}_high" in evals[-1]]
    metrics = list(dict.fromkeys([*metrics, *(n for row in evals for n in row if f"{n}_low" in row)]))
    failing = any(row.get("failed") for row in evals)
    yield '<div class="scroll"><table><tr><th>against</th><th>step</th><th>games</th>'
    yield "".join(f"<th>{text(name.replace('_', ' '))}</th>" for name in metrics)
    yield ("<th>failed episodes</th>" if failing else "") + "</tr>"
    for opponent in opponents:
        own = [row for row in evals if str(row["opponent"]) == opponent]
        failed = [row for row in own[1:-1] if row.get("failed")]
        for row in {r["step"]: r for r in (own[0], *spread(failed, FAILED_SHOWN), own[-1])}.values():
            yield f"<tr><td>{text(opponent)}</td><td>{text(row['step'])}</td><td>{text(row.get('games', ''))}</td>"
            yield "".join(f"<td>{_interval(row, name)}</td>" for name in metrics)
            yield (f"<td>{text(intervals.failures(row) or 'none')}</td>" if failing else "") + "</tr>"
    yield "</table></div>"
    if any(row.get("failed") and row["failed"] == row["games"] for row in evals):
        yield '<p class="bad">An evaluation in which every episode failed has no success rate.</p>'
    if not metrics:
        return
    yield f'<div style="margin-top:14px">{legend(opponents)}</div><div class="grid">'
    for name in metrics:
        lines = []
        for opponent in opponents:
            own = [row for row in evals if str(row["opponent"]) == opponent]
            x, y, low, high = (
                [row.get(key, math.nan) for row in own] for key in ("step", name, f"{name}_low", f"{name}_high")
            )
            lines.append(Series(opponent, x, y, low, high))
        yield f'<div class="card"><h3>{text(name.replace("_", " "))}</h3>{chart(lines)}</div>'
    yield "</div>"


def _workflow(svg: str) -> Iterator[str]:
    if svg:
        yield f'<h2>Workflow</h2>\n<div class="workflow">{_drawing(svg, "workflow")}</div>'


def _everyone(matches: Mapping) -> Iterator[str]:
    """Yield the table of a round robin, with or against each other."""
    if "matrix" not in matches:
        return
    names, elo, cross_play = matches["names"], matches.get("elo"), matches.get("cross_play")
    yield f"<h2>Round robin, from step {text(matches['step'])}</h2>"
    what = "score of row and column together" if elo is None else "points of row against column, ½ for a draw"
    yield f'<p class="quiet">Mean {what}.</p><div class="scroll"><table><tr><th></th>'
    yield "".join(f"<th>{text(name)}</th>" for name in [*names, *(["Elo"] if elo else [])]) + "</tr>"
    for i, name in enumerate(names):
        row = enumerate(matches["matrix"][i])
        cells = ["–" if value is None or (elo and i == j) else label(value) for j, value in row]
        cells += [f"{elo[name]:.0f}"] if elo else []
        yield f"<tr><td>{text(name)}</td>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
    yield "</table></div>"
    if cross_play:
        yield "<p>" + ", ".join(f"{text(k.replace('_', ' '))} {label(v)}" for k, v in cross_play.items()) + "</p>"


def _interval(row: Mapping, name: str) -> str:
    numbers = [x for key in (name, f"{name}_low", f"{name}_high") if isinstance(x := row.get(key), int | float)]
    if len(numbers) < 3:
        return "–"
    value, low, high = numbers
    if low == value == high and name in EXACT:
        return label(value)
    if is_share(name):
        return f'{100 * value:.1f} % <span class="quiet">[{100 * low:.1f}, {100 * high:.1f}]</span>'
    return f'{value:.3g} <span class="quiet">[{low:.3g}, {high:.3g}]</span>'


def _events(events: Sequence[Mapping]) -> Iterator[str]:
    """Yield a table of the events, in the colors of their marks in the curves."""
    folds = fold_events(events)
    if not folds:
        return
    yield "<h2>Events</h2>"
    if len(folds) > EVENTS_SHOWN:
        yield f'<p class="quiet">The last {EVENTS_SHOWN} of {len(folds)} events; events.jsonl has all of them.</p>'
    yield '<div class="scroll"><table class="events"><tr><th>step</th><th>event</th><th>message</th></tr>'
    for fold in folds[-EVENTS_SHOWN:]:
        yield f'<tr><td>{text(fold.steps)}</td><td><i class="{text(fold.kind)}"></i>{text(fold.kind)}</td>'
        yield f"<td>{text(fold.message)}</td></tr>"
    yield "</table></div>"


def _curves(metrics: Sequence[Mapping], events: Sequence[Mapping] = ()) -> Iterator[str]:
    marks = [Mark(e["kind"], e["step"], f"{e['kind']}, step {e['step']}: {e['message']}") for e in events]
    names = [n for n in dict.fromkeys(n for row in metrics for n in row) if n not in ("step", "time")]
    if not names:
        return
    constant = [name for name in names if len({row[name] for row in metrics if name in row}) == 1 and len(metrics) > 1]
    names = [name for name in names if name not in constant]
    order = {name: next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST)) for name in names}
    first = sorted((n for n in names if order[n] < len(FIRST)), key=order.__getitem__)
    rest = sorted(n for n in names if order[n] == len(FIRST))
    yield "<h2>Training</h2>"
    yield f'<div class="grid">{"".join(_curve(metrics, name, marks) for name in first)}</div>'
    if rest:
        yield f"<details{'' if first else ' open'}><summary>{len(rest)} more curves</summary>"
        yield f'<div class="grid">{"".join(_curve(metrics, name, marks) for name in rest)}</div></details>'
    if constant:
        values = [(name.replace("_", " "), next(row[name] for row in metrics if name in row)) for name in constant]
        shown = ", ".join(f"{name} {'–' if value is None else label(value)}" for name, value in values)
        yield f'<p class="quiet">Constant at every step: {text(shown)}.</p>'


def _curve(metrics: Sequence[Mapping], name: str, marks: Sequence[Mark]) -> str:
    own = [row for row in metrics if name in row]
    line = Series(name, [row["step"] for row in own], [row[name] for row in own], smooth=True)
    return f'<div class="card"><h3>{text(name.replace("_", " "))}</h3>{chart([line], marks)}</div>'


def _games(games: Sequence[Mapping], title: str) -> Iterator[str]:
    if not games:
        return
    shown = spread(games, GAMES_SHOWN)
    what = f"{len(shown)} of the {len(games)} recorded {title.lower()}, from the first to the last"
    yield f'<h2>{title}</h2>\n<p class="quiet">{what}.</p>'
    for number, game in enumerate(shown):
        players = ", ".join(f"player {seat} is {who}" for seat, who in enumerate(game["players"]))
        opened = " open" if number == len(shown) - 1 else ""
        yield f'<details class="card"{opened} style="margin-bottom:10px">'
        yield f"<summary><b>step {text(game['step'])}</b>, {text(players)}: {text(game['result'])}</summary>"
        yield f'<div class="strip">{"".join(_frames(game))}</div></details>'


def _frames(game: Mapping) -> Iterator[str]:
    if game.get("start_svg") or game.get("start_board"):
        yield f'<div class="frame">{_drawing(game.get("start_svg"), game.get("start_board"))}<p>start</p></div>'
    for turn, move in enumerate(game["moves"][:MOVES_SHOWN]):
        paid = " ".join(f"{r:+g}" for r in move["reward"]) if any(move["reward"]) else ""
        yield '<div class="frame">' + _drawing(move.get("svg"), move.get("board"))
        who, what = text(move["player"]), text(move["action"] or "answers")
        yield f'<p>{turn + 1}. player {who}: <b>{what}</b> <span class="quiet">{paid}</span></p>'
        if move.get("error"):
            yield f'<p class="bad">{text(move["error"])}</p>'
        yield f"<details><summary>prompt and completion</summary><pre>{text(move['prompt'])}</pre>"
        yield f"<pre>{text(move['answer'])}</pre></details></div>"
    if len(game["moves"]) > MOVES_SHOWN:
        yield f'<div class="frame quiet">and {len(game["moves"]) - MOVES_SHOWN} more moves</div>'


def _drawing(svg: str | None, board: str | None) -> str:
    if svg:
        data = base64.b64encode(svg.encode(errors="replace")).decode()
        return f'<img alt="{text(board or "position")}" src="data:image/svg+xml;base64,{data}">'
    return f"<pre>{text(board)}</pre>" if board else ""


def spread(items: Sequence, count: int) -> list:
    """Return at most `count` items, evenly spaced from the first to the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
