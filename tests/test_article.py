"""Article and slides: written from result files, current, and without the table before it is measured."""

import json
import re
import shutil
from html.parser import HTMLParser

import pytest

from scripts import article

pytestmark = pytest.mark.quick


def test_the_article_and_the_slides_are_current():
    for name, text in article.pages().items():
        path = article.ROOT / "docs" / name
        assert path.read_text() == text, f"docs/{name} is out of date: run `python -m scripts.article`"
        assert "$" not in re.sub(r"```.*?```", "", text, flags=re.DOTALL), "a field of the template is left"


def test_every_figure_follows_the_result_files(tmp_path):
    results = tmp_path / "results"
    shutil.copytree(article.RESULTS, results)
    (results / "preference.csv").unlink(missing_ok=True)
    before = article.pages(results)
    assert all("gpu_preference.sh" in text for text in before.values())
    judge = json.loads((results / "judge.json").read_text())
    judge["report"] |= {"agreement": 0.12345, "self_preference": -0.678}
    (results / "judge.json").write_text(json.dumps(judge))
    over = json.loads((results / "overoptimization.json").read_text())
    over["accuracy"]["accuracy"], over["policies"][0]["begins"] = 0.23456, False
    (results / "overoptimization.json").write_text(json.dumps(over))
    (results / "preference.csv").write_text(
        "group,row,value,low,high,before_value,before_low,before_high,seeds,updates,win_rate,preference\n"
        "Stories,learner and judge,0.345678,0.3,0.4,,,,3,20,0.56789,\n"
    )
    for name, text in article.pages(results).items():
        for figure in ("12.3 %", "-0.68", "23.5 %", "did not begin", "34.6 % [30.0 %, 40.0 %]", "56.8 %", "–"):
            assert figure in text and (figure in ("–", "did not begin") or figure not in before[name]), figure
        assert "has been trained on a GPU" not in text


def test_the_slides_are_well_formed():
    open_tags = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag, attributes):
            if tag not in ("meta", "img"):
                open_tags.append(tag)

        def handle_endtag(self, tag):
            assert open_tags.pop() == tag

    Reader().feed(article.pages()["slides.html"])
    assert not open_tags
