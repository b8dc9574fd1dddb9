"""A self-contained HTML report of a run: evaluation, events, curves, games and config.

The page loads nothing and runs no script. Text from models is escaped. Drawings are embedded as images, in which
browsers run no scripts either.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterator, Mapping, Sequence

from marl_jax.evaluation import intervals
from marl_jax.running.events import fold_events
from marl_jax.running.metric_help import EVALUATION
from marl_jax.web import completion_changes
from marl_jax.web.charts import Mark, Series, chart, label, legend
from marl_jax.web.markup import chart_card, figure, interval, metric_title, page, table, text, tiles
from marl_jax.web.ranking import elo_text

FIRST = ("success", "reward", "return", "draws", "game_length", "entropy", "kl", "explained_variance", "loss",
         "policy_loss", "value_loss", "grad_norm")  # fmt: skip
"""Prefixes of the curves shown at the top; the others are folded."""

ALONE = "self"
"""Opponent in the rows of evaluations in which the team plays alone."""

PHASES = tuple(f"seconds/{phase}" for phase in ("reshard", "rollout", "update", "evaluation", "logs"))
"""Metrics that add up to the time of a step."""

WORKFLOW = "workflow.svg"
PNG = "data:image/png;base64,"
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
    is_task = _environment(config) is not config["env"]
    return page(
        f"{config.get('name') or 'run'}: {_environment(config).get('name', '?')} with {model}",
        [
            *_head(config, metrics, evals),
            *_evaluation(evals, is_task),
            *_workflow(workflow),
            *_everyone(matches),
            *completion_changes.sections(answers),
            *_events(events),
            *_curves(metrics, events),
            *_over_kl(metrics),
            *first_stage,
            *_games(games, "Episodes" if is_task else "Games"),
            "<h2>Config</h2>",
            f"<details><summary>all fields</summary><pre>{text(json.dumps(config, indent=2))}</pre></details>",
        ],
    )


def stage_section(
    config: Mapping, metrics: Sequence[Mapping], evals: Sequence[Mapping], events: Sequence[Mapping],
    earlier: Sequence[str] = (),
) -> list[str]:  # fmt: skip
    """Render the stage before a run, folded, with its tables and curves.

    The stage before that one follows.
    """
    title, is_task = text(f"First stage: {config['algo'].get('name', '?')}"), _environment(config) is not config["env"]
    shown = [*_head(config, metrics, evals), *_evaluation(evals, is_task), *_events(events), *_curves(metrics, events)]
    return [f"<h2>{title}</h2>", "<details><summary>evaluation and curves</summary>", *shown, *earlier, "</details>"]


def _head(config: Mapping, metrics: Sequence[Mapping], evals: Sequence[Mapping]) -> Iterator[str]:
    algo, seed = config["algo"].get("name", "?"), config.get("seed", "?")
    size = f"{config.get('rollout', {}).get('num_envs', '?')} parallel games"
    if _environment(config) is not config["env"]:
        size = f"{_environment(config).get('n_episodes', '?')} episodes per step"
    yield f'<p class="quiet">{text(algo)}, {text(size)}, seed {text(seed)}</p>'
    if not metrics:
        yield "<p>No step has been logged yet.</p>"
        return
    last, is_task = metrics[-1], _environment(config) is not config["env"]
    shown = [("step", f"{last['step']} of {config.get('steps', '?')}"), ("time", _duration(metrics))]
    for row in {row["opponent"]: row for row in evals}.values():  # the newest row of each opponent
        who = "" if is_task and row["opponent"] == ALONE else f", {row['opponent']}"
        for name in [name for name in row if f"{name}_low" in row and isinstance(row[name], int | float)][:1]:
            shown.append((f"{name.replace('_', ' ')}{who}", figure(row[name], name)))
        if row.get("failed"):
            shown.append((f"episodes failed{who}", f"{row['failed']} of {row['games']}"))
    for name, words in (("games_per_s", "games/s"), ("episodes_per_s", "episodes/s"), ("tokens_per_s", "tokens/s")):
        values = sorted(row[name] for row in metrics[1:] or metrics if isinstance(row.get(name), int | float))
        if values:  # the median, without the first step if there are others, because it compiles
            shown.append((words if len(metrics) > 1 else f"{words}, with compilation", label(values[len(values) // 2])))
    yield tiles(shown)


def _environment(config: Mapping) -> Mapping:
    """Return the config of the task, or that of the game."""
    task = config.get("task", {})
    return task if task.get("name") else config["env"]


def _duration(metrics: Sequence[Mapping]) -> str:
    """Return the time of all steps, without pauses between starts and clock jumps.

    The rows have the time at the end of each step, so the first step counts with the seconds of its phases.
    """
    times = [row["time"] for row in metrics if row.get("time") is not None]
    gaps = sorted(b - a for a, b in zip(times, times[1:], strict=False) if b >= a)
    usual = gaps[len(gaps) // 2] if gaps else 0.0
    phases = [value for name, value in metrics[0].items() if name in PHASES and isinstance(value, int | float)]
    seconds = sum(phases) + sum(min(gap, 20 * usual) for gap in gaps)
    if seconds >= 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 60:.1f} min" if seconds >= 60 else f"{seconds:.0f} s"


def _evaluation(evals: Sequence[Mapping], is_task: bool) -> Iterator[str]:
    """Yield the table and curves of the evaluations.

    A task has episodes and no opponent, unless a baseline was evaluated, too.
    """
    yield "<h2>Evaluation</h2>"
    if not evals:
        yield '<p class="quiet">This run has not been evaluated.</p>'
        return
    opponents = list(dict.fromkeys(str(row["opponent"]) for row in evals))
    alone = is_task and opponents == [ALONE]
    metrics = [name for name in evals[-1] if f"{name}_low" in evals[-1] and f"{name}_high" in evals[-1]]
    metrics = list(dict.fromkeys([*metrics, *(n for row in evals for n in row if f"{n}_low" in row)]))
    failing = any(row.get("failed") for row in evals)
    head = [*([] if alone else ["policy" if is_task else "against"]), "step", "episodes" if is_task else "games"]
    rows = []
    for opponent in opponents:
        own = [row for row in evals if str(row["opponent"]) == opponent]
        failed = [row for row in own[1:-1] if row.get("failed")]
        for row in {r["step"]: r for r in (own[0], *spread(failed, FAILED_SHOWN), own[-1])}.values():
            cells = [*([] if alone else [_player(opponent, is_task)]), text(row["step"]), text(row.get("games", ""))]
            cells += [interval(row, name) for name in metrics]
            rows.append([*cells, *([text(intervals.failures(row) or "none")] if failing else [])])
    failures = ["failed episodes"] if failing else []
    yield table([*head, *(metric_title(name, EVALUATION) for name in metrics), *failures], rows)
    if any(row.get("failed") and row["failed"] == row["games"] for row in evals):
        yield '<p class="bad">An evaluation in which every episode failed has no success rate.</p>'
    if not metrics:
        return
    yield "" if alone else f'<div class="above">{legend([_player(name, is_task) for name in opponents])}</div>'
    yield '<div class="grid">'
    for name in metrics:
        lines = []
        for opponent in opponents:
            own = [row for row in evals if str(row["opponent"]) == opponent]
            x, y, low, high = (
                [row.get(key, math.nan) for row in own] for key in ("step", name, f"{name}_low", f"{name}_high")
            )
            lines.append(Series(name if alone else opponent, x, y, low, high))
        yield chart_card(name, chart(lines), EVALUATION)
    yield "</div>"


def _player(opponent: str, is_task: bool) -> str:
    """Return the first cell of a row of an evaluation."""
    return text("the trained policies" if is_task and opponent == ALONE else opponent)


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
    yield f'<p class="quiet">Mean {what}.</p>'
    rows = []
    for i, name in enumerate(names):
        values = enumerate(matches["matrix"][i])
        cells = ["–" if value is None or (elo and i == j) else label(value) for j, value in values]
        nash = [label(matches["nash_average"][name]), label(matches["nash_share"][name])] if elo else []
        rows.append([text(name), *cells, *([elo_text(matches, name)] if elo else []), *nash])
    yield table(["", *map(text, names), *(["Elo", "Nash average", "Nash share"] if elo else [])], rows)
    if cross_play:
        yield "<p>" + ", ".join(f"{text(k.replace('_', ' '))} {label(v)}" for k, v in cross_play.items()) + "</p>"


def _events(events: Sequence[Mapping]) -> Iterator[str]:
    """Yield a table of the events, in the colors of their marks in the curves."""
    folds = fold_events(events)
    if not folds:
        return
    yield "<h2>Events</h2>"
    if len(folds) > EVENTS_SHOWN:
        yield f'<p class="quiet">The last {EVENTS_SHOWN} of {len(folds)} events; events.jsonl has all of them.</p>'
    kind = '<i class="{0}"></i>{0}'
    rows = ([text(f.steps), kind.format(text(f.kind)), text(f.message)] for f in folds[-EVENTS_SHOWN:])
    yield table(["step", "event", "message"], rows, kind="events")


def _curves(metrics: Sequence[Mapping], events: Sequence[Mapping] = ()) -> Iterator[str]:
    marks = [Mark(e["kind"], e["step"], f"{e['kind']}, step {e['step']}: {e['message']}") for e in events]
    names = [n for n in dict.fromkeys(n for row in metrics for n in row) if n not in ("step", "time")]
    if not names:
        return
    constant = [name for name in names if len({row[name] for row in metrics if name in row}) == 1 and len(metrics) > 1]
    names = [name for name in names if name not in constant]
    first, rest = ordered(names)
    yield "<h2>Training</h2>"
    yield f'<div class="grid">{"".join(_curve(metrics, name, marks) for name in first)}</div>'
    if rest:
        yield f"<details{'' if first else ' open'}><summary>{len(rest)} more curves</summary>"
        yield f'<div class="grid">{"".join(_curve(metrics, name, marks) for name in rest)}</div></details>'
    if constant:
        values = [(name.replace("_", " "), next(row[name] for row in metrics if name in row)) for name in constant]
        shown = ", ".join(f"{name} {'–' if value is None else label(value)}" for name, value in values)
        yield f'<p class="quiet">Constant at every step: {text(shown)}.</p>'


def _over_kl(metrics: Sequence[Mapping]) -> Iterator[str]:
    """Draw true scores and rewards against the KL, which shows where a reward is over-optimized.

    A true score that falls while the reward still rises is over-optimization.
    """
    names = dict.fromkeys(name for row in metrics for name in row)
    divergence = next((name for name in ("kl", "completion_kl") if name in names), None)
    if divergence is None:
        return
    scores = [name for name in names if name in ("success", "reward/team") or name.startswith("task/")]
    cards = []
    for name in scores:
        points = sorted(
            (row[divergence], row[name])
            for row in metrics
            if all(isinstance(row.get(one), int | float) and math.isfinite(row[one]) for one in (divergence, name))
        )
        line = Series(name, [x for x, _ in points], [y for _, y in points], smooth=True)
        cards.append(chart_card(name, chart([line], axis="KL"), title=f"{name.replace('_', ' ')} by KL"))
    if cards:
        yield "<h2>Scores against the KL from the initial policy</h2>"
        yield f'<div class="grid">{"".join(cards)}</div>'


def ordered(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the metrics to show at the top, the most important first, and the others."""
    order = {name: next((i for i, start in enumerate(FIRST) if name.startswith(start)), len(FIRST)) for name in names}
    first = sorted((name for name in names if order[name] < len(FIRST)), key=order.__getitem__)
    return first, sorted(name for name in names if order[name] == len(FIRST))


def _curve(metrics: Sequence[Mapping], name: str, marks: Sequence[Mark]) -> str:
    own = [row for row in metrics if name in row]
    line = Series(name, [row["step"] for row in own], [row[name] for row in own], smooth=True)
    return chart_card(name, chart([line], marks))


def _games(games: Sequence[Mapping], title: str) -> Iterator[str]:
    if not games:
        return
    shown = spread(games, GAMES_SHOWN)
    what = f"{len(shown)} of the {len(games)} recorded {title.lower()}, from the first to the last"
    yield f'<h2>{title}</h2>\n<p class="quiet">{what}.</p>'
    for number, game in enumerate(shown):
        named = enumerate(game["players"])
        players = [
            who if who.startswith(seat_name(game, seat)) else f"{seat_name(game, seat)} is {who}" for seat, who in named
        ]
        opened = " open" if number == len(shown) - 1 else ""
        yield f'<details class="card game"{opened}>'
        yield f"<summary><b>step {text(game['step'])}</b>, {text(', '.join(players))}: {text(game['result'])}</summary>"
        yield f'<div class="strip" tabindex="0">{"".join(_frames(game))}</div></details>'


def seat_name(game: Mapping, seat: int) -> str:
    """Return the role of a seat in a recorded game, or its number."""
    roles = game.get("roles") or ()
    return str(roles[seat]).replace("_", " ") if seat < len(roles) else f"player {seat}"


def _frames(game: Mapping) -> Iterator[str]:
    if game.get("start_svg") or game.get("start_board"):
        yield f'<div class="frame">{_drawing(game.get("start_svg"), game.get("start_board"))}<p>start</p></div>'
    for turn, move in enumerate(game["moves"][:MOVES_SHOWN]):
        gained = [f"{seat_name(game, seat)} {reward:+.3g}" for seat, reward in enumerate(move["reward"])]
        yield '<div class="frame">' + _drawing(move.get("svg"), move.get("board"))
        who, what = text(seat_name(game, move["player"])), text(move["action"] or "answers")
        yield f"<p>{turn + 1}. {who}: <b>{what}</b></p>"
        if any(move["reward"]):
            yield f'<p class="quiet">reward: {text(", ".join(gained))}</p>'
        if move.get("error"):
            yield f'<p class="bad">{text(move["error"])}</p>'
        yield "<details><summary>prompt and completion</summary>" + _picture(move.get("image"))
        yield f"<pre>{text(move['prompt'])}</pre>"
        yield f"<pre>{text(move['answer'])}</pre></details></div>"
    if len(game["moves"]) > MOVES_SHOWN:
        yield f'<div class="frame quiet">and {len(game["moves"]) - MOVES_SHOWN} more moves</div>'


def _drawing(svg: str | None, board: str | None) -> str:
    if svg:
        data = base64.b64encode(svg.encode(errors="replace")).decode()
        return f'<img alt="{text(board or "position")}" src="data:image/svg+xml;base64,{data}">'
    return f"<pre>{text(board)}</pre>" if board else ""


def _picture(uri: str | None) -> str:
    """Return the picture that a model saw."""
    return f'<img alt="picture in the prompt" src="{text(uri)}">' if uri and uri.startswith(PNG) else ""


def spread(items: Sequence, count: int) -> list:
    """Return at most `count` items, evenly spaced from the first to the last."""
    if len(items) <= count:
        return list(items)
    return [items[round(i * (len(items) - 1) / (count - 1))] for i in range(count)]
