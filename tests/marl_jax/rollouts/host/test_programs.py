"""Episodes that are other programs: what they say becomes samples, and what goes wrong in one costs that one."""

import json
from pathlib import Path

import numpy as np
import pytest
from ml_collections import ConfigDict

from configs import defaults
from envs.tasks.data import from_list
from envs.tasks.program.task import AgentProgram
from marl_jax import setup as setups
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import train
from marl_jax.rollouts.host.conversation import Speaker
from marl_jax.running.metrics import read_json_lines
from marl_jax.sampling.settings import Sampling
from marl_jax.schema import validate
from marl_jax.serving.sessions.episodes import episode_server
from tests.marl_jax import tiny_task
from tests.marl_jax.tiny_host import FakeSampler, answers_of, assert_equal_samples, make_rollout, visible

pytestmark = pytest.mark.long

PROGRAM = Path(__file__).parent / "agent_program.py"
ROLES = ("solver", "verifier")


class Rows(AgentProgram):
    """The program of these tests on given examples."""

    @classmethod
    def of(cls, *rows, preload=False):
        task = cls(str(PROGRAM), ROLES, preload=preload)
        vars(task)["_parts"] = {part: from_list(list(rows), part) for part in ("train", "validation", "test")}
        return task


def rollout_of(*rows, sampler=None, preload=False, **settings):
    """A rollout in which every row is an example of the first step."""
    settings = {"n_examples": len(rows), "samples": 1, "server": episode_server, "concurrency": 4, **settings}
    speakers = [
        Speaker(sampler, sampler.tokenizer, Sampling(max_new_tokens=8), 4000, policy=i, number=i) for i in range(2)
    ]
    task = Rows.of(*rows, preload=preload)
    return make_rollout(task, sampler, speakers=speakers, seating=lambda seat, turn: seat, **settings)


def roll(*rows, sampler=None, **settings):
    rollout = rollout_of(*rows, sampler=sampler or FakeSampler(), **settings)
    try:
        return rollout({}, rollout.init(None, None))
    finally:
        rollout.close()


def talk(rounds=2):
    return {"do": "talk", "question": "abba", "rounds": rounds}


# ------------------------------------------------------------------------------------------------ programs as samples


@pytest.mark.parametrize("time_order", [False, True])
def test_every_answer_is_trained_on_once_behind_what_the_sampler_read(time_order):
    sampler = FakeSampler()
    rows = [talk(2), talk(1), {"do": "fresh", "question": "x", "rounds": 2}, {"do": "parallel", "question": "y"}]
    samples, state, metrics = roll(*rows, sampler=sampler, time_order=time_order)
    assert metrics["episodes/finished"] == 4 and state["step"] == 1 and metrics["completions"] == 4 + 2 + 3 + 4
    asked = [(ids, a.tokens.tolist(), a.logps.tolist()) for ids, _, (a,) in sampler.asked.values()]
    found = []
    for n, s, at in answers_of(samples):
        found.append((visible(samples, n, samples.logits_index[n, at[0]]), samples.targets[n, at].tolist(),
                      samples.logps[n, at].tolist()))  # fmt: skip
        assert samples.loss_weights[n, s] == 1 and samples.policy[n] == samples.seat[n, s]
    assert sorted(found) == sorted(asked)


def test_a_conversation_of_a_program_is_one_row_for_each_role():
    samples, _, _ = roll(talk(3))
    used = samples.completion_lengths > 0
    assert used.sum(1).tolist()[:2] == [3, 3] and used.sum() == 6
    assert samples.seat[:2, 0].tolist() == [0, 1] == samples.policy[:2].tolist()
    assert samples.turn[:2, :3].tolist() == [[0, 2, 4], [1, 3, 5]]  # they speak in turns


def test_rewards_are_the_teams_on_the_last_answer_and_a_roles_on_its_own():
    samples, _, metrics = roll(talk(1))
    assert samples.rewards[0, 0].tolist() == [0, 0]  # of the solver's answer, to solver and verifier
    team = metrics["reward/team"]
    np.testing.assert_allclose(samples.rewards[1, 0], [team, team + 0.25])
    assert 0 <= team <= 1 and metrics["success"] == pytest.approx(team) and metrics["reward/verifier"] == 0.25
    assert metrics["task/rounds"] == 1


def test_ppo_sees_answers_in_the_order_in_which_they_were_given():
    """The solver has no history, so each of its completions is a separate conversation, which starts at position 0."""
    samples, _, _ = roll({"do": "fresh", "question": "x", "rounds": 3}, talk(1), time_order=True)
    (fresh,) = [b for b in range(2) if (samples.completion_at[:, b] < samples.completion_lengths.size - 1).sum() >= 4]
    order = samples.completion_at[:4, fresh]
    n, s = np.divmod(order, samples.completion_lengths.shape[1])
    assert samples.turn[n, s].tolist() == [0, 1, 2, 3] and samples.seat[n, s].tolist() == [0, 0, 0, 1]
    assert samples.ends[n, s].tolist() == [False, False, False, True]
    texts = [bytes(t for t in samples.tokens[row] if t < 256).decode("utf-8", "replace") for row in n[:3]]
    assert all(f"x {i}" in text for i, text in enumerate(texts))


def test_episodes_of_an_example_are_compared_with_each_other():
    samples, _, metrics = roll(talk(1), talk(2), n_examples=2, samples=3)
    assert metrics["episodes/finished"] == 6 and samples.group_size == 3
    used = samples.completion_lengths > 0
    assert set(samples.member[used].tolist()) == {0, 1, 2} and len(set(samples.group[used].tolist())) == 2


def test_a_repeated_rollout_gives_the_same_samples_also_where_programs_ask_side_by_side():
    rows = [{"do": "parallel", "question": f"q{i}"} for i in range(2)] + [talk(1)]
    one, two = (roll(*rows, sampler=FakeSampler(np.random.default_rng(seed)))[0] for seed in (0, 1))
    assert_equal_samples(one, two.replace(turn=one.turn))  # which of three was first is a matter of luck


def test_a_program_may_ask_for_candidates_and_reward_each():
    sampler = FakeSampler()
    samples, _, metrics = roll({"do": "choices", "question": "ab"}, sampler=sampler, candidates=3)
    assert metrics["completions"] == 3 and samples.branch is not None
    (answers,) = [answers for _, _, answers in sampler.asked.values()]
    texts = [sampler.tokenizer.decode(a.tokens.tolist(), skip_special=True) for a in answers]
    expected = [sum(ord(c) < 80 for c in text) / max(len(text), 1) for text in texts]
    np.testing.assert_allclose(samples.rewards[0, :3, 0], expected, rtol=1e-6)


# ---------------------------------------------------------------------------------------------------------- failures


def gone(pid):
    """Whether a process has ended: a zombie has, too."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


@pytest.mark.nightly_for("False")
@pytest.mark.parametrize("preload", [False, True])
def test_what_goes_wrong_in_a_program_costs_its_episode(preload, tmp_path, caplog):
    reasons = {
        "crash": "program_failed", "killed": "program_failed", "idle": "program_no_answer",
        "silent": "program_no_reward", "misspelt": "program_no_reward", "flood": "program_no_reward",
        "hang": "timeout",
    }  # fmt: skip
    rows = [{"do": do, "pids": str(tmp_path / "pids")} for do in reasons]
    sampler = FakeSampler()
    limits = dict(time_limit=4.0 if preload else 6.0, concurrency=8)
    samples, _, metrics = roll(*rows, talk(1), sampler=sampler, preload=preload, **limits)
    for reason in set(reasons.values()):
        assert metrics[f"episodes/failed/{reason}"] == list(reasons.values()).count(reason)
    assert metrics["episodes/finished"] == 1 and (samples.completion_lengths > 0).sum() == 2
    assert "failed (program_" in caplog.text
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2 and all(map(gone, pids)), "a program that is too slow is killed with its children"


@pytest.mark.nightly
def test_an_interrupted_rollout_is_repeated_and_what_failed_is_not_tried_again(tmp_path):
    rows = [talk(2), {"do": "hang", "pids": str(tmp_path / "pids")}, talk(1)]
    one, _, _ = roll(*rows, journal=tmp_path / "journal", time_limit=3.0)
    (tmp_path / "pids").unlink()
    two, _, metrics = roll(*rows, journal=tmp_path / "journal", time_limit=0.01)  # those that were in time are again
    assert_equal_samples(one, two)
    assert metrics["episodes/failed/timeout"] == 1 and not (tmp_path / "pids").exists()


@pytest.mark.parametrize("preload", [False, True])
def test_a_process_that_a_program_leaves_behind_is_killed(preload):
    _, _, metrics = roll({"do": "leaves"}, preload=preload)
    assert metrics["reward/team"] == 1.0 and gone(int(metrics["task/child"]))


def test_a_sampler_that_fails_ends_the_run():
    class Broken(FakeSampler):
        running = True

        async def answer(self, *args, **kwargs):
            self.running = False
            raise RuntimeError("out of memory")

    with pytest.raises(RunError, match="the sampler of solver, verifier failed"):
        roll(talk(1), sampler=Broken())


def test_a_task_that_does_not_serve_has_no_sessions():
    async def task(ask, example):
        async with ask.session():
            pass

    rollout = make_rollout(task)
    _, _, metrics = rollout({}, rollout.init(None, None))
    rollout.close()
    assert metrics["episodes/failed/misuse"] == 6


# -------------------------------------------------------------------------------------------------------- whole runs


def config_of(algorithm, data):
    config = tiny_task.get_config(algorithm)
    config.steps = 2
    defaults.use_task(config, "program", program=str(PROGRAM), roles=ROLES, train=str(data))
    config.task.update(dict(n_episodes=4, max_new_tokens=6, max_num_seqs=8, max_length=512))
    return config


@pytest.mark.nightly_for("ppo")
@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_policies_are_trained_through_the_server(algorithm, tmp_path):
    """Two policies by their models, each an adapter or a copy; the learner finds the log-probs that were recorded."""
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(talk(1) | {"question": f"q {i}"}) + "\n" for i in range(12)))
    config = config_of(algorithm, data)
    if algorithm == "grpo":
        config.policies = ConfigDict({role: defaults.policy() for role in ROLES})
        config.agents = ConfigDict({role: role for role in ROLES})
        config.model.lora.rank = 2
    validate.check(config)
    train.train(config, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1, 2]
    for row in rows:
        assert row["episodes/finished"] == 4 and row["completions_trained"] == row["completions"] == 8
        assert row["logprob_diff"] < 1e-5 and row["skipped"] == 0 and row["grad_norm"] > 0


def test_settings_without_meaning_are_refused(tmp_path):
    for params, message in (
        (dict(program="nowhere.py"), "there is no file"), (dict(program="no-such-command x"), "there is no command"),
        (dict(program="'"), "No closing quotation"), (dict(program=str(PROGRAM), roles=("a", "a")), "different names"),
        (dict(program=str(PROGRAM), concurrency=0), ">= 1"), (dict(program=" "), "must be a Python file"),
        (dict(program=str(PROGRAM), test="x.jsonl"), "set without train"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=message):
            AgentProgram(**params)
    config = config_of("grpo", tmp_path / "data.jsonl")
    config.task.params.program = "nowhere.py"
    with pytest.raises(ConfigError, match="there is no file"):
        validate.check(config)
    config = config_of("grpo", "")
    config.policies = ConfigDict({name: defaults.policy() for name in ("first", "later")})
    config.agents = ConfigDict({"all": "first", "all@1": "later"})
    with pytest.raises(ConfigError, match="to several policies, but must assign it to one"):
        setups.make(config)
