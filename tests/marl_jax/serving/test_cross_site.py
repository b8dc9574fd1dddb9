"""Requests that web pages of other sites send through a user's browser change nothing on a server without a key."""

import itertools
from urllib.parse import urlsplit

import pytest

from marl_jax.serving.http.keys import Keys
from marl_jax.serving.http.server import in_thread
from marl_jax.serving.openai.endpoint import Endpoint
from marl_jax.serving.rewards import reward_app
from marl_jax.web.page import Page
from marl_jax.web.page.folders import RunFolders
from marl_jax.web.page.lobby import GameLobby
from tests.marl_jax.tiny_serving import Parrot, post, served

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://127.0.0.1:1"},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site", "Origin": "http://127.0.0.1:1"},
]
SIMPLE_TYPES = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")


class Control:
    """Counts the calls that pause, resume or drain the sampler."""

    calls = 0

    def pause(self):
        Control.calls += 1

    resume = drain = pause


def served_app(key=""):
    """Return the application of `--mode=serve` with all its routes."""
    page = Page(RunFolders([]), GameLobby({}))
    return Endpoint(
        served(Parrot()), keys=Keys.of(key), control=Control(), routes=page.routes(), open_paths=page.open_paths
    ).application()


class Scorer:
    """A scorer that is never called."""

    score, max_length = None, 1


def reward():
    """Return the application of `--mode=serve_reward`."""
    return reward_app(Scorer(), model="m", version="v", keys=Keys.of(""))


def changing(make):
    """Return the paths of all routes that change something."""
    return [route.path for route in make().router.routes if "POST" in route.methods]


def test_all_routes_are_known():
    assert len(changing(served_app)) == 11 and changing(reward) == ["/predict"]
    methods = {method for make in (served_app, reward) for route in make().router.routes for method in route.methods}
    assert methods == {"GET", "HEAD", "POST"}


@pytest.mark.parametrize("make", [served_app, reward])
def test_no_route_accepts_a_request_of_another_site(make):
    before = Control.calls
    with in_thread(make()) as url:
        for path, headers, body in itertools.product(changing(make), FOREIGN, ("", "{}")):
            status, answer = post(url, path, body, headers=headers, raw=True)
            assert (status, answer["error"]["code"]) == (403, "cross_site"), (path, headers, body)
        for path, kind in itertools.product(changing(make), SIMPLE_TYPES):
            assert post(url, path, "", headers={"Content-Type": kind}, raw=True)[0] == 415, path
    assert Control.calls == before


def test_the_page_of_the_server_and_programs_are_served():
    with in_thread(served_app()) as url:
        own = {"Origin": f"http://{urlsplit(url).netloc}", "Sec-Fetch-Site": "same-origin"}
        for headers in (own, {}, {"Sec-Fetch-Site": "none"}):
            assert post(url, "/v1/pause", "", headers=headers, raw=True)[0] == 200
            session = post(url, "/v1/sessions", {}, headers=headers)[1]["id"]
            assert post(url, f"/v1/sessions/{session}/end", "", headers=headers, raw=True)[0] == 200
        assert post(url, "/v1/models", None, headers=FOREIGN[0])[0] == 200  # the browser hides the answer


def test_a_key_is_enough():
    with in_thread(served_app("the-admins-key")) as url:
        assert post(url, "/v1/pause", "", "the-admins-key", FOREIGN[0], raw=True)[0] == 200
        assert post(url, "/v1/pause", "", "", FOREIGN[0], raw=True)[0] == 401
