"""The table of rooms: who may import whom, read from the source of every file."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = ("configs", "envs", "experiments", "marl_jax", "models", "tests", "benchmarks", "launch", "registries")

FILES = ("launch", "registries")  # rooms that are one file

MAY_IMPORT = {
    "registries": set(),
    "launch": {"marl_jax", "registries"},
    "experiments": {"configs", "registries"},
    "configs": {"registries"},
    "models": {"registries"},
    "envs": {"registries"},
    "marl_jax": {"models", "envs", "registries"},
}


def files(room):
    return [ROOT / f"{room}.py"] if room in FILES else sorted((ROOT / room).rglob("*.py"))


def imported_rooms(tree):
    """(room, line) of every import in a module, wherever it stands."""
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


def test_the_check_sees_every_kind_of_import():
    source = "import models.lora as x\ndef f():\n    from envs.games import game\nfrom . import own\nimport jax"
    assert list(imported_rooms(ast.parse(source))) == [("models", 1), ("envs", 3)]


def test_experiments_say_how_they_are_started():
    for file in files("experiments"):
        if file.name != "__init__.py" and file.parent.name == "experiments":
            docstring = ast.get_docstring(ast.parse(file.read_text()))
            assert f"python launch.py --config=experiments/{file.name}" in docstring, file.name


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_every_file_and_public_function_has_a_docstring(room):
    missing = []
    for file in files(room):
        tree = ast.parse(file.read_text())
        if not ast.get_docstring(tree):
            missing.append(f"{file.relative_to(ROOT)}")
        for node in tree.body:
            public = isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_")
            if public and not ast.get_docstring(node):
                missing.append(f"{file.relative_to(ROOT)}:{node.lineno} {node.name}")
    assert not missing, "\n".join(missing)
