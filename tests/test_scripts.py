"""The scripts for pods and clusters: they parse, and every flag, field and file they name exists."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

from configs import defaults
from experiments.tables import evaluated, preference, reasoning, runner
from marl_jax.schema import flags, run_fields, validate
from marl_jax.schema.validate import fields

ROOT = Path(__file__).resolve().parents[1]
SHELL = sorted([*ROOT.glob("scripts/*.sh"), *ROOT.glob("scripts/*.sbatch")])
NAMING = [*SHELL, ROOT / "scripts" / "gke_jobset.yaml", ROOT / "docs" / "pods.md"]
KEEP = ROOT / "scripts" / "keep_running.sh"


def names(paths):
    return [path.name for path in paths]


@pytest.mark.parametrize("script", SHELL, ids=names(SHELL))
def test_bash_can_read_it(script):
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.skipif(shutil.which("shellcheck") is None, reason="shellcheck is not installed")
@pytest.mark.parametrize("script", SHELL, ids=names(SHELL))
def test_shellcheck_has_nothing_to_say(script):
    found = subprocess.run(
        ["shellcheck", "--shell=bash", "-x", "--source-path=SCRIPTDIR", script], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stdout


@pytest.mark.parametrize("file", NAMING, ids=names(NAMING))
def test_the_fields_flags_and_experiments_it_names_exist(file):
    text = file.read_text()
    known = dict(fields(defaults.get_config()))
    for field in re.findall(r"--config\.(?:policies\.[a-z]+\.)?([a-z_.]+)", text):  # a policy may have a separate model
        assert field in known or field.startswith(run_fields.OPEN_GROUPS), f"{file.name} names config.{field}"
    for group, field in re.findall(r"`(mesh|distributed|log|checkpoint)\.([a-z_]+)`", text):
        assert f"{group}.{field}" in known, f"{file.name} names {group}.{field}"
    ours = flags.define(defaults.get_config(), ["launch.py"], ())
    for command in re.findall(r"launch\.py ((?:[^\n]*\\\n)*[^\n]*)", text):
        for flag in re.findall(r"(?<=--)(workdir|mode|profile|topology|compilation_cache|verbose)\b", command):
            assert flag in ours
    for experiment, variant in re.findall(r"(experiments/\w+\.py)(?::([\w.+-]+\w))?", text):
        flags.load_experiment(str(ROOT / experiment), variant or None)
    for script in re.findall(r"scripts/[\w.]+\w", text):
        assert (ROOT / script).is_file(), f"{file.name} names {script}"


def test_the_job_set_asks_for_as_many_chips_as_the_mesh_has():
    job = yaml.safe_load((ROOT / "scripts" / "gke_jobset.yaml").read_text())["spec"]["replicatedJobs"][0]
    spec = job["template"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    rows, columns = map(int, pod["nodeSelector"]["cloud.google.com/gke-tpu-topology"].split("x"))
    chips = spec["parallelism"] * container["resources"]["limits"]["google.com/tpu"]
    ways = [int(word.partition("=")[2]) for word in container["command"] if word.startswith("--config.mesh.")]
    assert rows * columns == chips == ways[0] * ways[1]
    assert {v["mountPath"] for v in container["volumeMounts"]} == {"/mnt/share"}


def keep_running(tmp_path, code, **environment):
    """`keep_running.sh` with a command that counts its starts in a file."""
    command = f"echo x >> starts; {code}"
    return subprocess.Popen([KEEP, "bash", "-c", command], cwd=tmp_path, env={"PATH": "/usr/bin:/bin", **environment})


@pytest.mark.parametrize(
    "code, status, starts",
    [("exit 0", 0, 1), ("exit 2", 2, 1), ("exit 1", 1, 3), ("test $(wc -l < starts) = 2", 0, 2)],
    ids=["well", "refused", "never well", "well the second time"],
)
def test_a_command_is_run_again_until_it_ends_well(tmp_path, code, status, starts):
    assert keep_running(tmp_path, code, ATTEMPTS="3", PAUSE="0").wait(20) == status
    assert len((tmp_path / "starts").read_text().split()) == starts


def test_sigterm_reaches_the_command_and_ends_the_attempts(tmp_path):
    code = "trap 'echo saved > saved; exit 0' TERM; echo x > ready; for i in $(seq 400); do sleep 0.05; done"
    running = keep_running(tmp_path, code, PAUSE="0")
    while not (tmp_path / "ready").exists():
        assert running.poll() is None
        time.sleep(0.01)
    running.send_signal(signal.SIGTERM)
    assert running.wait(20) == 0
    assert (tmp_path / "saved").exists() and len((tmp_path / "starts").read_text().split()) == 1


GPU_RESULTS = ROOT / "scripts" / "gpu_results.sh"


LISTEN = "import os, signal, socket; s = socket.create_server(('127.0.0.1', int(os.environ['PORT']))); signal.pause()"
FAIL = 'case "$*" in *tables.verifier*) exit 1;; esac'


def free_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def gpu_results(tmp_path, *names, then=FAIL, serve=f'exec {sys.executable} -c "{LISTEN}"', **more):
    """`gpu_results.sh` with a python that writes its arguments down, fails where these have a verifier's table, and
    listens where they have a server."""
    fake = tmp_path / "python"
    steps = f'case "$*" in *serve_reward*) {serve};; esac\n{then}'
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\n{steps}\n')
    fake.chmod(0o755)
    files = {"OUT": f"{tmp_path}/out", "QWEN_05B": "half.gguf", "QWEN_15B": "one.gguf"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "PORT": str(free_port()), **files, **more}
    done = subprocess.run([GPU_RESULTS, *names], env=environment, capture_output=True, text=True, timeout=60)
    return done, (tmp_path / "commands").read_text().splitlines() if (tmp_path / "commands").exists() else []


def test_runs_on_a_gpu_have_names(tmp_path):
    done, commands = gpu_results(tmp_path)
    assert (done.returncode, commands) == (2, []) and "serving" in done.stderr
    names = done.stderr.removeprefix("names:").split()
    done, commands = gpu_results(tmp_path, "serving", "nobody")
    assert (done.returncode, commands) == (2, []) and "unknown name nobody" in done.stderr, "before anything is run"
    done, commands = gpu_results(tmp_path, *names)
    assert done.returncode == 1 and "failed: verifier" in done.stderr
    assert len(commands) >= len(names) and any("--config.model.weights=half.gguf" in command for command in commands)
    assert {path.name for path in (tmp_path / "out").glob("*.log")} == {f"{name}.log" for name in names}


def test_debates_are_trained_beside_the_server_of_a_verifier(tmp_path):
    done, (server, debate) = gpu_results(tmp_path, "debate_verifier")
    assert done.returncode == 0, done.stderr
    port = server.split("--config.serve.port=")[1]
    assert "--mode=serve_reward" in server and f"--scorer=http://127.0.0.1:{port}" in debate
    with socket.socket() as free:
        free.bind(("127.0.0.1", int(port)))  # the server is gone
    done, commands = gpu_results(tmp_path, "debate_verifier", serve="exit 1")
    assert done.returncode == 1 and len(commands) == 3 and "the reward server has stopped" in done.stdout


def test_a_run_that_reaches_its_limit_is_evaluated(tmp_path):
    endless = 'case "$*" in *--mode=eval*) exit 0;; esac\ntrap "exit 0" TERM\nwhile true; do sleep 0.1; done'
    done, commands = gpu_results(tmp_path, "gsm8k_single", then=endless, LIMIT="0.5")
    assert done.returncode == 0, done.stderr
    assert ["--mode=eval" in command for command in commands] == [False, True]


def test_the_reasoning_table_on_a_gpu_can_be_stopped(tmp_path):
    fake = tmp_path / "python"
    stop = f"trap 'echo stopped > {tmp_path}/stopped; exit 130' TERM"
    fake.write_text(f'#!/bin/sh\n{stop}\necho "$@" > {tmp_path}/command\nwhile :; do sleep 0.05; done\n')
    fake.chmod(0o755)
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "QWEN_15B": "one.gguf", "OUT": str(tmp_path), "ROWS": "single"}
    script = subprocess.Popen([ROOT / "scripts" / "gpu_reasoning.sh", "--seeds=2"], env=environment)
    while not (tmp_path / "command").exists() or not (tmp_path / "command").read_text().endswith("\n"):
        assert script.poll() is None
        time.sleep(0.01)
    script.send_signal(signal.SIGTERM)
    assert script.wait(20) == 130 and (tmp_path / "stopped").exists()
    _, table, *arguments = (tmp_path / "command").read_text().split()
    session = runner.Session(reasoning.TABLE, [*arguments, "--collect"])
    assert table == "experiments.tables.reasoning" and session.wanted == [("math", "single"), ("code", "single")]
    assert session.folder == tmp_path and session.flags.seeds == 2 and session.flags.jobs == 3
    sets = [run.name.split("/")[-1] for run in session.plan()]
    assert sets == [
        "gsm8k",
        "gsm8k_samples",
        "math500",
        "math500_samples",
        "mbpp",
        "mbpp_samples",
        "humaneval",
        "humaneval_samples",
    ]


def test_the_preference_table_on_a_gpu_runs_in_parts(tmp_path):
    fake = tmp_path / "python"
    listen = f'exec {sys.executable} -c "{LISTEN}"'
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\ncase "$*" in *--mode=serve*) {listen};; esac\n')
    fake.chmod(0o755)
    files = {"OUT": f"{tmp_path}/out", "QWEN_05B": "half.gguf", "QWEN_15B": "one.gguf", "PORT": str(free_port())}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "ROWS": "prompt single", **files}
    command = [ROOT / "scripts" / "gpu_preference.sh"]
    done = subprocess.run([*command, "story", "judge"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    story, server, judged = (tmp_path / "commands").read_text().splitlines()
    assert "--only=story/prompt,story/single" in story and "--config.model.weights=half.gguf" in story
    assert "judge=one.gguf" in server and f"--judge=http://127.0.0.1:{files['PORT']}/v1#judge" in judged
    session = runner.Session(preference.TABLE, judged.split()[2:])
    assert session.flags.collect and len(session.wanted) == 8 and session.flags.seeds == 3
    done = subprocess.run([*command, "nobody"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "unknown name nobody" in done.stderr


@pytest.mark.nightly
@pytest.mark.parametrize(
    "script, names",
    [("gpu_tasks", ("sql", "search", "discovery", "verilog")), ("gpu_flows", ("proposer", "search", "design"))],
)
def test_the_commands_of_tasks_and_flows_on_a_gpu_are_accepted(tmp_path, script, names):
    fake = tmp_path / "python"
    fake.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/commands\ncase "$*" in *roles_prompt*) exit 1;; esac\n')
    fake.chmod(0o755)
    weights = tmp_path / "some.gguf"
    weights.touch()
    files = {"QWEN": str(weights), "QWEN_15B": str(weights), "FLAGS": "--config.eval.games=8 --config.seed=3"}
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "OUT": f"{tmp_path}/out", **files}
    command = [ROOT / "scripts" / f"{script}.sh"]
    done = subprocess.run([*command, *names], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == (script == "gpu_tasks") and ("failed: sql/roles_prompt" in done.stderr) == done.returncode
    launched, tables = 0, []
    for line in (tmp_path / "commands").read_text().splitlines():
        first, *words = line.split()
        if first == "-m":
            tables.append(words[0])
            continue
        parsed = flags.parse([first, *words], ("train", "eval", "search"))
        validate.check(parsed.config)
        assert parsed.config.eval.games == 8 and parsed.config.seed == 3 and parsed.config.model.weights == str(weights)
        launched += 1
    assert launched == {"gpu_tasks": 24, "gpu_flows": 15}[script]
    assert tables == ["experiments.tables.evaluated"] * {"gpu_tasks": 4, "gpu_flows": 2}[script]
    done = subprocess.run([*command, "nobody"], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and "unknown name nobody" in done.stderr
    embedded = {"MODEL": "", "PATH": environment["PATH"], "OUT": f"{tmp_path}/out"}
    subprocess.run([*command, "search"], env=embedded, capture_output=True, timeout=60)
    form = (tmp_path / "commands").read_text().splitlines()[-1 if script == "gpu_flows" else -2].split()[1]
    assert form.endswith(":gsm8k" if script == "gpu_flows" else ":at_grpo_shared")


def test_evaluations_of_a_folder_are_a_table(tmp_path, capsys):
    row = dict(opponent="self", games=64, success=0.25, success_low=0.16, success_high=0.37, reward=0.3,
               reward_low=0.2, reward_high=0.4, failed=1)  # fmt: skip
    for step, name in enumerate(("single", "single_grpo")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "evaluation.json").write_text(json.dumps({"step": step, "rows": [row]}))
        os.utime(tmp_path / name / "evaluation.json", (step, step))
    metrics = {"step": 1, "completions": 64, "completion_length": 8.0}
    (tmp_path / "single_grpo" / "metrics.jsonl").write_text(json.dumps(metrics) + "\n")
    evaluated.main([str(tmp_path)])
    *_, before, after = capsys.readouterr().out.splitlines()
    assert before == "| single | 0 | 0 | 64 | 25.0 [16.0, 37.0] | 0.300 [0.200, 0.400] | 1 |"
    assert after.startswith("| single_grpo | 1 | 512 | 64 |") and after in (tmp_path / "evaluated.md").read_text()
    (tmp_path / "single" / "evaluation.json").write_text("{")
    with pytest.raises(SystemExit, match="is not JSON"):
        evaluated.main([str(tmp_path)])
    with pytest.raises(SystemExit, match="has no run with an evaluation.json"):
        evaluated.main([str(tmp_path / "single")])
