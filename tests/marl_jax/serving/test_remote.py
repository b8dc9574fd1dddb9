"""Remote models as players: a bot over HTTP plays like the local bot, and tasks accept them in any role."""

import asyncio
import contextlib
import dataclasses
import io
import re
import socket
import threading
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from envs.games.bots import UniformBot
from envs.games.registry import make, make_text
from envs.tasks.replies import EpisodeError
from marl_jax import cli
from marl_jax import setup as setups
from marl_jax.errors import ConfigError
from marl_jax.evaluation import matches
from marl_jax.evaluation.matches import Match
from marl_jax.evaluation.tasks import TaskEvaluation
from marl_jax.interactive import task_terminal
from marl_jax.modes import play
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import validate
from marl_jax.serving import remote as remotes
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.remote import RemoteError, RemoteModel
from marl_jax.serving.remote_bot import RemoteBot, remote_failures
from marl_jax.serving.remote_models import RemoteModels, RemoteSettings
from marl_jax.serving.remote_speaker import messages_of, remote_speaker
from models.chat import chat_parts
from tests.marl_jax import tiny_run, tiny_task
from tests.marl_jax.tiny_serving import Parrot, endpoint


@dataclasses.dataclass(frozen=True)
class First:
    """A bot that takes the first free cell."""

    game: object

    def act(self, state, key):
        return jnp.argmax(self.game.legal(state)).astype(jnp.int32)


def first_free(prompt):
    """Return the completion of a model that takes the first free cell on the board of its prompt."""
    board = prompt.rpartition("Board:")[2].partition("Which")[0]
    return f"I take {re.search(r'[1-9]', board)[0]}."


@pytest.fixture
def game():
    return make("tic_tac_toe")


def test_a_remote_bot_plays_as_the_same_bot_here(game):
    sampler = Parrot(first_free)
    with endpoint(sampler) as (url, _):
        bot = RemoteBot(game, make_text(game), RemoteModel.parse(f"{url}/v1#one"), temperature=1.0)
        seating, key = matches.in_turns(6, (0, 1)), jax.random.key(3)
        played = Match(game, (bot, UniformBot(game)))((None, None), seating, key)
        expected = Match(game, (First(game), UniformBot(game)))((None, None), seating, key)
        np.testing.assert_array_equal(played.action, expected.action)
        np.testing.assert_array_equal(played.total.agent, expected.total.agent)
        mover = np.arange(9)[:, None] % 2 == np.argmax(np.asarray(seating) == 0, axis=1)
        going = np.arange(9)[:, None] < np.asarray(played.length)
        assert len(sampler.asked) == (mover & going).sum()  # no requests for other rows or after the end


def test_a_remote_model_sits_at_the_terminal(game, capsys, monkeypatch):
    config = tiny_run.get_config()
    config.env.text = "full"
    monkeypatch.setattr("sys.stdin", io.StringIO("7\n8\n9\n"))
    with endpoint(Parrot(first_free)) as (url, _):
        config.play.opponent = f"{url}/v1#one"
        validate.check(config, "play")
        play.main(config, Path("nowhere"))
    screen = capsys.readouterr().out
    assert f"({url}/v1#one): 1" in screen and screen.endswith("player 0 (you) wins.\n")


def test_evaluations_accept_remote_models():
    config = tiny_run.get_config()
    config.eval.opponents = ("random", "http://127.0.0.1:1/v1#m@x")
    validate.check(config, "eval")
    config = tiny_task.get_config("grpo")
    config.eval.opponents = ("https://example.com/v1#m",)
    validate.check(config, "eval")
    config.eval.opponents = ("random",)
    with pytest.raises(ConfigError, match="remote models"):
        validate.check(config, "eval")


def test_a_remote_model_answers_for_all_roles_of_a_task(tmp_path):
    config = tiny_task.get_config("grpo")
    sampler = Parrot(lambda prompt: "AAAA")
    with endpoint(sampler) as (url, _):
        config.eval.opponents = (f"{url}/v1#two",)
        setup = setups.make(config)
        own = Parrot(lambda prompt: "BB", tokenizer=setup.backbone.tokenizer)
        setup.sampler.publish, setup.sampler.answer = lambda weights, version: None, own.answer
        evaluation = TaskEvaluation(setup, "test")
        mine, remote = evaluation({}, baselines=True)
        assert (mine["opponent"], remote["opponent"]) == ("self", f"{url}/v1#two")
        assert (mine["games"], remote["games"], remote["failed"]) == (4, 4, 0)
        assert len(sampler.asked) == len(own.asked) > 4
        assert remote["completion_length"] > mine["completion_length"]
        (alone,) = evaluation({})  # no other opponents during training
        assert alone == mine and len(sampler.asked) == len(own.asked) // 2

        config.play.seat, config.play.opponent, said = 0, f"{url}/v1#two", io.StringIO()
        episode = task_terminal.play(setup, {}, io.StringIO("AAA\nBBBB\n"), said)
        assert not episode.failed and {chat.said[0].replies[0].text for chat in episode.chats} == {"AAA", "AAAA"}
        evaluation.close()
        setup.close()


def test_messages_are_found_again_in_a_chat():
    speaker = remote_speaker("http://127.0.0.1:1/v1#m", Sampling(), RemoteModels(RemoteSettings()))
    assert isinstance(speaker, Speaker)
    parts = chat_parts(speaker.tokenizer)
    for system in (None, "", "S €\n"):
        ids = speaker.opening(system, "U\n") + speaker.tokenizer.encode("A") + speaker.continuation("V <|im_end|>")
        expected = [("system", system)] if system is not None else []
        expected += [("user", "U\n"), ("assistant", "A"), ("user", "V ")]
        found = messages_of(speaker.tokenizer.decode(ids), parts)
        assert [(m["role"], m["content"]) for m in found] == expected
    with pytest.raises(ValueError):
        messages_of("x", parts)


@contextlib.contextmanager
def mute():
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("mode", ["train", "eval", "play"])
def test_a_server_that_is_not_there_is_a_line_at_once(mode, tmp_path, capsys, own_console):
    with mute() as url:
        pass
    name = f"{url}/v1#m"
    field, value = ("play.opponent", name) if mode == "play" else ("eval.opponents", f"('random', '{name}')")
    command = ["--config=tests/marl_jax/tiny_run.py", f"--mode={mode}", f"--workdir={tmp_path}"]
    begin = time.monotonic()
    assert cli.main(["launch.py", *command, f"--config.{field}={value}", "--config.eval.every=1"]) == 1
    address = url.removeprefix("http://")
    expected = f"launch.py: config.{field} has {name!r}, but {address} cannot be reached: Connection refused"
    assert capsys.readouterr().err.splitlines()[-1] == expected
    assert time.monotonic() - begin < 30


def test_a_wait_for_a_slow_server_is_logged_and_its_end_is_a_line(monkeypatch, capsys, tmp_path, own_console):
    monkeypatch.setattr(remotes, "SLOW", 0.1)
    monkeypatch.setattr(RemoteModel, "parse", lambda name: RemoteModel(name.partition("#")[0], "m", deadline=0.5))
    command = ["--config=tests/marl_jax/tiny_run.py", "--mode=play", f"--workdir={tmp_path}", "--config.play.seat=1"]
    with mute() as url:
        assert cli.main(["launch.py", *command, f"--config.play.opponent={url}/v1#m"]) == 1
    shown = capsys.readouterr().err
    assert "/v1#m: 0 of 1 completions after 0 s" in shown and "Traceback" not in shown
    assert shown.endswith("returned no completion in 0.5 s; last error: timed out\n")


CHOICE = b'{"choices": [{"message": {"content": %s}, "finish_reason": "stop"}]}'


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 9999,
        b"HTTP/1.1 200 OK\r\n\r\n" + CHOICE % b'"\\ud800"', b"HTTP/1.1 200 OK\r\n\r\n" + CHOICE % b"3",
        b'HTTP/1.1 200 OK\r\n\r\n{"choices": "ab"}', b"HTTP/1.1 200 OK\r\n\r\n" + b"9" * 9999,
        b"HTTP/1.1 503 no\r\nRetry-After: \xb2\r\n\r\n", b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: \xb2\r\n\r\n{}", b"HTTP/1.1 200 OK\r\nX: " + b"x" * 99_999,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"", b"SSH-2.0\r\n\r\n",
        b"HTTP/1.1 500 no\r\nX-Should-Retry: false\r\n\r\n",
    ],
    ids=range(14),
)  # fmt: skip
def test_hostile_answers_are_errors_of_the_remote_model(answer):
    def serve():
        with contextlib.suppress(OSError):
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        remote = RemoteModel(f"http://127.0.0.1:{listener.getsockname()[1]}/v1", "m", deadline=0.2)
        with pytest.raises(RemoteError):
            remote.ask([{"role": "user", "content": "x"}])
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_what_a_remote_model_cannot_do_is_said(game, monkeypatch):
    for wrong in (
        "http://",
        "http://host/v1",
        "ftp://host/v1#m",
        "runs/mine",
        "http://h:99999/v1#m",
        "http://me:secret@host/v1#m",
    ):
        with pytest.raises(RemoteError, match="must be http"):
            RemoteModel.parse(wrong)
    down = dataclasses.replace(RemoteModel.parse("http://127.0.0.1:9/v1#m"), deadline=0.3)
    with pytest.raises(RemoteError, match="no completion in 0.3 s"):
        down.ask([{"role": "user", "content": "x"}])
    bot = RemoteBot(game, make_text(game), down)
    with pytest.raises(RemoteError, match="no completion in 0.3 s"), remote_failures():
        jax.block_until_ready(jax.jit(bot.act)(game.reset(jax.random.key(0)), jax.random.key(1)))
    with endpoint(Parrot(), keys=Keys.of("the-admins-key"), limits=Limits(concurrent=1)) as (url, _):
        remote = RemoteModel.parse(f"{url}/v1#one")
        with pytest.raises(RemoteError, match="status 401"):
            remote.ask([{"role": "user", "content": "x"}])
        monkeypatch.setenv("OPENAI_API_KEY", "the-admins-key")
        with pytest.raises(RemoteError, match="status 404"):
            RemoteModel.parse(f"{url}/v1#nine").ask([{"role": "user", "content": "x"}])
        # More concurrent requests than the server accepts: rejected ones are retried.
        answers = remote.ask_all([[{"role": "user", "content": f"{i}"}] for i in range(4)], seed=1)
        assert len(answers) == 4

    async def lost():
        models = RemoteModels(RemoteSettings(deadline=0.1))
        speaker = remote_speaker("http://127.0.0.1:9/v1#m", Sampling(), models)
        await speaker.sampler.answer(speaker.opening(None, "x"), Sampling())

    with pytest.raises(EpisodeError):
        asyncio.run(lost())
