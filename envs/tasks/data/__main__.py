"""Prepare a dataset for tensorflow-datasets.

    python -m envs.tasks.data NAME train=SOURCE test=SOURCE

A source is a JSONL file or hub:OWNER/NAME. The command prints the name of the dataset in configs: tfds:FOLDER.
"""

from __future__ import annotations

import argparse
import sys

from envs.tasks.data import DataError, open_dataset, prepare_tfds
from envs.tasks.data.tfds import CACHE, VERSION


def main(argv: list[str]) -> int:
    """Prepare the dataset and return the exit status: 1 if the data is invalid."""
    parser = argparse.ArgumentParser(prog="python -m envs.tasks.data", description=__doc__)
    parser.add_argument("name", help="Name of the builder")
    parser.add_argument("parts", nargs="+", metavar="SPLIT=SOURCE")
    parser.add_argument("--folder", default=CACHE)
    parser.add_argument("--version", default=VERSION)
    parser.add_argument("--description", default="", help="Description, origin and licence of the data")
    given = parser.parse_args(argv)
    sources = dict(part.split("=", 1) for part in given.parts if "=" in part)
    if len(sources) < len(given.parts):
        parser.error("sources must be given as SPLIT=SOURCE, each split once")
    try:
        parts = {part: open_dataset(source, part) for part, source in sources.items()}
        folder = prepare_tfds(given.name, parts, given.folder, description=given.description, version=given.version)
    except DataError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"tfds:{folder}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
