"""Registries: entries imported when asked for, entry points, plugins, and what is refused."""

import importlib.metadata
import re
import sys

import pytest

from registries import Registry, load_plugins

pytestmark = pytest.mark.quick


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that can be imported and forgotten again."""

    def write(name: str, source: str) -> str:
        (tmp_path / f"{name}.py").write_text(source)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return name

    yield write
    for path in tmp_path.glob("*.py"):
        sys.modules.pop(path.stem, None)


@pytest.fixture
def entry_points(monkeypatch):
    """Sets the entry points that packages declare; the value counts how often they are read."""
    reads = []

    def declare(*points: tuple[str, str, str]) -> list:
        def found(group: str):
            reads.append(group)
            return [importlib.metadata.EntryPoint(*point) for point in points if point[2] == group]

        monkeypatch.setattr(importlib.metadata, "entry_points", found)
        return reads

    return declare


def test_entries_are_objects_or_places_imported_when_asked_for(module):
    module("lazy_games", "class Nim:\n    entry = 'the game'\n")
    games = Registry("games")
    games.add("chess", object)
    games.add("nim", "lazy_games:Nim.entry")
    assert games.names() == tuple(games) == ("chess", "nim") and len(games) == 2
    assert "nim" in games and "go" not in games
    assert "lazy_games" not in sys.modules
    assert games.get("nim") == games.get("nim") == "the game" and "lazy_games" in sys.modules
    assert games.get("chess") is object


def test_an_unknown_name_lists_the_names_and_the_nearest():
    games, families = Registry("games"), Registry("model_families")
    games.add("sokoban", 1)
    games.add("sudoku", 2)
    with pytest.raises(
        ValueError, match=r"unknown game 'sokobn'; must be one of: sokoban, sudoku; did you mean sokoban\?$"
    ):
        games.get("sokobn")
    with pytest.raises(ValueError, match="unknown game 'zzz'; must be one of: sokoban, sudoku$"):
        games.get("zzz")
    with pytest.raises(ValueError, match="unknown model family 'x'; must be one of: none$"):
        families.get("x")


def test_a_name_is_taken_once():
    games = Registry("games")
    games.add("nim", 1)
    with pytest.raises(ValueError, match="game 'nim' already exists"):
        games.add("nim", 2)
    assert games.get("nim") == 1


@pytest.mark.parametrize("where", ["my_package", "my_package:", ":GAME", "my package:GAME", "a:b:c", ""])
def test_a_place_is_a_module_and_an_attribute(where):
    with pytest.raises(ValueError, match="must be 'module:attribute'"):
        Registry("games").add("nim", where)


@pytest.mark.parametrize("name", ["", None, 3])
def test_a_name_is_a_text(name):
    with pytest.raises(ValueError, match="must be a non-empty string"):
        Registry("games").add(name, 1)


def test_a_place_with_nothing_there_is_reported_by_name(module):
    games = Registry("games")
    games.add("nim", "no_such_module_here:GAME")
    games.add("go", module("empty_games", "") + ":GAME")
    with pytest.raises(ValueError, match="game 'nim' cannot be imported from 'no_such_module_here:GAME'"):
        games.get("nim")
    with pytest.raises(ValueError, match="game 'go' is not at 'empty_games:GAME'.*no attribute 'GAME'"):
        games.get("go")


def test_an_error_inside_a_module_is_not_hidden(module):
    games = Registry("games")
    games.add("nim", module("broken_games", "GAME = 1 / 0") + ":GAME")
    with pytest.raises(ZeroDivisionError):
        games.get("nim")


def test_entry_points_of_the_group_are_read_once_and_lazily(module, entry_points):
    module("packaged", "GAME = 'packaged game'\nBOT = 'packaged bot'\n")
    reads = entry_points(
        ("nim", "packaged:GAME", "marl_jax.games"), ("nim/best", "packaged:BOT [extra]", "marl_jax.bots")
    )
    games, bots = Registry("games"), Registry("bots")
    games.add("chess", 1)
    assert reads == []
    assert games.names() == ("chess", "nim") and games.get("nim") == "packaged game"
    assert bots.get("nim/best") == "packaged bot"
    assert reads == ["marl_jax.games", "marl_jax.bots"]


def test_an_entry_point_cannot_take_a_name_and_the_error_stays(entry_points):
    entry_points(("go", "packaged:GO", "marl_jax.games"), ("chess", "packaged:CHESS", "marl_jax.games"))
    games = Registry("games")
    games.add("chess", 1)
    for _ in range(2):
        with pytest.raises(ValueError, match="entry points of the group marl_jax.games: game 'chess' already exists"):
            games.names()


def test_plugins_are_modules_that_add(module, monkeypatch):
    games = Registry("games")
    holder = type(sys)("plugin_target")
    holder.GAMES = games
    monkeypatch.setitem(sys.modules, "plugin_target", holder)
    name = module("nim_plugin", "from plugin_target import GAMES\nGAMES.add('nim', 'nim_plugin:GAME')\nGAME = 3\n")
    load_plugins((name, name))  # imported once
    assert games.get("nim") == 3
    with pytest.raises(ValueError, match="plugin 'no_such_plugin' cannot be imported: No module named"):
        load_plugins(["no_such_plugin"])


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".", "..x", "a..b", "a b", "x.py/", "1a", "\0"])
def test_a_plugin_is_the_name_of_a_module(name):
    with pytest.raises(ValueError, match="is not the name of a module"):
        load_plugins([name])


@pytest.mark.parametrize(
    "code, problem",
    [
        ("x = 1\n1 / 0", r"plugin_0.py:2: ZeroDivisionError: division by zero"),
        ("def f(:", r"plugin_1.py:1: SyntaxError: .*"),
        ("import sys\nsys.exit('no')", r"plugin_2.py:2: SystemExit: no"),
        ("raise RuntimeError", r"plugin_3.py:1: RuntimeError"),
        ("import json\njson.loads('{')", r"\S+: JSONDecodeError: Expecting .*"),
        ("raise OSError('two\\nlines')", r"plugin_5.py:1: OSError: two lines"),
    ],
)
def test_a_plugin_that_raises_is_one_line_with_its_place(code, problem, module, request):
    name = module(f"plugin_{request.node.callspec.indices['code']}", code)
    with pytest.raises(ValueError) as caught:
        load_plugins([name])
    assert re.fullmatch(rf"plugin '{name}' failed: \S*{problem}", str(caught.value)), caught.value
