"""Paths of new users, who follow the docs only: own rewards, teams, games, notebooks, and the console command.

The docs are followed in an empty folder, with the embedded model and fewer steps. `-s` prints lines and minutes.
"""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

import marl_jax
from tests.conftest import ROUGH, published

pytestmark = [pytest.mark.nightly, pytest.mark.long]

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "python.md").read_text()
EXTENDING = (ROOT / "docs" / "extending.md").read_text()
FILE = re.compile(r"```python\n# (\S+\.py)\n(.*?)```", re.DOTALL)
FILES = dict(FILE.findall(PAGE))
CELLS = re.findall(r"```python\n(?!# \S+\.py)(.*?)```", PAGE, re.DOTALL)
COMMANDS = [line.partition(" # ")[0].split() for block in re.findall(r"```bash\n(.*?)```", PAGE, re.DOTALL)
            for line in block.splitlines() if line.startswith("marl-jax")]  # fmt: skip
COMMAND = "import sys; from marl_jax.cli import run; sys.argv[0] = 'marl-jax'; sys.exit(run())"


def quick(text: str) -> str:
    """Use the embedded model and few steps, and log games at each of them."""
    text = text.replace('"games_every": 10', '"games_every": 1').replace('"games": 64', '"games": 16')
    text = text.replace('load("smollm2-135m"', 'load("random:tiny"').replace('"smollm2-135m"', '"tiny"')
    return re.sub(r"steps=(\d+)", lambda match: f"steps={2 + int(match[1]) // 50 + int(match[1]) % 2}", text)


def run(folder: Path, *words: str, **more: str) -> str:
    """Run Python in a folder outside the repository and return its output."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "XLA_FLAGS": ROUGH, "XDG_CACHE_HOME": str(folder / "cache")}
    done = subprocess.run(
        [sys.executable, *words], cwd=folder, env=environment | more, capture_output=True, text=True, timeout=3000
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.fixture
def measured(request, tmp_path):
    """Print the lines that were written and the minutes that the path took."""
    lines, start = [], time.monotonic()
    yield lambda text: lines.extend(line for line in text.splitlines() if line.strip())
    print(f"\n{request.node.name}: {len(lines)} lines, {(time.monotonic() - start) / 60:.1f} minutes")


def test_own_reward_functions_then_the_command_line(tmp_path, measured):
    (tmp_path / "capitals.py").write_text(quick(FILES["capitals.py"]))
    measured(FILES["capitals.py"])
    shown = run(tmp_path, "capitals.py").split()
    assert len(shown) == 2 and all(0 <= float(value) <= 1 for value in shown)
    began = marl_jax.Run(tmp_path / "runs" / "capitals")
    assert began.config.task.params.rewards == tuple(
        f"{tmp_path / 'capitals.py'}:{name}" for name in ("right", "short")
    )
    assert len(COMMANDS) == 2
    for _, *words in COMMANDS:
        run(tmp_path, "-c", COMMAND, *(quick(word) for word in words))
    assert marl_jax.Run(began.workdir).step == 5 > began.metrics[0]["step"]
    assert json.loads((began.workdir / "evaluation.json").read_text())["rows"][0]["part"] == "test"


def test_two_adapters_with_rewards_per_agent(tmp_path, measured):
    (tmp_path / "team.py").write_text(quick(FILES["team.py"]))
    measured(FILES["team.py"])
    run(tmp_path, "team.py")
    team = marl_jax.Run(tmp_path / "runs" / "team")
    assert set(team.config.policies) == {"solver", "checker"} and team.config.model.lora.rank == 16
    rewards = team.metrics[-1]
    assert rewards["reward/solver"] != rewards["reward/checker"] and rewards["reward/team"] == 0


def test_the_other_examples_of_the_page(tmp_path, measured):
    """Generate and chat, SFT, runs, environments and registering, as the cells of one session."""
    (tmp_path / "cells.py").write_text(quick("\n".join(CELLS)))
    measured("\n".join(CELLS))
    run(tmp_path, "cells.py")
    assert "<svg" in (tmp_path / "curves.html").read_text()
    assert marl_jax.Run(tmp_path / "runs" / "loud").config.algo.name == "sft"


def test_an_own_game_with_the_console_command(tmp_path, measured):
    for name, source in FILE.findall(EXTENDING):
        if "nim" in name or name.endswith("plugin.py"):
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            source = "\n".join(line for line in source.splitlines() if "register_" not in line or "nim" in line)
            (tmp_path / name).write_text(source)
            measured(source)
    words = ["--config=my_package/nim_selfplay.py", "--config.plugins=my_package.plugin", "--workdir=nim"]
    run(tmp_path, "-c", COMMAND, *words, "--config.steps=2")
    run(tmp_path, "-c", COMMAND, "--workdir=nim", "--mode=eval", "--config.eval.games=16")
    assert marl_jax.Run(tmp_path / "nim").config.plugins == ("my_package.plugin",)


def test_the_notebook(tmp_path, measured):
    """Its cells run in order in a session with an event loop, as in Jupyter."""
    weights = published("smollm2-135m").parent.parent
    notebook = json.loads((ROOT / "examples" / "notebook.ipynb").read_text())
    cells = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    measured("\n".join(cells))
    (tmp_path / "session.py").write_text(
        "import asyncio, json, pathlib\ncells = json.loads(pathlib.Path('cells.json').read_text())\n"
        "async def session():\n    names = {'__name__': '__main__'}\n"
        "    for cell in cells:\n        exec(compile(cell, 'cell', 'exec'), names)\n"
        "    assert names['loss'][-1] < names['loss'][0] / 2, names['loss']\n"
        "    assert all('matey' in reply for reply in names['after'][:2]), names['after']\n"
        "    assert not any('matey' in reply for reply in names['before']), names['before']\n"
        "asyncio.run(session())\n"
    )
    (tmp_path / "cells.json").write_text(json.dumps(cells))
    run(tmp_path, "session.py", MARL_JAX_WEIGHTS=str(weights), XLA_FLAGS="")


def test_an_installed_clone_in_an_empty_folder(tmp_path, measured):
    """`pip install -e` into a new environment, which borrows the dependencies of this one."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    packages = next((tmp_path / "venv").glob("lib/python*/site-packages"))
    ours = [path for path in sys.path if path.endswith("site-packages")]
    (packages / "dependencies.pth").write_text("\n".join(ours))
    pip = subprocess.run(
        [tmp_path / "venv" / "bin" / "pip", "install", "-q", "--no-deps", "-e", ROOT], capture_output=True, text=True
    )
    if pip.returncode:
        pytest.skip(f"pip cannot build the package here: {pip.stderr[-300:]}")
    folder = tmp_path / "empty"
    (folder / "models").mkdir(parents=True)  # a folder of a common name does not hide the package of that name
    own = ("PYTHONPATH", "JAX_COMPILATION_CACHE_DIR")  # of this run of the tests
    environment = {k: v for k, v in os.environ.items() if k not in own} | {"XDG_CACHE_HOME": str(tmp_path / "c")}
    command = [tmp_path / "venv" / "bin" / "marl-jax", "--config=kuhn", "--config.steps=2", "--config.eval.every=0"]
    measured(" ".join(map(str, command)))
    done = subprocess.run(command, cwd=folder, env=environment | {"XLA_FLAGS": ROUGH}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert marl_jax.Run(folder / "runs" / "kuhn").step == 2 and (tmp_path / "c" / "marl_jax" / "jax").is_dir()
