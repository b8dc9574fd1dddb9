"""Lock files satisfy the requirements, and importing opens no connections."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
SEPARATE = ("autogen", "llamaindex")
LOCKS = sorted(path.stem for path in ROOT.glob("locks/*.lock"))

IMPORTS = """
import importlib, pkgutil, socket, sys

def refuse(*args, **kwargs):
    raise SystemExit(f"a connection was asked for while importing {name}: {args}")

socket.socket.connect = socket.socket.connect_ex = socket.create_connection = socket.getaddrinfo = refuse
name, count = "launch", 0
importlib.import_module(name)
for package in ("configs", "envs", "experiments", "marl_jax", "models"):
    for module in pkgutil.walk_packages(importlib.import_module(package).__path__, package + "."):
        name = module.name
        if not name.endswith("__main__"):
            importlib.import_module(name)
            count += 1
print(count)
"""


def requirements(name: str) -> list[Requirement]:
    """Return what a lock file must satisfy: the base packages, an extra, or a file for a separate environment."""
    if name in SEPARATE:
        return read(f"requirements-{name}.txt")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extra = [] if name == "base" else project["optional-dependencies"][name]
    return read("requirements.txt") + [Requirement(line) for line in extra]


def read(file: str) -> list[Requirement]:
    """Return the lines of a requirements file."""
    lines = (line.partition(" #")[0].partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
    return [Requirement(line) for line in lines if line]


def locked(name: str) -> dict[str, list[str]]:
    """From the name of a package to its versions in a lock file; there may be one per interpreter."""
    found: dict[str, list[str]] = {}
    for package, version in re.findall(r"^([\w.-]+)==(\S+)", (ROOT / "locks" / f"{name}.lock").read_text(), re.M):
        found.setdefault(_canonical(package), []).append(version)
    return found


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.quick
@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_file_fits_its_requirements_and_has_a_hash_for_everything(name):
    have = locked(name)
    for requirement in requirements(name):
        versions = have.get(_canonical(requirement.name))
        assert versions, f"{requirement} is not in locks/{name}.lock; run `make lock`"
        assert all(requirement.specifier.contains(version) for version in versions), (requirement, versions)
    text = (ROOT / "locks" / f"{name}.lock").read_text()
    blocks = re.split(r"^(?=[\w.-]+==)", text, flags=re.M)[1:]
    assert blocks and all("--hash=sha256:" in block for block in blocks)
    assert "://" not in text


@pytest.mark.quick
def test_every_locked_package_has_a_licence_in_the_list():
    text = (ROOT / "docs" / "licences.md").read_text()
    listed = {_canonical(name) for name in re.findall(r"^\| ([\w.-]+) \| [\d.]", text, re.M)}
    for requirement in requirements("test"):
        assert _canonical(requirement.name) in listed, f"{requirement.name}: run `make lock licences`"
    assert "not stated" not in text


@pytest.mark.nightly
def test_importing_asks_for_no_connection():
    ran = subprocess.run([sys.executable, "-c", IMPORTS], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert int(ran.stdout.split()[-1]) > 200


@pytest.mark.nightly
def test_a_wheel_is_refused_with_the_supported_way_to_install(tmp_path):
    """A stand-in for setuptools runs `setup.py` without building anything."""
    (tmp_path / "setuptools" / "command").mkdir(parents=True)
    (tmp_path / "setuptools" / "__init__.py").write_text(
        "def setup(cmdclass):\n    cmdclass['bdist_wheel'](None).run()\n"
    )
    (tmp_path / "setuptools" / "command" / "__init__.py").touch()
    (tmp_path / "setuptools" / "command" / "bdist_wheel.py").write_text(
        "class bdist_wheel:\n    def __init__(self, dist): pass\n    def run(self): raise AssertionError('built')\n"
    )
    command = [sys.executable, str(ROOT / "setup.py")]
    found = subprocess.run(command, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, timeout=60)
    assert found.returncode and found.stderr == "marl_jax is installed from a clone: pip install -e .\n"
