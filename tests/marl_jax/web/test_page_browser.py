"""The page in a real browser: it loads, replays a game, plays one by clicks, and shows markup of models as text.

Needs the package `playwright` and a Chromium: MARL_JAX_CHROMIUM, one on the path, or the one of `make nightly`.
"""

import contextlib
import os
import shutil

import pytest

from marl_jax.serving.http.keys import Keys
from tests.marl_jax import tiny_page

pytestmark = pytest.mark.nightly

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed (docs/page.md)")
NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = os.environ.get("MARL_JAX_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        if not os.path.exists(CHROMIUM or started.chromium.executable_path):
            pytest.skip("no Chromium is installed (docs/page.md)")
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser") / "runs"
    tiny_page.write_run(folder / "mine")
    tiny_page.write_run(folder / "other")
    (folder / "planning.md").write_text(f"# Planning {tiny_page.MARKUP}\n\n| a |\n| --- |\n| {tiny_page.MARKUP} |\n")
    return folder


@pytest.fixture(scope="module")
def url(runs):
    with tiny_page.page(runs) as url:
        yield url


@contextlib.contextmanager
def watched(browser, url, view="", refused=(), **options):
    """Open a page and check at the end that its console is empty and it contacted only the server."""
    context = browser.new_context(**options)
    page = context.new_page()
    page.set_default_timeout(20_000)
    console, elsewhere = [], []
    page.on("console", lambda message: console.append(message.text))
    page.on("pageerror", lambda error: console.append(str(error)))
    page.on("request", lambda request: request.url.startswith((url, "data:")) or elsewhere.append(request.url))
    page.goto(f"{url}/page/{view}")
    try:
        yield page
        assert [line for line in console if not any(word in line for word in refused)] == []
        assert elsewhere == []
        assert page.title() == "marl_jax", "a script of a model's text ran"
        assert page.locator("main script, main iframe, main img:not([src^='data:image/svg+xml'])").count() == 0
    finally:
        context.close()


def test_curves_of_several_runs_follow_their_files(browser, url, runs):
    with watched(browser, url) as page:
        page.wait_for_selector("svg.curve path.band")
        assert page.locator("nav a[aria-current]").inner_text() == "curves"
        lines = page.locator(".card:has(h3:text-is('entropy')) path.s")
        assert lines.count() == 1
        marks = page.locator(".card:has(h3:text-is('entropy')) line.event")
        assert marks.count() == 2
        assert marks.nth(0).locator("title").text_content() == f"rejected, step 3: lost 4.1 nats {tiny_page.MARKUP}"
        page.locator(".runs label", has_text="runs/other" if page.locator(".runs input").nth(0).is_checked()
                     else "runs/mine").click()  # fmt: skip
        playwright.expect(lines).to_have_count(2)
        before = lines.nth(0).get_attribute("d")
        for run in ("mine", "other"):
            with (runs / run / "metrics.jsonl").open("a") as file:
                file.write(tiny_page.lines(tiny_page.metrics(6)) + '{"step": 7')
        playwright.expect(lines.nth(0)).not_to_have_attribute("d", before, timeout=15_000)
        page.get_by_placeholder("find a metric").fill("seat")
        playwright.expect(page.locator("svg.curve")).to_have_count(1)


def test_a_game_is_replayed_and_markup_is_text(browser, url):
    with watched(browser, url, "#games") as page:
        page.locator(".list button", has_text="step 1").click()
        page.wait_for_selector(".board img")
        assert page.evaluate("document.querySelector('.board img').decode().then(() => true)")
        page.get_by_label("next move").click()
        assert page.locator("pre.said").inner_text() == tiny_page.MARKUP
        assert tiny_page.MARKUP in page.locator("details pre").first.inner_text()
        page.keyboard.press("ArrowRight")
        playwright.expect(page.get_by_text("reward: player 0 -1, player 1 +1")).to_be_visible()
        playwright.expect(page.get_by_text("value +0.25")).to_be_visible()
        playwright.expect(page.locator("tr.now")).to_contain_text("player 1")
        page.get_by_label("previous move").click()
        playwright.expect(page.get_by_text("move 1 of 2")).to_be_visible()


def test_curves_are_explained_and_labels_are_small_at_every_width(browser, url):
    for width in (390, 1280):
        with watched(browser, url, viewport={"width": width, "height": 900}) as page:
            card = page.locator(".card:has(h3:text-is('entropy'))")
            playwright.expect(card.locator("p.help")).to_have_text("Mean entropy of the sampling distribution in nats")
            page.evaluate("location.hash = 'games'")
            page.locator(".list button", has_text="step 1").click()
            page.wait_for_selector("svg.curve text")
            heights = (
                "[...document.querySelectorAll('svg.curve text')].map((text) => text.getBoundingClientRect().height)"
            )
            sizes = page.evaluate(heights)
            assert min(sizes) > 8 and max(sizes) < 20
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_conversations_with_verdicts(browser, url):
    with watched(browser, url, "#conversations") as page:
        page.locator(".list button").first.click()
        playwright.expect(page.locator("pre.said")).to_have_text(f"5 {tiny_page.MARKUP}")
        playwright.expect(page.get_by_text("✓ right", exact=True)).to_be_visible()
        page.get_by_label("show", exact=True).select_option("wrong")
        playwright.expect(page.locator(".list button")).to_have_count(1)
        page.locator(".list button").first.click()
        playwright.expect(page.get_by_text("✗ wrong", exact=True)).to_be_visible()


def test_tables(browser, url):
    with watched(browser, url, "#tables") as page:
        playwright.expect(page.locator("main td")).to_have_text(tiny_page.MARKUP)


SHOWN = {
    "curves": "svg.curve", "games": ".list button", "conversations": ".list button", "tables": "main td",
    "play": "#result",
}  # fmt: skip


def test_a_game_by_clicks_on_the_board_of_a_phone(browser, url):
    phone = dict(viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True, color_scheme="dark")
    with watched(browser, url, "#play", **phone) as page:
        page.get_by_label("game", exact=True).select_option("tic_tac_toe")
        page.get_by_label("against", exact=True).select_option("model: one")
        page.get_by_text("New game").tap()
        for cell in ("7", "8", "9"):
            page.locator(f".board button[aria-label='{cell}']").tap()
            page.wait_for_function("cell => document.getElementById('moves').innerText.includes(`: ${cell}`)", arg=cell)
        playwright.expect(page.locator("#result")).to_have_text("player 0 (you) wins.")
        page.locator("summary", has_text="prompt and completion").first.tap()
        playwright.expect(page.locator("pre.said").first).to_have_text("<b>I take</b> 1")
        for view, part in SHOWN.items():
            page.evaluate(f"location.hash = '{view}'")
            page.wait_for_selector(part)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"{view} is wider than a phone"
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(21, 24, 27)"


def test_the_key_is_asked_for(browser, runs):
    with tiny_page.page(runs, keys=Keys.of("k-0123456789")) as url, watched(browser, url, refused=("401",)) as page:
        page.get_by_label("Server key").fill("k-wrong-wrong")
        page.keyboard.press("Enter")
        page.get_by_label("Server key").fill("k-0123456789")
        page.keyboard.press("Enter")
        page.wait_for_selector("svg.curve")
