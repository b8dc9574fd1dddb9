"""Update the tables of a Markdown page from results of `--mode=compile`.

    python -m marl_jax.dryrun.tables docs/scale.md docs/scale.json

A table is delimited by `<!-- memory -->` (or `traffic`, `cost_model`, `check`) and `<!-- end -->`. A JSON file contains
one result or a list of results.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

from marl_jax.dryrun import cost_model, render
from marl_jax.errors import RunError

SIZES = (16, 64, 256, 1024)


def fill(page: str, results: list[dict]) -> str:
    """Return the page with updated tables."""
    whole = [r for r in results if len(r["programs"]) == 2 and r["topology"].partition(":")[0] in cost_model.CHIPS]
    made = {
        "memory": render.markdown(results),
        "traffic": render.traffic_table(results),
        "cost_model": cost_model.table(whole, SIZES),
        "check": cost_model.check_table(whole),
    }
    for name, table in made.items():
        pattern = rf"(<!-- {name} -->\n).*?(<!-- end -->)"
        page, count = re.subn(pattern, lambda m, table=table: m[1] + table + m[2], page, flags=re.DOTALL)
        if count != 1:
            raise RunError(f"the page has {count} tables <!-- {name} --> … <!-- end -->, but must have one")
    return page


def load(paths: list[str]) -> list[dict]:
    """Load results from files with one or several each."""
    contents = [json.loads(Path(path).read_text()) for path in paths]
    return [result for each in contents for result in (each if isinstance(each, list) else [each])]


if __name__ == "__main__":
    page = Path(sys.argv[1])
    page.write_text(fill(page.read_text(), load(sys.argv[2:])))
