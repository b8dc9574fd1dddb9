"""The example of docs/tasks.md does what the page says."""

import contextlib
import io
import re
from pathlib import Path


def test_the_example_prints_what_the_page_shows():
    page = (Path(__file__).parents[3] / "docs" / "tasks.md").read_text()
    code, shown = (re.search(rf"```{kind}\n(.*?)```", page, re.DOTALL)[1] for kind in ("python", "text"))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(code, "docs/tasks.md", "exec"), {"__name__": "example"})
    assert printed.getvalue() == shown
