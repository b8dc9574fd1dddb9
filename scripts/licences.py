"""The licences of what the lock files install, as a table: `make licences` writes docs/licences.md.

    python scripts/licences.py locks/base.lock locks/test.lock > docs/licences.md

The table has what the packages say of themselves: `License-Expression`, else the classifiers, else `License`. Only
packages that are installed beside this interpreter can be asked.
"""

from __future__ import annotations

import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

HEAD = """# Licences of the dependencies

Written by `make licences` from the packages' own metadata, for Python {python} on {machine}; other interpreters and
machines may need a few others. `make gpu` adds the packages of CUDA and cuDNN, which have NVIDIA's own terms, and
`make tpu` libtpu, which has Google's. marl_jax itself has the MIT licence; data sets and weights have their own.
"""


def installed_by(lock: Path) -> Iterator[metadata.PackageMetadata]:
    """What is known of the packages of a lock file that are installed here."""
    for name in dict.fromkeys(re.findall(r"^([\w.-]+)==", lock.read_text(), re.M)):
        try:
            yield metadata.metadata(name)
        except metadata.PackageNotFoundError:
            continue  # of another interpreter or machine


def licence(package: metadata.PackageMetadata) -> str:
    """In a few words; a whole licence text is cut to its first line."""
    if expression := package.get("License-Expression"):
        return expression
    lines = package.get_all("Classifier") or ()
    found = [line.rpartition(":: ")[2] for line in lines if line.startswith("License ::")]
    stated = (package.get("License") or "").strip().splitlines()
    return ", ".join(sorted(set(found) - {"OSI Approved"})) or (stated[0][:60] if stated else "not stated")


def table(locks: list[Path]) -> str:
    """One row for each package, with the first set that needs it."""
    rows: dict[str, tuple[str, str, str]] = {}
    for lock in locks:
        for package in installed_by(lock):
            needed = "run" if lock.stem == "base" else lock.stem
            rows.setdefault(package["Name"], (package["Version"], licence(package), needed))
    lines = ["| package | version | licence | needed to |", "| --- | --- | --- | --- |"]
    for name, (version, text, needed) in sorted(rows.items(), key=lambda row: row[0].lower()):
        lines.append(f"| {name} | {version} | {text.replace('|', '/')} | {needed} |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(HEAD.format(python=".".join(map(str, sys.version_info[:2])), machine=f"{sys.platform} {platform.machine()}"))
    print(table([Path(name) for name in sys.argv[1:]]))
