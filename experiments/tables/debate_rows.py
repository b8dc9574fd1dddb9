"""Tasks, rows and configs of the table of debates."""

from __future__ import annotations

import argparse
import dataclasses
import importlib

from configs import debate as forms


@dataclasses.dataclass(frozen=True)
class Task:
    """A task of the table.

    Attributes:
        words: Display name.
        experiment: Name of the experiment.
        dataset: Name of the dataset.
        files: Data files.
        min_words: Minimum number of words of an answer that is scored by the verifier. Hardly any solution that it was
            trained on is shorter, and its score of a bare number means nothing.
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
"""Datasets of the embedded model."""
OTHER = {"gsm8k": "anli", "anli": "gsm8k"}


TESTS = ("debate", "samples", "refine", "transfer")
"""Tests of a row."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Attributes:
        words: Display name.
        form: Words of its form.
        untuned: The untuned row that it starts from; "" if it is untuned itself.
        verifier: Whether a verifier's scores are rewarded instead of correct answers.
        tests: Tests of the row.
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
    """Return the selected tests of a row."""
    return [test for test in ROWS[row].tests if test in flags.tests.split(",")]


def form_of(flags: argparse.Namespace, row: str) -> str:
    """Return the form of a row, the part of `--config` after the colon."""
    # The first turn does not learn in MAPoRL, and a single agent has no other turn.
    algorithm = "ppo" if flags.algorithm == "maporl" and "single" in ROWS[row].form else flags.algorithm
    words = [*ROWS[row].form, *([algorithm] if ROWS[row].untuned else []), flags.model]
    return "+".join(word for word in words if word)


def config_of(flags: argparse.Namespace, task: str, row: str):
    """Return the config of a row: the experiment's, with the table's flags."""
    config = importlib.import_module(f"experiments.{TASKS[task].experiment}").get_config(form_of(flags, row))
    if flags.steps:
        config.steps = flags.steps
        config.optim.warmup = min(config.optim.warmup, flags.steps - 1)
    return config


def size(flags: argparse.Namespace) -> tuple[int, int]:
    """Return the numbers of agents and turns of a tested debate."""
    return forms.EVAL_AGENTS, forms.TURNS if flags.model else forms.SMALL_TURNS
