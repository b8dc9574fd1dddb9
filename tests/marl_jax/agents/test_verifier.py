"""Verifiers: tokenization, loss, training, resuming, evaluation, and scores over HTTP."""

import asyncio
import json
import random
import re
import shutil
import threading
import time
from pathlib import Path

import jax
import numpy as np
import pytest

from envs.tasks.replies import Reply
from envs.tasks.scorer_client import ScorerClient, ScorerRefused, ScorerUnavailable, WrongScorer
from envs.tasks.scripted import ScriptedAsk
from marl_jax import setup as setups
from marl_jax.agents import scoring
from marl_jax.agents.verifier import ChatError, Scorer, read_chat, version_of
from marl_jax.algorithms import settings_from
from marl_jax.algorithms import verifier as algorithm
from marl_jax.errors import ConfigError, RunError
from marl_jax.learning.update import Scheduled
from marl_jax.modes import evaluate, export, serve_reward, train
from marl_jax.rollouts import labelled
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.running.metrics import read_json_lines
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import validate
from marl_jax.serving.http import server
from marl_jax.serving.http.guard import Limits
from marl_jax.serving.http.keys import Keys
from marl_jax.serving.rewards import reward_app
from marl_jax.setup import scorers
from models import tokenizers
from tests.marl_jax import tiny_verifier
from tests.marl_jax.tiny_verifier import LETTERS, chat

KEY = "k-0123456789"


@pytest.fixture(scope="module", autouse=True)
def small():
    """Use short rows."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(labelled, "TOKEN_UNIT", 32)
        yield


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """Return the folder of a trained run."""
    folder = tmp_path_factory.mktemp("verifier")
    tiny_verifier.write_files(folder / "labelled")
    config = tiny_verifier.get_config()
    validate.check(config)
    train.train(config, folder)
    return folder


@pytest.fixture(scope="module")
def opened(workdir):
    with scorers.open_scorer(workdir) as verifier:
        yield verifier


# Reading


def test_a_chat_is_read_as_it_is_sampled():
    """The tokens equal those of an episode's conversation with its completions."""
    tokenizer = tokenizers.load("tiny")
    speaker = Speaker(None, tokenizer, Sampling(), 512)
    messages = [
        {"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hé <|im_end|>?"},
        {"role": "assistant", "content": "one"}, {"role": "user", "content": "And?"},
        {"role": "assistant", "content": "two"},
    ]  # fmt: skip
    sampled = speaker.opening("Be kind.", "Hé <|im_end|>?") + tokenizer.encode("one") + speaker.continuation("And?")
    reading = read_chat(tokenizer, messages, 512)
    assert list(reading.tokens) == sampled + tokenizer.encode("two")
    assert reading.start == len(sampled) and reading.completion_length == 3


@pytest.mark.parametrize(
    ("messages", "reason"),
    [
        ([], "the roles are empty"), ("text", "of type str"), ({}, "of type dict"), (None, "of type NoneType"),
        ([{"role": "user", "content": "x"}], "the roles are user"), ([3], "message 0 must be"),
        ([{"role": "user", "content": None}], "message 0 must be"),
        ([{"role": "assistant", "content": "x"}], "the roles are assistant"),
        ([{"role": "system", "content": "x"}], "the roles are empty"),
        (chat("a", "b") + chat("a", "b")[1:], "must alternate between user and assistant"),
        ([{"content": "x"}, {"content": "y"}], "the roles are None, None"),
        (chat("a" * 600, "b"), "at most 512"),
    ],
)  # fmt: skip
def test_chats_that_cannot_be_scored(messages, reason):
    with pytest.raises(ChatError, match=reason):
        read_chat(tokenizers.load("tiny"), messages, 512)


# Loss


def rows(lengths, labels, start=3):
    """Build samples with completions of these lengths."""
    made = [
        labelled.Labelled(i, labelled.Reading(tuple(range(1, start + length + 1)), start), right)
        for i, (length, right) in enumerate(zip(lengths, labels, strict=True))
    ]
    return labelled.collate(made, 16, 8)


def test_labels_stand_on_the_last_half_and_the_last_token_always():
    samples = rows((1, 4, 5), (True, False, True))
    mask = {tokens: np.asarray(algorithm.label_mask(samples, tokens)) for tokens in ("last_half", "all", "last")}
    assert mask["last_half"].tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0], [0, 0, 1, 1, 0, 0, 0, 0], [0, 0, 1, 1, 1, 0, 0, 0],
    ]  # fmt: skip
    assert mask["all"].sum(1).tolist() == [1, 4, 5] and mask["last"].argmax(1).tolist() == [0, 3, 4]
    assert samples.logits_index[2, 4] == samples.lengths[2] - 1, "the last token of the chat is where the score is read"


def test_the_loss_by_hand():
    samples = rows((1, 4, 5), (True, False, True))
    logits = np.linspace(-2, 2, samples.targets.size).reshape(samples.targets.shape).astype(np.float32)
    algo = settings_from(tiny_verifier.get_config().algo)
    objective = algorithm.CrossEntropy()
    scores = scoring.Scores(logits, logits, logits)
    loss, metrics = objective.loss(samples, objective.loss_weights_for(samples, algo), scores, algo, Scheduled())
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    each = [-np.log(p[0, 0]), -np.log(1 - p[1, 2:4]).mean(), -np.log(p[2, 2:5]).mean()]
    assert float(loss) == pytest.approx(np.mean(each), rel=1e-5)
    assert float(metrics["mean_score"]) == pytest.approx(np.mean([p[0, 0], p[1, 3], p[2, 4]]), rel=1e-5)
    assert float(metrics["accuracy"]) == pytest.approx(np.mean([p[0, 0] > 0.5, p[1, 3] < 0.5, p[2, 4] > 0.5]))


# Runs


def test_it_learns_to_tell_right_from_wrong(workdir):
    rows = [row for row in read_json_lines(workdir / "eval.jsonl") if row["opponent"] == "balanced"]
    assert rows[0]["step"] == 0 and rows[0]["auc"] == 0.5, "the head begins at 0: every score is a half"
    assert rows[-1]["auc_by_question"] > 0.9 and rows[-1]["accuracy"] > 0.8
    assert rows[-1]["accuracy_low"] <= rows[-1]["accuracy"] <= rows[-1]["accuracy_high"]


@pytest.mark.nightly
def test_a_run_resumes_exactly_and_refuses_other_answers(workdir, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(workdir, again)
    shutil.rmtree(again / "checkpoints" / "70")
    config = tiny_verifier.get_config()
    config.eval.every = config.checkpoint.keep = 1000
    config.checkpoint.best_metric = ""
    train.train(config, again)

    def newest(folder):
        checkpoints = Checkpoints(folder, read_only=True)
        found = checkpoints.restore()
        checkpoints.close()
        return found

    one, two = newest(workdir), newest(again)
    assert one.step == two.step == 70
    jax.tree.map(np.testing.assert_array_equal, one.state["trained"], two.state["trained"])

    shutil.rmtree(again / "labelled")
    tiny_verifier.write_files(again / "labelled", seed=1)
    config.steps = 71
    with pytest.raises(RunError, match="have changed since this run started"):
        train.train(config, again)


def test_evaluation_on_the_test_part(workdir, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(workdir, folder)
    config = tiny_verifier.get_config()
    found = {row["opponent"]: row for row in evaluate.main(config, folder)}
    assert set(found) == {"balanced", "natural"} and found["natural"]["part"] == "test"
    assert found["natural"]["games"] == 128 and found["natural"]["auc"] > 0.9
    lines = read_json_lines(folder / "scores" / "test_00000070.jsonl")
    assert len(lines) == 2 * 128 and all(0 <= line["score"] <= 1 for line in lines)
    assert (folder / "scores" / "test_balanced_00000070.svg").read_text().startswith("<svg")


# In the same process


def test_the_score_is_the_learners_at_the_answers_last_token(workdir, opened):
    """The score is the value that training fits at the last token of an answer."""
    setup = setups.make(tiny_verifier.get_config())
    readings = [opened.scorer.read(chat(letter, answer)) for letter in "ab" for answer in ("a", "bcd", "d")]
    samples = labelled.collate([labelled.Labelled(i, reading, True) for i, reading in enumerate(readings)], 64, 8)
    policy = setup.backbone.policy
    values = jax.jit(lambda w, s: scoring.score(policy, w, s).values)(opened.scorer.weights, samples)
    last = np.asarray(values)[np.arange(6), np.asarray(samples.completion_lengths)[:, 0] - 1]
    np.testing.assert_allclose(opened.scorer.score(readings), 1 / (1 + np.exp(-last)), rtol=1e-5)


def test_scores_do_not_depend_on_their_batch(opened):
    rng = random.Random(0)
    chats = [chat(rng.choice(LETTERS), "x" * rng.randint(0, 90), rng.randint(100, 999)) for _ in range(12)]
    together = opened.scorer(chats)
    assert together[::-1] == pytest.approx(opened.scorer(chats[::-1]), abs=1e-6)
    assert together[:3] == pytest.approx([opened.scorer([one])[0] for one in chats[:3]], abs=1e-6)
    assert opened.scorer([chat("a", "")]) == [0.0], "an empty answer is never right"
    assert opened.scorer([]) == []


def test_versions_are_of_the_weights(opened):
    weights = opened.scorer.weights
    assert version_of(weights, "tiny") == opened.version != version_of(weights, "other")
    moved = jax.tree.map(lambda x: x, weights)
    moved["critic"] = {**moved["critic"], "bias": moved["critic"]["bias"] + 1e-6}
    assert version_of(moved, "tiny") != opened.version


def test_other_tokenizers_and_runs_of_other_kinds_are_refused(workdir, tmp_path, monkeypatch):
    load = tokenizers.load
    with monkeypatch.context() as patch:
        patch.setattr(tokenizers, "load", lambda name: load(name).with_template("llama3"))
        with pytest.raises(RunError, match=r"from another run: models.main.tokenizer is '.*' there and '.*' here"):
            scorers.open_scorer(workdir).__enter__()
    config = tiny_verifier.get_config()
    config.algo = tiny_verifier.algorithms.ppo()
    with pytest.raises(ConfigError, match="must be 'verifier'"):
        scorers.open_scorer(workdir, config).__enter__()
    with pytest.raises(RunError, match="is a verifier"):
        export.main(tiny_verifier.get_config(), workdir)
    policy = setups.make(tiny_verifier.get_config()).backbone.policy
    with pytest.raises(RunError, match="not those of a verifier"):
        Scorer(policy, {"model": {}}, tokenizers.load("tiny"), 64)


# Over HTTP


class Text(str):
    """The reading of a `FakeScorer`, with a token for each character."""

    tokens = property(tuple)


class FakeScorer:
    """Scores that follow from the text of the answer: 0.125 for "125"."""

    max_length = 100

    def __init__(self, seconds=0.0):
        self.seconds, self.sizes = seconds, []

    def read(self, messages):
        if not isinstance(messages, list):
            raise ChatError("no list")
        return Text(messages[-1]["content"])

    def score(self, readings):
        self.sizes.append(len(readings))
        time.sleep(self.seconds)
        if "broken" in readings:
            raise FloatingPointError("the device is on fire")
        return [float(text) / 1000 for text in readings]


def app(scorer, key="", **limits):
    return reward_app(scorer, model="tiny", version="v1", keys=Keys.of(key), limits=Limits(**limits), step=3)


def score(url, chats, **settings):
    return asyncio.run(ScorerClient(url, **{"deadline": 5.0, **settings}).score(chats))


def test_the_server_gives_the_scores_of_the_scorer(opened):
    chats = [chat(letter, answer) for letter in LETTERS for answer in LETTERS]
    served = reward_app(opened.scorer, model=opened.model, version=opened.version, keys=Keys.of(""))
    with server.in_thread(served) as url:
        found = score(url, chats, version=opened.version, deadline=60.0)
        health = asyncio.run(ScorerClient(url, version=opened.version).health())
    assert found == pytest.approx(opened.scorer(chats), abs=1e-6)
    assert health["model"] == "tiny" and health["version"] == opened.version and health["max_length"] == 128


def test_a_hundred_requests_at_once_share_batches_and_are_not_mixed_up():
    scorer = FakeScorer(seconds=0.02)

    async def ask(url):
        client, rng = ScorerClient(url, version="v1"), random.Random(0)
        wanted = [[rng.randrange(1001) for _ in range(rng.randint(0, 6))] for _ in range(100)]
        found = await asyncio.gather(*(client.score([chat("a", str(n)) for n in numbers]) for numbers in wanted))
        return wanted, found

    with server.in_thread(app(scorer)) as url:
        wanted, found = asyncio.run(ask(url))
    assert found == [[n / 1000 for n in numbers] for numbers in wanted]
    assert sum(scorer.sizes) == sum(map(len, wanted)) and len(scorer.sizes) < 60, "requests shared batches"


def test_requests_that_are_refused(monkeypatch):
    monkeypatch.setenv("MARL_JAX_KEY", KEY)
    with server.in_thread(app(FakeScorer(), key=KEY, body_bytes=20_000)) as url:
        assert score(url, [chat("a", "5")], version="v1") == [0.005]
        with pytest.raises(WrongScorer, match="has version v1, but must have v2"):
            score(url, [chat("a", "5")], version="v2")
        with pytest.raises(ScorerRefused, match="413"):
            score(url, [chat("a", "5" * 30_000)])
        with pytest.raises(ScorerRefused, match="400: no list"):
            asyncio.run(_predict(url, {"query_responses": [3]}))
        with pytest.raises(ScorerRefused, match="413: the request has 4097 completions"):
            asyncio.run(_predict(url, {"query_responses": [[]] * 4097}))
        for body in ({}, {"query_responses": 3}, {"query_responses": [], "more": 1}):
            with pytest.raises(ScorerRefused, match="400"):
                asyncio.run(_predict(url, body))
        assert asyncio.run(_predict(url, {"query_responses": []}))["result"] == []
        monkeypatch.setenv("MARL_JAX_KEY", KEY + "x")
        with pytest.raises(ScorerRefused, match="401"):
            score(url, [chat("a", "5")])


async def _predict(url, body):
    return await ScorerClient(url)._call("POST", "/predict", json.dumps(body).encode())


def test_a_batch_that_fails_costs_its_requests_and_not_the_server():
    with server.in_thread(app(FakeScorer())) as url:
        with pytest.raises(ScorerUnavailable, match="last error: status 500"):
            score(url, [chat("a", "broken")], deadline=0.2)
        assert score(url, [chat("a", "7")]) == [0.007]


def test_scores_that_are_not_numbers_are_an_error_at_once(caplog):
    with server.in_thread(app(FakeScorer())) as url:
        began = time.monotonic()
        with pytest.raises(ScorerRefused, match="status 500: scoring failed: the scores are not finite"):
            score(url, [chat("a", "nan")])
        assert time.monotonic() - began < 2
        assert score(url, [chat("a", "7")]) == [0.007]
    assert [record.getMessage() for record in caplog.records] == ["scoring failed: the scores are not finite"]


def test_a_slow_batch_is_answered_in_time_with_an_error():
    with server.in_thread(app(FakeScorer(seconds=2.0), seconds=0.2)) as url:
        began = time.monotonic()
        with pytest.raises(ScorerUnavailable, match="last error: (status 504|no attempt)"):
            score(url, [chat("a", "7")], deadline=0.4)
        assert time.monotonic() - began < 1.9


def test_a_run_beside_the_tasks_of_this_process(workdir, opened):
    with scorers.serve_beside(workdir) as (url, version):
        found = score(url, [chat("c", "c"), chat("c", "d")], version=version, deadline=60.0)
    assert version == opened.version and found == pytest.approx(opened.scorer([chat("c", "c"), chat("c", "d")]))


def test_the_mode_serves_a_run_and_needs_a_key_on_open_addresses(workdir, opened, monkeypatch):
    config = tiny_verifier.get_config()
    config.serve.host = "0.0.0.0"
    monkeypatch.delenv("MARL_JAX_KEY", raising=False)
    with pytest.raises(ConfigError, match="a key in the environment variable MARL_JAX_KEY"):
        serve_reward.main(config, workdir)
    config.serve.host = "127.0.0.1"
    served, expected = threading.Event(), opened.scorer([chat("a", "a"), chat("a", "b")])

    def serve(app, host, port, drain_seconds):
        with server.in_thread(app, host, 0) as url:
            assert score(url, [chat("a", "a"), chat("a", "b")], deadline=60.0) == pytest.approx(expected)
        served.set()

    monkeypatch.setattr(server, "serve", serve)
    serve_reward.main(config, workdir)
    assert served.is_set()


# Docs


def test_the_examples_of_the_page(workdir, opened, tmp_path, monkeypatch, capsys):
    page = (Path(__file__).parents[3] / "docs" / "verifier.md").read_text()
    score_a_chat, use_in_a_task = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "verifier").symlink_to(workdir)
    monkeypatch.chdir(tmp_path)
    exec(compile(score_a_chat, "docs/verifier.md", "exec"), {})
    version, score = capsys.readouterr().out.split()
    assert version == opened.version and 0 <= float(score.strip("[]")) <= 1

    names = {}
    exec(compile(use_in_a_task, "docs/verifier.md", "exec"), names)
    reply = Reply("125")
    with server.in_thread(app(FakeScorer())) as url:
        names["CLIENT"] = ScorerClient(url, version="v1")
        asyncio.run(names["reward"](ScriptedAsk(None, None), "q", reply))
    assert reply.rewards.agent == 0.125
