"""Policies from Python: strings in and out, alone and in batches."""

import numpy as np
import pytest

import marl_jax
from marl_jax import cli
from marl_jax.errors import ConfigError, RunError
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import flags
from tests.marl_jax import tiny_run, tiny_task


@pytest.fixture(scope="module")
def policy():
    config = flags.default_config()
    config.mesh.data = 1  # programs for one device compile sooner
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cli, "keep_compiled", lambda folder: None)
        patch.setattr(flags, "default_config", lambda: config)
        with marl_jax.load("random:tiny", max_length=64, max_num_seqs=4) as policy:
            yield policy


def test_batches_have_the_completions_of_single_calls(policy):
    prompts = ["a", "The quick brown", "b"]
    together = policy.generate(prompts, max_new_tokens=5, seed=7)
    alone = [policy.generate(prompt, max_new_tokens=5, seed=7 + i) for i, prompt in enumerate(prompts)]
    assert together == alone and all(isinstance(text, str) for text in alone) and len(set(alone)) == 3
    assert together == policy.generate(prompts, max_new_tokens=5, seed=7)
    assert policy.generate([]) == []
    assert policy.generate("a", temperature=0, max_new_tokens=5) == policy.generate(
        "a", temperature=0, max_new_tokens=5, seed=3
    )


def test_chats_are_strings_messages_or_lists_of_them(policy):
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]
    one = policy.chat("Hi", max_new_tokens=4)
    assert one == policy.chat([{"role": "user", "content": "Hi"}], max_new_tokens=4)
    both = policy.chat(["Hi", messages], max_new_tokens=4)
    assert both == [one, policy.chat(messages, max_new_tokens=4, seed=1)]
    rendered = policy._model.renderer.tokenizer.chat([{"role": "user", "content": "Hi"}])
    assert one == policy.generate(rendered, max_new_tokens=4)


def test_a_stop_string_ends_a_completion(policy):
    text = policy.generate("a", max_new_tokens=12, temperature=0)
    stop = text[3]
    assert policy.generate("a", max_new_tokens=12, temperature=0, stop=stop) == text[: text.index(stop)]


def test_logprobs_are_those_of_the_sampler(policy):
    speaker = policy._model.speaker
    ids = speaker.tokenizer.encode("The sum is")
    for seed in range(8):  # until a completion is text that encodes to the same tokens
        sampled = policy._source.sampler.ask(ids, Sampling(max_new_tokens=6, seed=seed)).result()[0]
        text = speaker.tokenizer.decode(sampled.tokens.tolist())
        if speaker.tokenizer.encode(text) == sampled.tokens.tolist():
            break
    said = speaker.tokenizer.encode("12")
    sampled_again = policy.logprobs(["The sum is", [{"role": "user", "content": "a"}]], ["12", "34"])
    assert [len(row) for row in sampled_again] == [len(said), 2]
    constrained = policy._source.sampler.top_logprobs([*ids, *said], len(ids), Sampling(), k=20)
    for (value, token), top in zip(zip(sampled_again[0], said, strict=True), constrained, strict=True):
        assert value == pytest.approx(dict(top).get(token, value), abs=1e-5) and value < 0
    if speaker.tokenizer.encode(text) == sampled.tokens.tolist():
        np.testing.assert_allclose(policy.logprobs(["The sum is"], [text])[0], sampled.logps, atol=1e-4)


@pytest.mark.parametrize(
    "call, error, message",
    [
        (lambda p: p.generate("x" * 64), RunError, "a prompt has 64 tokens, but must have 1 to 63"),
        (lambda p: p.generate(""), RunError, "a prompt has 0 tokens"),
        (lambda p: p.generate("a", temperature=-1), ValueError, "temperature is -1, but must be 0 or >= 1e-05"),
        (lambda p: p.logprobs("ab", ["a", "b"]), ValueError, "must be a list with one for each completion"),
        (lambda p: marl_jax.load("random:tiny", role="planner"), RunError, "role is 'planner', but must be None"),
        (lambda p: marl_jax.load("no-such-model"), ConfigError, "must be the folder of a run or model, a GGUF file"),
    ],
)
def test_refused(policy, call, error, message):
    with pytest.raises(error, match=message):
        call(policy)


@pytest.mark.nightly
def test_policies_of_runs_are_chosen_by_role_and_step(tmp_path):
    config = tiny_task.get_config()
    config.model.lora.rank = 2
    team = {"agents": {"writer": "first", "editor": "second"}, "policies": ["first", "second"]}
    run = marl_jax.train(config, tmp_path / "team", steps=2, checkpoint={"every": 1}, **team)
    with pytest.raises(RunError, match="role is None, but must be one of: first, second, writer, editor"):
        run.policy()
    prompt, texts = "writer", {}
    for role, step in (("writer", 2), ("first", "newest"), ("editor", 2), ("writer", 1)):
        with run.policy(role, step, max_length=64) as policy:
            assert policy.step == (1 if step == 1 else 2)
            texts[role, step] = policy.logprobs([prompt], ["some text"])
    assert texts["writer", 2] == texts["first", "newest"] != texts["editor", 2] != texts["writer", 1]
    assert marl_jax.evaluate(run)[0]["games"] == 4

    game = marl_jax.train(tiny_run.get_config(), tmp_path / "game", steps=2)
    (row,) = marl_jax.evaluate(game, eval={"opponents": ("random",), "games": 8})
    assert row["opponent"] == "random" and 0 <= row["win_rate_low"] <= row["win_rate"]
    with marl_jax.load(game.workdir, max_length=64) as policy:
        assert isinstance(policy.generate("x:", max_new_tokens=2), str)
