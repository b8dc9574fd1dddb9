"""Experiments with feedback from the environment: every form can run and has the same budget."""

import importlib

import pytest

from configs import reasoning
from marl_jax.schema import validate

MODELS = ("", "+qwen2.5-coder-0.5b")


@pytest.mark.parametrize("name", ["sql", "search", "discovery", "tools", "verilog"])
def test_every_form_can_run_and_samples_as_many_completions(name):
    experiment = importlib.import_module(f"experiments.{name}")
    for model in MODELS:
        configs = {form: experiment.get_config(form + model) for form in reasoning.FORMS}
        for config in configs.values():
            validate.check(config)
        learning = [form for form in reasoning.FORMS if form not in reasoning.UNTRAINED]
        budgets = {reasoning.answers_of(configs[form], experiment.ANSWERS, form == "single_grpo") for form in learning}
        assert len(budgets) == 1 and experiment.ANSWERS[0] == experiment.ANSWERS[1]
