"""Which package may import which, read from the source of every file."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.quick

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("configs", "envs", "experiments", "marl_jax", "models", "tests", "benchmarks", "launch", "registries")

MAY_IMPORT = {
    "registries": set(),
    "launch": {"marl_jax", "registries"},
    "experiments": {"configs"},
    # The fields of a run, with their defaults and rules, are written once, in `marl_jax`. Configs are built from them,
    # and only from those modules of it that need no JAX (`LIGHT`).
    "configs": {"marl_jax", "registries"},
    "models": {"registries"},
    "envs": {"registries"},
    "marl_jax": {"models", "envs", "registries"},
}

# Inside marl_jax imports go down only; a layer may import its own files and those of lower layers.
LAYERS = (
    "__init__", "api", "cli", "modes", "web", "dryrun", "interactive", "evaluation", "setup", "schema", "algorithms",
    "serving", "rollouts", "learning", "agents", "sampling", "devices", "samples", "running", "fields", "errors",
)  # fmt: skip

LIGHT = (
    "marl_jax.fields",
    "marl_jax.learning.settings",
    "marl_jax.schema.run_fields",
    *(f"marl_jax.algorithms.{file.stem}" for file in (ROOT / "marl_jax/algorithms").glob("*_config.py")),
)


def files(room):
    return [ROOT / f"{room}.py"] if room in ("launch", "registries") else sorted((ROOT / room).rglob("*.py"))


def imported_rooms(tree):
    """Yield (room, line) of every import in a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""] if not node.level else []
        else:
            continue
        for name in names:
            if name.split(".")[0] in ROOMS:
                yield name.split(".")[0], node.lineno


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_the_table_allows(room):
    assert files(room)
    against = [
        f"{file.relative_to(ROOT)}:{line} imports {other}"
        for file in files(room)
        for other, line in imported_rooms(ast.parse(file.read_text()))
        if other != room and other not in MAY_IMPORT[room]
    ]
    assert not against, "\n".join(against)


def test_configs_import_the_light_modules_only():
    """`from marl_jax import fields` counts as marl_jax.fields."""
    for file in files("configs"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("marl_jax"):
                for alias in node.names:
                    assert {node.module, f"{node.module}.{alias.name}"} & set(LIGHT), f"{file.name}:{node.lineno}"
            elif isinstance(node, ast.Import):
                assert not any(alias.name.startswith("marl_jax") for alias in node.names), f"{file.name}:{node.lineno}"


def test_a_config_is_made_without_jax():
    code = "import sys\nfrom experiments import plan_path\nplan_path.get_config('sft')\nassert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


def layer(module):
    return (module.split(".") + [""])[1]


def marl_jax_imports():
    """(file, layer, layer that is imported, line) of every import inside marl_jax."""
    for file in files("marl_jax"):
        own = layer("marl_jax." + file.relative_to(ROOT / "marl_jax").as_posix().removesuffix(".py").replace("/", "."))
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("marl_jax"):
                for alias in node.names:
                    yield file, own, layer(f"{node.module}.{alias.name}"), node.lineno


def test_imports_inside_marl_jax_go_down_only():
    against, seen = [], set()
    for file, own, other, line in marl_jax_imports():
        seen |= {own, other}
        allowed = LAYERS.index(own) <= LAYERS.index(other)
        if not allowed:
            against.append(f"{file.relative_to(ROOT)}:{line}: {own} imports {other}")
    assert not against, "\n".join(against)
    assert seen == set(LAYERS), "a folder without a place in the layers, or a layer without files"


def module_name(file):
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def test_there_are_no_circular_imports():
    """Imports inside functions and for type checking count too."""
    modules = {module_name(file): file for room in ("marl_jax", "models", "envs") for file in files(room)}
    edges = {}
    for name, file in modules.items():
        found = edges.setdefault(name, set())
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and not node.level:
                full = [f"{node.module}.{alias.name}" for alias in node.names]
                found |= {one if one in modules else node.module for one in full} & modules.keys() - {name}
    while leaves := [name for name, found in edges.items() if not found]:
        edges = {name: found - set(leaves) for name, found in edges.items() if name not in leaves}
    assert not edges, f"these modules import each other, directly or through others: {sorted(edges)}"


def test_the_check_sees_every_kind_of_import():
    source = "import models.lora as x\ndef f():\n    from envs.games import game\nfrom . import own\nimport jax"
    assert list(imported_rooms(ast.parse(source))) == [("models", 1), ("envs", 3)]


def test_experiments_say_how_they_are_started():
    for file in files("experiments"):
        if file.name != "__init__.py" and file.parent.name == "experiments":
            docstring = ast.get_docstring(ast.parse(file.read_text()))
            assert f"python launch.py --config=experiments/{file.name}" in docstring, file.name
