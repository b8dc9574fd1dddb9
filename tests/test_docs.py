"""README and docs: links resolve, commands parse, generated pages are current, the site builds."""

import ast
import importlib
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from marl_jax.cli import MODES
from marl_jax.errors import ConfigError
from marl_jax.schema import flags, run_fields, validate
from scripts import prose, reference_pages

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.glob("**/*.md"))]
CURRENT = [page for page in PAGES if "lab" not in page.parts]
SHARED_FLAGS = ("runner.py", "trials.py", "flags.py")
"""Files whose flags other commands of their folder have."""
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M))


def ids(pages):
    return [str(page.relative_to(ROOT)) for page in pages]


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


@pytest.mark.quick
@pytest.mark.parametrize("page", PAGES, ids=ids(PAGES))
def test_links_resolve(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), f"{page.name} links to {target}"
        if anchor and file.suffix == ".md":
            assert anchor in anchors(file), f"{page.name} links to {target}, which has no such heading"


@pytest.mark.quick
def test_every_page_is_in_the_navigation_and_the_index():
    def leaves(part):
        for entry in part:
            for value in [entry] if isinstance(entry, str) else entry.values():
                yield from [value] if isinstance(value, str) else leaves(value)

    nav = list(leaves(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    pages = {str(page.relative_to(DOCS)) for page in DOCS.glob("**/*.md")}
    assert set(nav) == pages and len(nav) == len(pages)
    listed = re.findall(r"\]\(([^)#]+\.md)\)", (DOCS / "index.md").read_text())
    order = [page for page in listed if not page.startswith("../")]
    assert order == [page for page in nav if page != "index.md"], "the index has the order of the navigation"


@pytest.mark.quick
def test_generated_pages_are_current():
    for name, text in reference_pages.pages().items():
        assert (DOCS / name).read_text() == text, f"docs/{name} is out of date: run `python -m scripts.reference_pages`"


def commands(page: Path) -> list[str]:
    """Return the shell commands of a page: blocks of bash and indented blocks."""
    text = page.read_text()
    blocks = re.findall(r"```(?:bash|sh)\n(.*?)```", text, re.DOTALL)
    plain = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    blocks += re.findall(r"(?:^    .*\n)+", plain, re.M)
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    return [line.strip() for line in lines]


def parts(line: str) -> list[list[str]]:
    """Split a line at `&&`, `;` and pipes, comments and assignments removed."""
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # part of a text, not a command
        return []
    found: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "||", ";", "|", "&"):
            found.append([])
        elif word != "…" and (found[-1] or not re.match(r"^[A-Z_]+=", word)):
            found[-1].append(word)
    return [part for part in found if part]


@pytest.mark.parametrize("page", CURRENT, ids=ids(CURRENT))
def test_commands_are_valid(page, monkeypatch):
    monkeypatch.chdir(ROOT)
    for line in commands(page):
        for command in parts(line):
            if command[:2] == ["python", "launch.py"] or command[0] == "marl-jax":
                check_launch(command[1 if command[0] == "marl-jax" else 2 :], line)
            elif command[:2] == ["python", "-m"]:
                check_module(command[2:], line)
            elif command[0] == "python" and command[1:2] and command[1].endswith(".py"):
                assert (ROOT / command[1]).is_file() or "/" not in command[1], line
            elif command[0] == "make":
                for word in command[1:]:
                    assert "=" in word or word in TARGETS, line
            elif command[0].startswith("scripts/"):
                assert (ROOT / command[0]).is_file(), line


EXPERIMENTS = sorted(path for path in ROOT.glob("experiments/*.py") if path.stem != "__init__")


@pytest.mark.parametrize("path", EXPERIMENTS, ids=ids(EXPERIMENTS))
def test_forms_in_the_docstring_of_an_experiment_exist(path, monkeypatch):
    monkeypatch.chdir(ROOT)
    module = importlib.import_module(f"experiments.{path.stem}")
    forms = re.findall(rf"--config=experiments/{path.stem}\.py(?::(\S+))?", module.__doc__ or "")
    assert forms
    for form in forms:
        assert module.get_config(*([form] if form else [])).steps


def check_launch(arguments: list[str], line: str):
    """Parse a command of launch.py; without an experiment, check its fields only."""
    place = next((a.partition("=")[2] for a in arguments if a.startswith("--config=")), None)
    own = {"FILE", "experiments/NAME.py", "my_experiment.py"}
    file, names = ROOT / (place or "").partition(":")[0], {one.stem for one in flags.EXPERIMENTS.glob("*.py")}
    if place is None or place in own or "$" in place or not (file.is_file() or file.name in names):
        known = {
            *run_fields.FIELDS,
            *(f for name in validate.ALGORITHMS.names() for f in validate.algorithm_fields(name)),
        }
        for field in re.findall(r"--config\.([\w.]+)", " ".join(arguments)):
            assert run_fields.field_name(field) in known or field.startswith(run_fields.OPEN_GROUPS), line
        for mode in re.findall(r"--mode=(\w+)", " ".join(arguments)):
            assert mode in MODES, line
        return
    arguments = [a for a in arguments if not a.startswith("--config.plugins=")]
    try:
        flags.parse(["launch.py", *arguments], tuple(MODES))
    except ConfigError as error:
        pytest.fail(f"{line}\n{error}")


def check_module(arguments: list[str], line: str):
    """Check that a module exists and knows the long flags that it is given."""
    module, *rest = arguments
    if module in ("pytest", "pip", "venv", "http.server") or module == "NAME" or module.endswith(".NAME"):
        return
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin, line
    folder = Path(spec.origin).parent
    source = Path(spec.origin).read_text()
    if spec.submodule_search_locations:
        source = (folder / "__main__.py").read_text()
    source += "".join(path.read_text() for path in folder.glob("*.py") if path.name in SHARED_FLAGS)
    for flag in re.findall(r"(?<=^--)[\w-]+", "\n".join(rest), re.M):
        known = {node.value for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Constant)}
        assert f"--{flag}" in known or flag.replace("-", "_") in known or flag in source, f"{line}: --{flag}"


def test_words_follow_the_rules():
    """`scripts/prose.py`: first lines of docstrings, listed words, the form of errors."""
    found = prose.problems()
    assert not found, "\n".join(f"{path}:{line}: {text}" for path, line, text in found[:30])


@pytest.mark.quick
@pytest.mark.parametrize(
    ("subject", "valid"),
    [
        ("sampling: evict finished conversations before growing the cache", True),
        ("docs, tests: describe the nightly tests", True),
        ("Fix a bug", False),
        ("models:no space", False),
        ("models: " + "x" * 70, False),
    ],
)
def test_commit_subjects(tmp_path, subject, valid):
    (tmp_path / "message").write_text(subject + "\n\nbody\n")
    done = subprocess.run([ROOT / "scripts" / "commit_subject.sh", tmp_path / "message"], capture_output=True)
    assert (done.returncode == 0) == valid


@pytest.mark.nightly
def test_the_site_builds(tmp_path):
    mkdocs = Path(sys.executable).with_name("mkdocs")
    if not mkdocs.exists() and shutil.which("mkdocs") is None:
        pytest.skip("mkdocs-material is not installed (pip install -e .[docs])")
    command = [str(mkdocs), "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "site" / "one_step.html").exists()
