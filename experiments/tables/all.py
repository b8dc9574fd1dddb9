"""All tables as one versioned suite, on one page.

    python -m experiments.tables.all --list                                      # tables, versions, settings and sizes
    python -m experiments.tables.all --steps=2 --problems=4                      # the embedded model
    python -m experiments.tables.all --model=qwen2.5-coder-1.5b --only=reasoning,debate --jobs=2            # one GPU
    python -m experiments.tables.all --model=qwen2.5-coder-1.5b --planning.only=team_plan_path --planning.runs=FOLDER
    python -m experiments.tables.all --dry_run --only=planning                   # commands and estimated tokens
    python -m experiments.tables.all --collect                                   # results of existing runs

Flags go to every table, `--TABLE.FLAG=VALUE` to one of them. Each table has its own folder in --workdir and resumes as
its own command does. A table that cannot run and a failed row are reported, and the others continue. The page is
written to tables.md and tables.html with all charts, and the versions and fingerprints of the settings to tables.json.
Figures of two suites are comparable where both are equal.
"""

from __future__ import annotations

import argparse
import html
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from experiments.tables import (
    cooperative,
    debate,
    planning,
    poker,
    preference,
    reasoning,
    runner,
    teams,
    verified,
    verifier,
)  # fmt: skip
from experiments.tables.runner import Session

VERSION = 1
HEAD = """<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>All tables</title>
<style>body{font-family:sans-serif;margin:2em} table{border-collapse:collapse}
td,th{border:1px solid #ccc;padding:.3em .6em}</style>"""
MODULES = (planning, reasoning, debate, teams, preference, verifier, verified, poker, cooperative)
TABLES = {module.TABLE.name: module.TABLE for module in MODULES}


def main(argv: Sequence[str] | None = None) -> int:
    """Run or collect the selected tables and write the page.

    Returns:
        Exit status: 1 if a table or a run failed, 130 if the command was stopped.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--workdir", default="", help="Output folder; runs/tables[-MODEL] by default")
    parser.add_argument("--only", default="", help="Tables, separated by commas")
    parser.add_argument("--model", default="", help="Model variant; tiny by default")
    parser.add_argument("--list", action="store_true", help="List the tables with versions, settings and sizes")
    flags, rest = parser.parse_known_args(argv)
    names = flags.only.split(",") if flags.only else list(TABLES)
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"--only has {unknown[0]!r}, but must be one of: {', '.join(TABLES)}")
    folder = Path(flags.workdir or f"runs/tables{f'-{flags.model}' if flags.model else ''}")
    rest += [f"--model={flags.model}"] if flags.model else []
    statuses: dict[str, int] = {}
    for name in names:
        own = [flag for flag in rest if not flag.startswith(tuple(f"--{other}." for other in TABLES))]
        own += [f"--{flag.removeprefix(f'--{name}.')}" for flag in rest if flag.startswith(f"--{name}.")]
        own = [f"--workdir={folder / name}", *own]
        try:
            if flags.list:
                print(_listed(Session(TABLES[name], [*own, "--dry_run"])))
                continue
            print(f"== {name}", file=sys.stderr)
            statuses[name] = runner.main(TABLES[name], own)
        except SystemExit as error:  # wrong flags, missing data, or nothing to collect
            print(f"{name}: not made: {error}", file=sys.stderr)
            statuses[name] = 1
        if statuses[name] == 130:
            break
    if statuses and "--dry_run" not in rest:
        write(folder, names)
    return max(statuses.values(), default=0)


def _listed(session: Session) -> str:
    runs = session.plan()
    missing = sum(not session.done(run) for run in runs)
    groups = ", ".join(dict.fromkeys(group for group, _ in session.wanted))
    return (
        f"{session.table.name}, version {session.table.version}, settings {session.fingerprint()}: {groups}; "
        f"{len(session.wanted)} rows, {missing} of {len(runs)} runs missing, at most "
        f"{sum(run.tokens for run in runs):,.0f} generated tokens"
    )


def write(folder: Path, names: Sequence[str]) -> None:
    """Write the page of all tables that have results."""
    made = {name: folder / name / f"{name}.md" for name in names if (folder / name / f"{name}.md").exists()}
    last = re.compile(r"^Table (\w+), version (\d+), settings (\w+)\.$", re.MULTILINE)
    texts = {name: path.read_text(encoding="utf-8") for name, path in made.items()}
    settings = {
        name: {"version": int(m[2]), "settings": m[3]} for name, text in texts.items() if (m := last.search(text))
    }
    markdown, page = [f"# All tables, suite version {VERSION}", ""], [f"<h1>All tables, suite version {VERSION}</h1>"]
    for name, text in texts.items():
        markdown += [text, f"![{name}]({name}/{name}.svg)", ""]
        page += [*to_html(text), made[name].with_suffix(".svg").read_text(encoding="utf-8")]
    for name in [name for name in names if name not in made]:
        markdown.append(f"{name}: no results.")
        page.append(f"<p>{name}: no results.</p>")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tables.md").write_text("\n".join(markdown) + "\n", encoding="utf-8")
    (folder / "tables.html").write_text("\n".join([HEAD, *page, "</html>"]) + "\n", encoding="utf-8")
    (folder / "tables.json").write_text(
        json.dumps({"suite": VERSION, "tables": settings}, indent=1) + "\n", encoding="utf-8"
    )


def to_html(markdown: str) -> Iterator[str]:
    """Yield the lines of a table's Markdown as HTML: headings, tables, lists and text."""
    rows = 0
    for line in markdown.splitlines():
        text = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html.escape(line)).replace("&lt;br&gt;", "<br>")
        if line.startswith("|"):
            if not re.fullmatch(r"[| -]+", line):
                tag = "td" if rows else "th"
                cells = "".join(f"<{tag}>{cell.strip()}</{tag}>" for cell in text.strip("|").split("|"))
                yield f"{'' if rows else '<table>'}<tr>{cells}</tr>"
                rows += 1
            continue
        if rows:
            yield "</table>"
            rows = 0
        heading = re.match(r"(#+) (.*)", text)
        if heading:
            yield f"<h{len(heading[1]) + 1}>{heading[2]}</h{len(heading[1]) + 1}>"
        elif text:
            yield f"<li>{text[2:]}</li>" if text.startswith("- ") else f"<p>{text}</p>"
    if rows:
        yield "</table>"


if __name__ == "__main__":
    sys.exit(main())
