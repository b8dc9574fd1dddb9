"""Benchmarks keep up with the code they measure: all can be imported, and what they take by name is there."""

from __future__ import annotations

import functools
import importlib
import pkgutil
from pathlib import Path

import numpy as np
import pytest

import benchmarks
from benchmarks import fusion, serving, start
from marl_jax.schema import flags, validate


@pytest.mark.parametrize("name", [module.name for module in pkgutil.iter_modules(benchmarks.__path__)])
def test_a_benchmark_can_be_imported(name):
    if name == "peers":
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize(("module", "path", "phase"), start.PHASES, ids=lambda x: x)
def test_the_phases_of_a_start_are_functions(module, path, phase):
    assert callable(functools.reduce(getattr, path.split("."), importlib.import_module(module))), phase


@pytest.mark.parametrize("prefix", [prefix for prefix in serving.CAUSES if prefix.startswith("marl_jax/")])
def test_the_causes_of_serving_time_are_files(prefix):
    assert any(Path(__file__).parents[1].glob(f"{prefix}*"))


@pytest.mark.parametrize("case", ["selfplay", "imitation", "selfplay:smollm2", "imitation:smollm2"])
def test_the_command_lines_of_a_start_are_accepted(tmp_path, case):
    parsed = flags.parse(["launch.py", *start.command_line(case, tmp_path, tmp_path, [])], ("train", "eval"))
    validate.check(parsed.config)
    assert parsed.config.steps == 1


def test_seconds_by_phase_add_up_and_inner_phases_count_for_themselves():
    phases = [("outer", (1.0, 0.5), (7.0, 3.5)), ("inner", (2.0, 1.0), (4.0, 2.0)), (start.UPDATE, (7, 3.5), (9, 4.5))]
    report = dict(started=(0.0, 0.0), ended=(10.0, 5.0), phases=phases, programs=[])
    found = start.by_phase(report)
    assert found == {"outer": (4.0, 2.0), "inner": (2.0, 1.0), start.UPDATE: (2, 1.0), "other": (2.0, 1.0)}
    assert start.to_first_update(report) == (9.0, 4.5)


@pytest.mark.nightly
def test_fusion_counts_right_answers(monkeypatch):
    monkeypatch.setattr(fusion, "BATCH", 8)
    monkeypatch.setattr(fusion, "QUESTIONS", 16)
    train = fusion.trainer("interleaved", "table", ["both", "sound"], steps=10, rate=1e-3)
    curve = np.stack(list(train(1, 0)))
    assert curve.shape == (10, 2) and curve.min() >= 0 and curve.max() <= 16 and curve.any()
