"""What the table of debates compares: tasks, rows, and their configs."""

from __future__ import annotations

import argparse
import dataclasses
import importlib

from configs import debate as forms


@dataclasses.dataclass(frozen=True)
class Task:
    """A task: its words, its experiment, its data set, its files, and the fewest words of an answer to be verified.

    A verifier has learnt from solutions, nearly none of which is shorter; it says nothing of a bare number.
    """

    words: str
    experiment: str
    dataset: str
    files: tuple[str, ...]
    min_words: int = 0


TASKS = {
    "gsm8k": Task("GSM8K", "gsm8k_debate", "gsm8k", ("gsm8k_train", "gsm8k_test"), min_words=40),
    "anli": Task("ANLI", "anli_debate", "nli", ("anli_dev", "anli_test")),
}
SMALL = {"gsm8k": "sample", "anli": "nli"}
"""The data sets of the embedded model."""
OTHER = {"gsm8k": "anli", "anli": "gsm8k"}


TESTS = ("debate", "samples", "refine", "transfer")
"""What a row is put to."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A line.

    words     that stand in it
    form      words of its form
    untuned   the untuned row it starts from; "": it is untuned itself
    verifier  whether a verifier's scores are paid, in place of correct answers
    tests     that it is put to
    """

    words: str
    form: tuple[str, ...] = ()
    untuned: str = ""
    verifier: bool = False
    tests: tuple[str, ...] = TESTS


ROWS = {
    "untuned": Row("untuned", ("untuned",)),
    "correctness": Row("trained for correct answers", (), "untuned"),
    "verifier": Row("trained with the verifier", (), "untuned", verifier=True),
    "single": Row("trained as a single agent", ("single",), "untuned"),
    "single_verifier": Row("trained as a single agent with the verifier", ("single",), "untuned", verifier=True),
    "pair_untuned": Row("two models, untuned", ("untuned", "pair"), tests=("debate",)),
    "pair": Row("two models, trained for correct answers", ("pair",), "pair_untuned", tests=("debate",)),
}


def tests_of(flags: argparse.Namespace, row: str) -> list[str]:
    """The tests of a row that are asked for."""
    return [test for test in ROWS[row].tests if test in flags.tests.split(",")]


def form_of(flags: argparse.Namespace, row: str) -> str:
    """What stands behind the colon of `--config`."""
    # MAPoRL's first turn does not learn, and a single agent has no other.
    algorithm = "ppo" if flags.algorithm == "maporl" and "single" in ROWS[row].form else flags.algorithm
    words = [*ROWS[row].form, *([algorithm] if ROWS[row].untuned else []), flags.model]
    return "+".join(word for word in words if word)


def config_of(flags: argparse.Namespace, task: str, row: str):
    """The config of a row as the experiment gives it, with the table's flags."""
    config = importlib.import_module(f"experiments.{TASKS[task].experiment}").get_config(form_of(flags, row))
    if flags.steps:
        config.steps = flags.steps
        config.optim.warmup = min(config.optim.warmup, flags.steps - 1)
    return config


def size(flags: argparse.Namespace) -> tuple[int, int]:
    """Agents and turns of a debate that is tested."""
    return forms.EVAL_AGENTS, forms.TURNS if flags.model else forms.SMALL_TURNS
