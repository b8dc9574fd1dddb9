"""The journal: what does not follow from seeds is read on a replay, and a killed run equals an uninterrupted one."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.tasks.task import Outcome
from marl_jax.rollouts.host.journal import Journal, JournalError, discard_before, path_of
from marl_jax.running.garbage import NEW_OBJECTS, rare_collections
from tests.conftest import examples
from tests.envs.tasks import verifiers
from tests.marl_jax.tiny_host import FakeSampler, assert_equal_samples, make_rollout

pytestmark = pytest.mark.quick


def roll(task, folder, sampler=None, **kwargs):
    rollout = make_rollout(task, sampler, journal=folder, **kwargs)
    try:
        return rollout({}, rollout.init(None, None))
    finally:
        rollout.close()


def lines(folder):
    (path,) = folder.glob("*.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]


# ---------------------------------------------------------------------------------------------------- the file


def test_an_entry_is_on_disk_before_the_episode_continues(tmp_path, monkeypatch):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: (synced.append(fd), real(fd)))

    async def write():
        for i in range(3):
            before = len(synced)
            await journal.write("0.0", f"call#{i}", {"result": i})
            assert len(synced) > before and json.loads(path.read_text().splitlines()[-1]) == [
                "0.0", f"call#{i}", {"result": i}
            ]  # fmt: skip

    path = tmp_path / "deep" / "j.jsonl"
    journal = Journal(path, {"step": 1})
    asyncio.run(write())
    journal.close()
    again = Journal(path, {"step": 1})
    assert [again.get("0.0", f"call#{i}") for i in range(4)] == [{"result": 0}, {"result": 1}, {"result": 2}, None]
    again.close()


def test_entries_that_come_together_are_synced_together(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "j.jsonl", 0)
    appended = []
    lines = journal._lines
    real = lines._append
    monkeypatch.setattr(lines, "_append", lambda text, s: (appended.append(text), time.sleep(0.05), real(text, s)))

    async def write():
        await asyncio.gather(*(journal.write(str(i), "x", i) for i in range(50)))

    asyncio.run(write())
    journal.close()
    assert len(appended) <= 3 and "".join(appended).count("\n") == 50


def test_notes_are_on_disk_after_a_flush_and_one_that_cannot_be_written_is_reported_there(tmp_path, monkeypatch):
    async def write(journal):
        for i in range(5):
            journal.note(f"{i}.0", "end", {"failed": None})
        await journal.flush()
        return len((tmp_path / "j.jsonl").read_text().splitlines())

    journal = Journal(tmp_path / "j.jsonl", 0)
    assert asyncio.run(write(journal)) == 6  # after the header
    monkeypatch.setattr(journal._lines, "_append", lambda *_: (_ for _ in ()).throw(OSError(28, "no space left")))
    with pytest.raises(JournalError, match="no space left"):
        asyncio.run(write(journal))
    journal.close()


def test_searches_for_garbage_are_rare_in_a_rollout_and_as_before_behind_it(tmp_path):
    before, seen = gc.get_threshold(), []

    async def play(ask, example):
        seen.append(gc.get_threshold()[0])
        raise RuntimeError("no")

    with rare_collections():  # as of a server
        roll(play, tmp_path)
        assert gc.get_threshold()[0] == NEW_OBJECTS
    roll(play, tmp_path / "alone")
    assert set(seen) == {NEW_OBJECTS} and gc.get_threshold() == before and before[0] < NEW_OBJECTS


@settings(deadline=None, max_examples=examples(30))
@given(cut=st.integers(0, 200))
def test_whatever_is_cut_off_the_whole_lines_before_it_count(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("cut") / "j.jsonl"
    entries = [(f"{i}.0", "x", {"result": "é" * i}) for i in range(5)]

    async def write(journal, entries):
        for entry in entries:
            await journal.write(*entry)
        journal.close()

    asyncio.run(write(Journal(path, {"step": 1}), entries))
    text = path.read_bytes()
    path.write_bytes(text[: len(text) - cut])
    whole = text[: len(text) - cut].count(b"\n")
    journal = Journal(path, {"step": 1})
    assert len(journal.entries) == max(whole - 1, 0)
    asyncio.run(write(journal, entries[len(journal.entries) :]))
    assert path.read_bytes() == text, "and it is continued behind them"


def test_a_journal_of_another_rollout_is_not_used(tmp_path, caplog):
    path = tmp_path / "j.jsonl"
    journal = Journal(path, {"seed": 0})
    asyncio.run(journal.write("0.0", "x", 1))
    journal.close()
    other = Journal(path, {"seed": 1})
    assert other.get("0.0", "x") is None and "belongs to another rollout" in caplog.text
    other.close()


def test_old_journals_are_removed_with_a_checkpoint(tmp_path):
    for step in range(4):
        for process in range(2):
            Journal(path_of(tmp_path, step, process), step).close()
    discard_before(tmp_path, 3, process=0)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        [path_of(tmp_path, 3, 0).name, *(path_of(tmp_path, s, 1).name for s in range(4))]
    )


# ---------------------------------------------------------------------------------------------------- replays


def test_a_replay_reads_results_and_calls_nobody(tmp_path):
    calls = []

    async def play(ask, example):
        async def roll_dice():
            calls.append(example)
            return {"dice": len(calls)}

        dice = await ask.record("dice", roll_dice())
        process = await ask.verify(verifiers.process)
        reply = await ask.chat(0).say(f"{dice['dice']} {process}")
        reply.reward(team=dice["dice"])
        return Outcome(1)

    first, state, _ = roll(play, tmp_path)
    assert len(calls) == 6
    second, again, _ = roll(play, tmp_path)
    assert len(calls) == 6 and state == again
    assert_equal_samples(first, second)


def test_failures_and_time_outs_are_repeated_and_finished_episodes_have_no_limit(tmp_path):
    hang = True

    async def play(ask, example):
        await ask.chat(0).say(example)
        if example == "train 3 ab" and hang:
            await asyncio.sleep(3600)
        return Outcome(1)

    class Slow(FakeSampler):
        async def answer(self, *args, **kwargs):
            await asyncio.sleep(1.2)
            return await super().answer(*args, **kwargs)

    first, _, metrics = roll(play, tmp_path, n_examples=7, samples=1, time_limit=1)
    assert metrics["episodes/failed/timeout"] == 1
    hang = False
    second, _, again = roll(play, tmp_path, Slow(), n_examples=7, samples=1, time_limit=1)
    assert again["episodes/failed/timeout"] == 1 and again["episodes/failed"] == 1
    assert_equal_samples(first, second)


def test_without_a_journal_nothing_is_written_and_everything_is_played(tmp_path):
    async def play(ask, example):
        assert await ask.verify(verifiers.double, 1) == 2
        return Outcome(1)

    _, _, metrics = roll(play, None)
    assert metrics["episodes/finished"] == 6 and not list(tmp_path.iterdir())


def test_the_rollout_forgets_journals_that_a_checkpoint_made_useless(tmp_path):
    async def play(ask, example):
        return Outcome(1)

    rollout = make_rollout(play, journal=tmp_path)
    state = rollout.init(None, None)
    for _ in range(3):
        _, state, _ = rollout({}, state)
    rollout.checkpointed(2)
    rollout.close()
    assert [p.name for p in tmp_path.iterdir()] == ["step_00000002.process_0.jsonl"]


# ---------------------------------------------------------------------------------------------------- kill -9


def start(folder):
    command = [sys.executable, "-m", "tests.marl_jax.rollouts.host.host_run", str(folder)]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": os.getcwd()})


def entries(folder, step):
    path = path_of(folder / "journal", step)
    return path.read_bytes().count(b"\n") - 1 if path.exists() else 0


@pytest.mark.nightly
@pytest.mark.long
def test_a_killed_run_resumes_to_what_the_uninterrupted_one_gives(tmp_path):
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    whole.mkdir()
    killed.mkdir()
    uninterrupted = start(whole)
    for n in (2, 20):
        process = start(killed)
        deadline = time.monotonic() + 60
        while entries(killed, 1) < n and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the run was to be killed in the middle of its second rollout"
        assert entries(killed, 1) >= n and not (killed / "samples_1.npz").exists()
    assert start(killed).wait(60) == 0 and uninterrupted.wait(60) == 0
    for step in range(2):
        expected, found = (np.load(folder / f"samples_{step}.npz") for folder in (whole, killed))
        assert expected.files == found.files
        for name in expected.files:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=f"{step} {name}")
    assert (expected[".rewards"] == -1).any() and (expected[".rewards"] > 0).any(), "some calls timed out, some did not"
    assert entries(killed, 1) == entries(whole, 1) == 6 * (4 * 2 + 1)
