"""Datasets of tasks: rows by number, from JSONL files, lists, tensorflow-datasets or the Hugging Face hub.

train = from_jsonl("train.jsonl.gz")
len(train), train[17], train.fingerprint
parts = make_splits(train, test=from_jsonl("test.jsonl"), key="id")      # "validation" is cut from train
check_fields(parts["train"], required=("question", "answer"), filled=("answer",))
train[order(seed, epoch, index, len(train))]        # the order of an epoch, without a list of it

dataset.py   what a dataset is, and lists
jsonl.py     JSONL files, compressed or not
tfds.py      tensorflow-datasets: prepared from any dataset, read without TensorFlow
hub.py       datasets of the Hugging Face hub
order.py     the order of the examples
parts.py     train, validation and test, which share no example
checks.py    required fields
places.py    where data files lie, and one name for each kind of source
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
