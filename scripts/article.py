"""Write docs/article.md and docs/slides.html from result files: `python -m scripts.article`.

The templates are in scripts/templates. docs/results/preference has the results:

    searchers.jsonl          python -m benchmarks.searchers
    judge.json               python -m envs.tasks.judges … --report=judge.json
    overoptimization.json    python -m benchmarks.overoptimization, with its .svg
    preference.csv           python -m experiments.tables.preference; missing until it has been run on a GPU
    runs.json                command, hardware and date of each of them
"""

from __future__ import annotations

import csv
import html
import json
import pathlib
import string
from collections.abc import Sequence
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results" / "preference"
OPEN = "No model has been trained on a GPU for this comparison yet; scripts/gpu_preference.sh does so with three seeds."
SHARES = {
    "agreement": "agreement with the rule where it decides; ties count half",
    "ties": "ties",
    "flipped": "verdicts that changed with the order, which makes them ties",
    "failed": "replies without a verdict",
}
BIASES = {
    "position_bias": "position bias: probability of the text shown first, minus ½",
    "length_bias": "length bias: wins of the longer text beyond those by the rule",
    "self_preference": "self-preference: wins of the judge's own texts beyond those by the rule",
}
Table = tuple[Sequence[str], Sequence[Sequence[str]]]


def pages(results: pathlib.Path = RESULTS) -> dict[str, str]:
    """Return the text of both pages by file name."""
    runs = json.loads((results / "runs.json").read_text(encoding="utf-8"))
    searchers, judge, over = searcher_table(results), judge_table(results), over_table(results)
    table = preference_tables(results)
    measured = {name: f"Measured on {run['date']}, {run['hardware']}." for name, run in runs.items()}
    commands = "\n".join(run["command"] for run in runs.values())
    article = {
        "searchers": f"{markdown(*searchers)}\n\n{measured['searchers']}",
        "judge": f"{markdown(*judge)}\n\n{measured['judge']}",
        "reward_model": reward_words(results),
        "over": f"{markdown(*over)}\n\n{measured['overoptimization']}",
        "table": "\n\n".join(f"**{title}**\n\n{markdown(*one)}" for title, one in table.items()) or _code(OPEN),
        "commands": f"```bash\n{commands}\n```",
    }
    slides = {
        "searchers": f'{to_html(*searchers)}\n<p class="quiet">{html.escape(measured["searchers"])}</p>',
        "judge": f'{to_html(*judge)}\n<p class="quiet">{html.escape(measured["judge"])}</p>',
        "over": f"<p>Reward model on held-out pairs: {html.escape(reward_words(results))}.</p>\n{to_html(*over)}",
        "table": "\n".join(f"<h3>{title}</h3>\n{to_html(*one)}" for title, one in table.items()) or f"<p>{OPEN}</p>",
        "open": "" if table else f"<li>{OPEN}</li>",
    }
    templates = ROOT / "scripts" / "templates"
    return {
        name: string.Template((templates / name).read_text(encoding="utf-8")).substitute(values)
        for name, values in (("article.md", article), ("slides.html", slides))
    }


# ---------------------------------------------------------------------------------------------------------- results


def searcher_table(results: pathlib.Path) -> Table:
    """Return the share of questions whose answer is mentioned, by dataset and searcher."""
    lines = [json.loads(line) for line in (results / "searchers.jsonl").read_text(encoding="utf-8").splitlines()]
    names = list(lines[0]["searchers"])
    rows = [
        [f"{line['dataset']}, {line['searchers'][names[0]]['questions']:,} questions",
         *(_percent(line["searchers"][name]["mentioned"]) for name in names)]
        for line in lines
    ]  # fmt: skip
    return ["", *names], rows


def judge_table(results: pathlib.Path) -> Table:
    """Return the report of a judge."""
    content = json.loads((results / "judge.json").read_text(encoding="utf-8"))
    report = content["report"]
    rows = [[f"pairs: {content['texts']}", f"{report['pairs']:.0f}"]]
    rows += [[text, _percent(report[name])] for name, text in SHARES.items() if name in report]
    rows += [[text, f"{report[name]:+.2f}"] for name, text in BIASES.items() if name in report]
    return [f"judge: {content['name']}", ""], rows


def reward_words(results: pathlib.Path) -> str:
    """Describe the accuracy of the reward model."""
    one = _over(results)["accuracy"]
    interval = f"{_percent(one['accuracy_low'])} to {_percent(one['accuracy_high'])}"
    return f"it agrees with the rule in {_percent(one['accuracy'])} ({interval}) of {one['games']} pairs"


def over_table(results: pathlib.Path) -> Table:
    """Return the first, the highest and the last gold score of every policy."""
    rows = [
        [one["row"], str(one["updates"]), f"{one['first_gold']:.3f}", f"{one['gold']:.3f} at {one['kl']:.2f}",
         f"{one['last']:.3f} at {one['last_kl']:.2f}", f"{one['proxy_first']:.2f} and {one['proxy_last']:.2f}",
         f"begins at {one['kl']:.2f}" if one["begins"] else "did not begin"]
        for one in _over(results)["policies"]
    ]  # fmt: skip
    return ["policy", "updates", "gold at first", "highest gold (KL)", "last gold (KL)",
            "reward model, first and last", "over-optimization"], rows  # fmt: skip


def preference_tables(results: pathlib.Path) -> dict[str, Table]:
    """Return success, win rate and preference by environment; none before they are measured."""
    path = results / "preference.csv"
    if not path.exists():
        return {}
    tables: dict[str, Table] = {}
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            heads = ["", "seeds", "success, 95 % interval", "win rate", "preference"]
            value, low, high = (_percent(float(row[name])) for name in ("value", "low", "high"))
            more = [_percent(float(row[name])) if row[name] else "–" for name in ("win_rate", "preference")]
            _, rows = tables.setdefault(row["group"], (heads, []))
            tables[row["group"]] = heads, [*rows, [row["row"], row["seeds"], f"{value} [{low}, {high}]", *more]]
    return tables


def _over(results: pathlib.Path) -> Any:
    return json.loads((results / "overoptimization.json").read_text(encoding="utf-8"))


# ------------------------------------------------------------------------------------------------------------- text


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [f"| {' | '.join(cells)} |" for cells in (heads, ["---"] * len(heads), *rows)]
    return "\n".join(lines)


def to_html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return an HTML table."""
    lines = [
        f"<tr>{''.join(f'<{tag}>{html.escape(cell)}</{tag}>' for cell in cells)}</tr>"
        for tag, cells in (("th", heads), *(("td", row) for row in rows))
    ]
    return "\n".join(["<table>", *lines, "</table>"])


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _code(text: str) -> str:
    return text.replace("scripts/gpu_preference.sh", "`scripts/gpu_preference.sh`")


if __name__ == "__main__":
    for page, text in pages().items():
        (ROOT / "docs" / page).write_text(text, encoding="utf-8")
