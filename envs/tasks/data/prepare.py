"""Download datasets into the folder of data files.

    python -m envs.tasks.data.prepare gsm8k mbpp            # into $MARL_JAX_DATA
    python -m envs.tasks.data.prepare anli --accept nc --to DIR
    python -m envs.tasks.data.prepare --list

Every file is written under the name that the tasks search for, as compressed JSONL. SOURCES.json records its origin,
licence, checksum and number of rows. Files that are complete are not downloaded again. `envs/tasks/data/catalog.py`
lists the datasets.
"""

from __future__ import annotations

import argparse
import functools
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path

from envs.tasks.data.catalog import ALIASES, NO_SOURCE, SOURCES, File, Row, Source
from envs.tasks.data.dataset import DataError, from_list
from envs.tasks.data.hub import from_hub
from envs.tasks.data.places import ROOT

RECORD = "SOURCES.json"
TERMS = {
    "nc": "allows only non-commercial use",
    "unclear": "is unclear, so that it is for evaluation only",
}
TIMEOUT = 60.0
"""Seconds without data after which a download fails."""


class Downloads:
    """Access to GitHub and to the Hugging Face Hub.

    Args:
        mirror: Address that replaces both: MIRROR/OWNER/NAME/COMMIT/PATH for files, MIRROR/OWNER/NAME/tar.gz/COMMIT for
            archives, and MIRROR as the address of the Hub. "" for the originals.
    """

    def __init__(self, mirror: str = ""):
        self.files = mirror.rstrip("/") or "https://raw.githubusercontent.com"
        self.archives = mirror.rstrip("/") or "https://codeload.github.com"
        self.endpoint = mirror.rstrip("/") or None
        self._get = functools.lru_cache(maxsize=2)(_get)  # two files may be made of one source

    def github(self, repo: str, path: str) -> bytes:
        """Return a file of a repository, uncompressed."""
        name, _, commit = repo.partition("@")
        data = self._get(f"{self.files}/{name}/{commit}/{path}")
        return gzip.decompress(data) if path.endswith(".gz") else data

    def archive(self, repo: str) -> Iterator[tuple[str, bytes]]:
        """Yield the paths and contents of all files of a repository from its archive."""
        name, _, commit = repo.partition("@")
        with tarfile.open(fileobj=io.BytesIO(self._get(f"{self.archives}/{name}/tar.gz/{commit}")), mode="r:gz") as tar:
            for member in tar:
                content = tar.extractfile(member) if member.isfile() else None
                if content is not None:
                    yield member.name.partition("/")[2], content.read()

    def hub(self, name: str, split: str, config: str | None) -> Iterable[Row]:
        """Return a split of a dataset."""
        return from_hub(name, split, config=config, endpoint=self.endpoint)


def _get(url: str) -> bytes:
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:
            return answer.read()
    except (OSError, urllib.error.URLError) as error:
        raise DataError(f"{url}: {error}") from None


# -------------------------------------------------------------------------------------------------------------- prepare


def prepare(name: str, folder: Path, fetch: Downloads, offline: bool = False) -> list[str]:
    """Download the missing files of a dataset and return a line for each file.

    Raises:
        DataError: A file cannot be downloaded, is damaged or has a wrong checksum. Other files are kept.
    """
    source, record = SOURCES[name], _record(folder)
    lines, missing = [], []
    for file in source.files:
        path = folder / f"{file.name}{file.suffix}"
        if path.exists():
            known = record.get(path.name, {}).get("file_sha256")
            if known is not None and known != _sha256(path):
                raise DataError(f"{path} differs from {RECORD}; remove it to download it again")
            lines.append(f"{path}: exists")
        elif offline:
            missing.append(str(path))
        else:
            record[path.name] = _write(source, file, path, fetch)
            _save(folder / RECORD, json.dumps(dict(sorted(record.items())), indent=1).encode() + b"\n")
            entry = record[path.name]
            note = "checksum as pinned" if entry["pinned"] else f"not pinned; sha256 of the rows: {entry['sha256']}"
            lines.append(f"{path}: {entry['rows']} rows, {entry['licence']}, {note}")
    if missing:
        raise DataError("missing, and --offline forbids downloads:\n" + "\n".join(missing))
    return lines


def _write(source: Source, file: File, path: Path, fetch: Downloads) -> Row:
    """Download a file and return its entry in SOURCES.json."""
    try:
        rows = from_list(file.rows(fetch), file.name)
        if not len(rows):
            raise DataError(f"{file.name}: the source has no rows; it may have changed")
        checksum = rows.fingerprint
    except (KeyError, TypeError, UnicodeDecodeError, json.JSONDecodeError, gzip.BadGzipFile, tarfile.TarError) as error:
        raise DataError(f"{file.name}: {source.origin} has another format: {type(error).__name__}: {error}") from None
    if file.sha256 and checksum != file.sha256:
        raise DataError(
            f"{file.name}: the sha256 of the rows is {checksum}, but must be {file.sha256}. The download was deleted; "
            "check the connection or the mirror"
        )
    if file.suffix == ".txt":
        packed = "".join(row["text"] for row in rows).encode()
    else:
        packed = gzip.compress("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(), mtime=0)
    _save(path, packed)
    return {
        "origin": source.origin, "licence": source.licence, "rows": len(rows), "sha256": checksum,
        "pinned": bool(file.sha256), "file_sha256": hashlib.sha256(packed).hexdigest(),
    }  # fmt: skip


def _save(path: Path, data: bytes) -> None:
    """Write a file completely or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(data)
    os.replace(part, path)


def _record(folder: Path) -> dict[str, Row]:
    path = folder / RECORD
    try:
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    except ValueError as error:
        raise DataError(f"{path}: invalid JSON: {error}; remove it") from None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# -------------------------------------------------------------------------------------------------------------- command


def main(argv: list[str]) -> int:
    """Prepare the named datasets and return the exit status: 1 if one of them failed."""
    about = "Download datasets into the folder of data files."
    parser = argparse.ArgumentParser(prog="python -m envs.tasks.data.prepare", description=about)
    parser.add_argument("names", nargs="*", metavar="NAME", help="Names of datasets")
    parser.add_argument("--list", action="store_true", help="List of all datasets with their licences")
    parser.add_argument("--to", default=os.environ.get(ROOT), metavar="DIR", help=f"Folder; by default ${ROOT}")
    parser.add_argument("--offline", action="store_true", help="Check for missing files without downloading them")
    parser.add_argument("--accept", action="append", default=[], choices=tuple(TERMS), help="Accepted licence terms")
    parser.add_argument("--mirror", default="", metavar="URL", help="Address used instead of GitHub and the Hub")
    given = parser.parse_args(argv)
    if given.list:
        for name, source in SOURCES.items():
            pinned = sum(bool(file.sha256) for file in source.files)
            sys.stdout.write(
                f"{name}: {source.licence}; {source.origin}; {pinned} of {len(source.files)} files pinned\n"
            )
        return 0
    names: list[str] = [ALIASES.get(name, name) for name in map(str, given.names)]
    for name in names:
        if name in NO_SOURCE:
            parser.error(f"{name} cannot be downloaded: {NO_SOURCE[name]}")
        if name not in SOURCES:
            parser.error(f"name is {name!r}, but must be one of: {', '.join(SOURCES)}")
        if (terms := SOURCES[name].terms) and terms not in given.accept:
            parser.error(f"the licence of {name} ({SOURCES[name].licence}) {TERMS[terms]}; add --accept {terms}")
    if not names or not given.to:
        parser.error("give at least one NAME, or --list" if not names else f"give --to DIR, or set {ROOT}")
    folder, failed, fetch = Path(given.to).expanduser(), False, Downloads(given.mirror)
    for name in dict.fromkeys(names):
        try:
            sys.stdout.write("".join(f"{line}\n" for line in prepare(name, folder, fetch, given.offline)))
        except DataError as error:
            sys.stderr.write(f"{name}: {error}\n")
            failed = True
    if not failed and os.environ.get(ROOT) != given.to:
        sys.stdout.write(f"export {ROOT}={folder.resolve()}\n")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
