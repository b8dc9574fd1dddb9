"""Datasets of tasks: indexed rows from JSONL, lists, tensorflow-datasets or the Hugging Face Hub.

    train = from_jsonl("train.jsonl.gz")
    len(train), train[17], train.fingerprint
    splits = make_splits(train, test=from_jsonl("test.jsonl"), key="id")      # "validation" is cut from train
    check_fields(splits["train"], required=("question", "answer"), filled=("answer",))
    train[order(seed, epoch, index, len(train))]        # the order of an epoch, computed index by index

- `dataset`: The interface, and datasets of lists.
- `jsonl`: JSONL files, plain or compressed.
- `tfds`: tensorflow-datasets, prepared from any dataset and read without TensorFlow.
- `hub`: Datasets of the Hugging Face Hub.
- `order`: The order of examples.
- `splits`: Disjoint train, validation and test splits, and required fields.
- `places`: Locations of data files, and names for each kind of source.
"""

from envs.tasks.data.dataset import DataError, Dataset, NoSplit, fingerprint_of, from_list
from envs.tasks.data.hub import from_hub
from envs.tasks.data.jsonl import from_jsonl
from envs.tasks.data.order import order
from envs.tasks.data.places import find, open_dataset
from envs.tasks.data.splits import check_disjoint, check_fields, cut, make_splits
from envs.tasks.data.tfds import from_tfds, prepare_tfds

__all__ = [
    "DataError", "Dataset", "NoSplit", "check_disjoint", "check_fields", "cut", "find", "fingerprint_of", "from_hub",
    "from_jsonl", "from_list", "from_tfds", "make_splits", "open_dataset", "order", "prepare_tfds",
]  # fmt: skip
