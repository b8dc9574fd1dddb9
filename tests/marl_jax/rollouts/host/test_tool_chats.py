"""Chats with tools: token exactness, prompts against transformers, and resuming without repeating calls."""

import asyncio
import collections
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
import types

import numpy as np
import pytest
from ml_collections import ConfigDict

from envs.tasks import make_task
from envs.tasks.replies import TaskError
from envs.tasks.task import Outcome
from envs.tasks.tools import Functions, Tools, ToolUse
from marl_jax.errors import ConfigError, RunError
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.rollouts.host.journal import path_of
from marl_jax.sampling.settings import Sampling
from marl_jax.setup.tasks import TaskSetup
from models.chat_templates import BUILTIN
from models.tool_calls import parser_of
from tests.conftest import shared_data
from tests.marl_jax.rollouts.host.tool_run import BUDGET, MAX_LENGTH, Notes, ToolSampler, speaker_of
from tests.marl_jax.rollouts.host.tool_run import Talk as ToolTalk
from tests.marl_jax.tiny_host import Talk, answers_of, assert_equal_samples, make_rollout, merging_tokenizer, visible

# The structure of LLaMA 3.1's template: tools in the first user message, results as JSON of the role ipython.
LLAMA3 = """\
{{- bos_token -}}
{%- set ns = namespace(first=true) -%}
{%- for message in messages -%}
{%- set role = 'ipython' if message.role == 'tool' else message.role -%}
{{- '<|start_header_id|>' + role + '<|end_header_id|>\\n\\n' -}}
{%- if message.role == 'user' and ns.first and tools -%}
{%- set ns.first = false -%}
{%- for tool in tools -%}{{- tool | tojson(indent=4) + '\\n\\n' -}}{%- endfor -%}
{%- endif -%}
{%- if message.tool_calls is defined -%}
{%- if message.tool_calls | length != 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
{{- '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' -}}
{%- elif message.role == 'tool' -%}{{- message.content | tojson -}}
{%- else -%}{{- message.content | trim -}}{%- endif -%}
{{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|start_header_id|>assistant<|end_header_id|>\\n\\n' -}}{%- endif -%}
"""
TEMPLATES = ("chatml", "qwen2.5", "qwen3", "llama3")


def tokenizer_of(name):
    if name in ("chatml", "llama3"):
        template = LLAMA3 if name == "llama3" else BUILTIN[name]
    else:
        template = json.loads(shared_data(f"tokenizers/{name}_tokenizer_config.json").read_text())["chat_template"]
    return dataclasses.replace(merging_tokenizer(), template=template)


def roll(sampler, task=None, budget=BUDGET, **kwargs):
    rollout = make_rollout(task or ToolTalk(), sampler, speakers=[speaker_of(sampler, budget)], **kwargs)
    try:
        return rollout({}, rollout.init(None, None))
    finally:
        rollout.close()


def check(sampler, samples, asked):
    """Check that completions are trained on once, after the ids that the sampler read, and that nothing else is."""
    found = 0
    for n, s, tokens in answers_of(samples):
        targets, start = samples.targets[n, tokens].tolist(), int(samples.context_len[n, s])
        if samples.branch is None:
            context = samples.tokens[n, :start].tolist()
            np.testing.assert_array_equal(samples.logits_index[n, tokens], start - 1 + np.arange(len(tokens)))
        else:
            context = visible(samples, n, samples.logits_index[n, tokens[0]])
        answer = asked[tuple(context), tuple(targets)]
        assert samples.context_len[n, s] == len(context)
        np.testing.assert_array_equal(samples.logps[n, tokens], answer.logps)
        found += 1
    return found


LONG = [pytest.param(name, 1, 500, marks=pytest.mark.nightly) for name in ("qwen2.5", "llama3")]


@pytest.mark.parametrize(
    "name, candidates, episodes", [*((name, 1, 8) for name in TEMPLATES), ("qwen2.5", 3, 6), *LONG]
)
def test_conversations_with_tools_have_no_drift(name, candidates, episodes):
    """Completions are trained on after exactly the ids that were read; results have no loss."""
    tokenizer = tokenizer_of(name)
    sampler = ToolSampler(tokenizer, "parameters" if name == "llama3" else "arguments")
    samples, _, metrics = roll(sampler, n_examples=episodes, samples=1, candidates=candidates)
    asked = {(tuple(ids), tuple(a.tokens.tolist())): a for ids, _, answers in sampler.asked.values() for a in answers}
    assert metrics["episodes/finished"] == episodes
    assert check(sampler, samples, asked) == sum(len(answers) for *_, answers in sampler.asked.values())
    assert (samples.completion_lengths.sum(1) == (samples.completion_of >= 0).sum(1)).all()
    kinds = [metrics[f"task/{kind}_calls"] for kind in ("valid", "failed", "unreadable", "unknown", "invalid")]
    assert all(kinds[:1]) and (episodes < 100 or all(kinds))
    retokenized, results = 0, 0
    rows = collections.defaultdict(set)
    for n, _, xs in answers_of(samples):
        rows[n] |= {int(i) + 1 for i in samples.logits_index[n, xs]}
    for n, trained in rows.items():
        row = samples.tokens[n, : samples.lengths[n]].tolist()
        other = tokenizer.decode([token for i, token in enumerate(row) if i not in trained])
        results += "count" in other.partition("abba")[2]
        retokenized += tokenizer.encode(tokenizer.decode(row)) != row
    assert results and retokenized


def test_a_later_turn_continues_the_earlier_ids():
    """Every prompt is an earlier prompt, a completion without its stop token, and new text."""
    sampler = ToolSampler(tokenizer_of("qwen2.5"))
    roll(sampler, n_examples=6, samples=1)
    read = {}
    for ids, _, (answer,) in sampler.asked.values():
        content = answer.tokens.tolist()
        read[tuple(ids)] = content[:-1] if content[-1] in sampler.tokenizer.stop_ids else content
    grown = 0
    for ids in read:
        before = [other for other in read if len(other) < len(ids) and ids[: len(other)] == other]
        if before:
            last = max(before, key=len)
            assert list(ids[len(last) : len(last) + len(read[last])]) == read[last]
            new = sampler.tokenizer.decode(ids[len(last) + len(read[last]) :])
            assert new.startswith("<|im_end|>\n<|im_start|>user\n") and new.endswith("<|im_start|>assistant\n")
            grown += "<tool_response>" in new
    assert grown >= 10


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3"])
def test_conversations_are_rendered_as_transformers_renders_them(name):
    PreTrainedTokenizerFast = pytest.importorskip("transformers").PreTrainedTokenizerFast
    tokenizer = tokenizer_of(name)
    theirs = PreTrainedTokenizerFast(tokenizer_object=tokenizer.rust, chat_template=tokenizer.template)
    notes = Functions(Notes())
    turns = [[("write", {"note": 'é "ab" <b>'})], [("count", {"least": 1})], [("count", {}), ("write", {"note": "x"})]]
    turns = turns[:2] if name == "llama3" else turns

    class Scripted(ToolSampler):
        def text(self, rng):
            calls = next(said)
            if isinstance(calls, str):
                return calls
            lines = [json.dumps({"name": tool, self.key: arguments}, ensure_ascii=False) for tool, arguments in calls]
            return lines[0] if name == "llama3" else "\n".join(f"<tool_call>\n{x}\n</tool_call>" for x in lines)

    said = iter([*turns, "done", "bye"])
    messages = [{"role": "system", "content": "S"}, {"role": "user", "content": "U ab"}]
    texts = []

    async def play(ask, example):
        chat = ask.chat(0, system="S", tools=notes)
        reply = await chat.say("U ab")
        for calls in turns:
            assert [(call.name, json.loads(call.arguments)) for call in reply.calls] == calls
            made = [{"type": "function", "function": {"name": tool, "arguments": args}} for tool, args in calls]
            messages.append({"role": "assistant", "content": "", "tool_calls": made})
            results = [await notes.call(tool, args) for tool, args in calls]
            messages.extend({"role": "tool", "content": result} for result in results)
            reply = await chat.results(results)
        messages.append({"role": "assistant", "content": "done"})
        messages.append({"role": "user", "content": "V"})
        await chat.say("V")
        start = chat.said[-1].start
        texts.append(tokenizer.decode(chat.tokens[:start]))
        return Outcome(1)

    sampler = Scripted(tokenizer, "parameters" if name == "llama3" else "arguments")
    roll(sampler, Talk(play), 400, n_examples=1, samples=1)
    rendered = theirs.apply_chat_template(messages, tools=notes.schemas, tokenize=False, add_generation_prompt=True)
    assert texts == [rendered]


def test_forks_of_tools_belong_to_their_candidates():
    sampler = ToolSampler()
    one, _, metrics = roll(sampler, n_examples=6, samples=1, candidates=3)
    order = ToolSampler()
    order.order = np.random.default_rng(1)
    two, _, _ = roll(order, n_examples=6, samples=1, candidates=3, concurrency=2)
    assert_equal_samples(one, two)
    assert metrics["episodes/failed"] == 0 and metrics["task/valid_calls"] > 0


# --------------------------------------------------------------------------------------------------------------- misuse


def test_misuse_is_explained():
    problems = []

    async def play(ask, example):
        chat = ask.chat(0, tools=Functions(Notes()))
        for wrong in (lambda: chat.results(["x"]), lambda: chat.results([]), lambda: chat.results("x")):
            try:
                await wrong()
            except TaskError as error:
                problems.append(str(error))
        try:
            ask.chat(0, tools=[{"name": "f"}])
        except TaskError as error:
            problems.append(str(error))
        return Outcome(1)

    roll(ToolSampler(), Talk(play), n_examples=1, samples=1)
    assert "the last reply has 0 tool calls" in problems[0] and "at least one string" in problems[1] == problems[1]
    assert "must be a list" in problems[2] and "must be envs.tasks.tools.Tools" in problems[3]


def test_a_template_that_cannot_render_results_ends_the_run():
    template = "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}" \
        "{{ m.role + ': ' + m.content + '<|im_end|>' }}{% endfor %}{{ tools or '' }}assistant:"  # fmt: skip
    sampler = ToolSampler(dataclasses.replace(merging_tokenizer(), template=template))
    with pytest.raises(RunError, match="cannot render tools: .*no tools"):
        roll(sampler, n_examples=4, samples=1)


def test_results_are_cut_by_tokens():
    speaker = Speaker(None, merging_tokenizer(), Sampling(), MAX_LENGTH)
    assert speaker.shorten("abab", 2) == "abab" and speaker.shorten("ababab", 2) == "abab"
    assert speaker.shorten("\u20ac\u20ac", 4) == "\u20ac"
    assert len(speaker.shorten("ab" * 10_000, 100)) == 200


def test_the_format_is_a_setting():
    speaker = Speaker(None, tokenizer_of("qwen2.5"), Sampling(), MAX_LENGTH, tool_format="fenced")
    written = list(b'```json\n{"name": "f", "arguments": {}}\n```')
    assert [call.name for call in speaker.calls(written)] == ["f"]
    assert not dataclasses.replace(speaker, tool_format="auto").calls(written)
    assert type(speaker.renderer.parser) is type(parser_of("", "fenced"))


# --------------------------------------------------------------------------------------------------------------- resume


def logged(folder):
    path = folder / "calls.jsonl"
    lines = path.read_text().splitlines() if path.exists() else []
    return collections.Counter(tuple(json.loads(line)) for line in lines)


def test_a_replay_repeats_no_call_and_restores_the_state(tmp_path):
    task = ToolTalk(tmp_path / "calls.jsonl")
    first, _, _ = roll(ToolSampler(), task, n_examples=6, samples=2, journal=tmp_path)
    calls = logged(tmp_path)
    assert len(calls) >= 8 and set(calls.values()) == {1}
    path = path_of(tmp_path, 0)
    lines = path.read_text().splitlines(keepends=True)
    second, _, _ = roll(ToolSampler(), task, n_examples=6, samples=2, journal=tmp_path)
    assert logged(tmp_path) == calls
    assert_equal_samples(first, second)
    path.write_text("".join(lines[: len(lines) // 2]))  # the second half was not yet on disk
    kept = collections.Counter(line[1].startswith("tool") for line in map(json.loads, lines[1 : len(lines) // 2]))
    third, _, _ = roll(ToolSampler(), task, n_examples=6, samples=2, journal=tmp_path)
    assert_equal_samples(first, third)
    assert kept[True] and set(logged(tmp_path)) == set(calls), "notes of later calls depend on the restored ones"


@pytest.mark.nightly
@pytest.mark.long
def test_a_killed_run_repeats_no_recorded_call(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()

    def start(folder):
        command = [sys.executable, "-m", "tests.marl_jax.rollouts.host.tool_run", str(folder)]
        return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()})

    def recorded():
        path = path_of(killed / "journal", 0)
        lines = path.read_text().split("\n")[1:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    assert start(whole).wait(120) == 0
    at_kill = []
    for n in (4, 10, 16):
        process = start(killed)
        deadline = time.monotonic() + 60
        while len(recorded()) < n and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run was to be killed in the middle of its rollout"
        at_kill.append((len(recorded()), logged(killed)))
    assert start(killed).wait(120) == 0
    expected, found = (np.load(folder / "samples.npz") for folder in (whole, killed))
    for name in expected.files:
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    assert set(logged(killed)) == set(logged(whole))
    # A call is repeated only if its result was not on disk when the run was killed.
    notes = [entry for _, call, entry in recorded() if call.startswith("tool") and entry["result"]["kind"] == "valid"]
    repeated = sum(logged(killed).values()) - len(logged(killed))
    in_flight = sum(max(sum(log.values()) - done, 0) for done, log in at_kill)
    assert notes and repeated <= max(in_flight, 3)


class Unforkable(Tools):
    forkable = False
    schemas = Functions(Notes()).schemas


def test_candidates_with_tools_that_cannot_fork_are_refused_before_the_run():
    task = make_task("tools", server="server", tools=())
    config = ConfigDict(dict(task=dict(name="tools"), algo=dict(name="at_grpo")))
    with pytest.raises(ConfigError, match="config.algo.name is 'at_grpo', but must compare complete episodes"):
        TaskSetup.runner(types.SimpleNamespace(config=config, task=task), 1.0, 0, candidates=2)


def test_candidates_with_tools_that_cannot_fork_fail_their_episodes():
    async def play(ask, example):
        async with ToolUse(ask, Unforkable()) as use:
            reply = await ask.chat(0, tools=use.tools).say(example, n=ask.candidates)
            await asyncio.gather(*(use.fork(k).run(None, r) for k, r in enumerate(reply.replies)))
        return Outcome(1)

    _, _, metrics = roll(ToolSampler(), Talk(play), n_examples=1, samples=1, candidates=2)
    assert metrics["episodes/failed/misuse"] == 1
