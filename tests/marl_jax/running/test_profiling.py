"""A trace of a run: it is there, and names the phases of the loop and the parts of the programs."""

import gzip
import json

import jax
import pytest

from marl_jax.modes import train
from marl_jax.running.metrics import read_json_lines
from marl_jax.running.profiling import Clock, ProfilerTrace
from tests.marl_jax import tiny_run

PHASES = ("reshard", "rollout", "update", "evaluation")
PARTS = ("prompt", "answer", "rules", "advantages", "forward_backward", "optimizer")


@pytest.fixture(scope="module")
def workdir(tmp_path_factory):
    """A run with a trace, on a mesh."""
    folder = tmp_path_factory.mktemp("run")
    config = tiny_run.get_config()
    config.update(dict(steps=4))
    config.log.profile = True
    config.eval.every = 1
    config.mesh.update(dict(data=1, fsdp=2, sampling="replicated"))
    jax.config.update("jax_disable_most_optimizations", True)
    train.train(config, folder)
    jax.config.update("jax_disable_most_optimizations", False)
    return folder


@pytest.mark.nightly
def test_the_trace_names_the_phases(workdir):
    (trace,) = (workdir / "profile").rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]
    names = {event.get("name") for event in events}
    assert set(PHASES) <= names
    steps = {int(event["args"]["step_num"]) for event in events if "step_num" in event.get("args", {})}
    assert steps == {1, 2, 3}


@pytest.mark.nightly
@pytest.mark.nightly
def test_the_parts_of_the_programs_have_names_too(workdir):
    (protocol,) = (workdir / "profile").rglob("*.xplane.pb")  # what TensorBoard reads; holds the programs
    content = protocol.read_bytes()
    for part in PARTS:
        assert f"/{part}/".encode() in content, part


@pytest.mark.nightly
def test_seconds_of_every_phase_are_metrics(workdir):
    row = read_json_lines(workdir / "metrics.jsonl")[-1]
    assert {f"seconds/{phase}" for phase in PHASES} <= row.keys()
    assert 0 < row["seconds/reshard"] < row["seconds/rollout"] + row["seconds/update"] + row["seconds/reshard"]


def test_a_clock_adds_up_what_a_phase_takes():
    clock = Clock()
    for phase in ("rollout", "update", "update"):
        with clock.phase(phase):
            pass
    found = clock.metrics({"games": 4, "tokens": 8})
    assert set(found) == {"seconds/rollout", "seconds/update", "games_per_s", "tokens_per_s"}
    assert found["games_per_s"] == pytest.approx(4 / (found["seconds/rollout"] + found["seconds/update"]))


@pytest.mark.parametrize("start, steps, traced", [(0, 9, [2, 3, 4]), (5, 9, [6, 7, 8]), (0, 2, [0, 1]), (8, 9, [8])])
def test_a_few_steps_are_traced_however_short_the_run(tmp_path, monkeypatch, start, steps, traced):
    state = {"on": False}
    monkeypatch.setattr(jax.profiler, "start_trace", lambda folder: state.update(on=True))
    monkeypatch.setattr(jax.profiler, "stop_trace", lambda: state.update(on=False))
    trace, seen = ProfilerTrace(tmp_path, start, steps), []
    for step in range(start, steps):
        with trace.step(step):
            seen += [step] if state["on"] else []
    trace.close()
    assert seen == traced and not state["on"]
