"""Debate experiments: every form can run, has the same budget, and assigns policies to agents and turns."""

import itertools

import pytest

from configs import debate
from experiments import anli_debate, gsm8k_debate
from marl_jax.agents.seating import seat_names
from marl_jax.schema import validate

MODELS = ("", "qwen2.5-coder-0.5b", "qwen2.5-coder-1.5b")
ROLES = ("ada", "ben")


@pytest.mark.parametrize("experiment", [gsm8k_debate, anli_debate])
def test_every_form_can_run_and_samples_as_many_answers(experiment):
    for model in MODELS:
        budgets = set()
        for algorithm, parameters in itertools.product(debate.ALGORITHMS, (*debate.PARAMETERS, debate.SINGLE)):
            if (algorithm, parameters) == ("maporl", debate.SINGLE):
                continue
            config = experiment.get_config("+".join(word for word in (algorithm, parameters, model) if word))
            validate.check(config)
            if algorithm != debate.UNTUNED:
                budgets.add(debate.answers_of(config))
            names = {debate.UNTUNED: "grpo", "maporl": "ppo"}
            assert config.algo.name == names.get(algorithm, algorithm)
            assert bool(config.model.lora.rank) == bool(model)
        assert len(budgets) == 1
        assert budgets == ({50 * 256 * 6} if model else {2 * 8 * 4})


@pytest.mark.parametrize(
    ("parameters", "expected"),
    [
        ("shared", [("main",), ("main",)]),
        ("per_agent", [("ada",), ("ben",)]),
        ("per_turn", [("turn_1", "turn_2", "turn_3")] * 2),
        ("first_turn_apart", [("first", "later")] * 2),
        ("per_agent_turn", [tuple(f"{name}_turn_{t}" for t in (1, 2, 3)) for name in ROLES]),
        ("pair", [("ada",), ("ben",)]),
    ],
)
def test_who_answers_when(parameters, expected):
    config = gsm8k_debate.get_config(f"grpo+{parameters}+qwen2.5-coder-0.5b")
    assert seat_names(config.agents, ROLES) == expected
    assert set(config.policies) == {name for row in expected for name in row}


def test_a_pair_has_two_base_models_of_which_one_may_be_frozen():
    config = gsm8k_debate.get_config("ppo+pair+qwen2.5-coder-0.5b")
    config.policies.ben.frozen = True
    validate.check(config)
    assert config.policies.ben.model.name == "smollm2-135m" and not config.policies.ada.model


def test_sizes_are_those_of_the_paper():
    config = gsm8k_debate.get_config("qwen2.5-coder-1.5b")
    params = config.task.params
    assert (params.agents, params.turns, params.eval_agents) == (2, 3, 3) and params.dataset == "gsm8k"
    assert (config.steps, config.task.n_episodes, config.task.max_new_tokens) == (50, 256, 300)
    assert config.algo.name == "ppo" and config.algo.gamma == 0 and config.algo.kl_in == "reward"
    exact = gsm8k_debate.get_config("maporl+qwen2.5-coder-1.5b")
    assert exact.algo.train_turns == (1, 2) and exact.algo.epochs == 4 and exact.optim.lr == 1e-5
    assert anli_debate.get_config("qwen2.5-coder-1.5b").task.params.dataset == "nli"


@pytest.mark.parametrize(
    ("form", "message"),
    [
        ("sarsa", "form 'sarsa' has 'sarsa', but words must be one of: ppo, maporl, grpo, .*qwen2.5-coder-1.5b"),
        ("ppo+grpo", "has ppo and grpo, but must have only one of them"),
        ("ppo+ppo", "has ppo and ppo"),
        ("single+maporl", "has 'maporl' with one turn, but its first turn does not learn; use ppo"),
        ("single+per_turn", "has 'per_turn' with one agent and one turn, but must have 'shared'"),
    ],
)
def test_forms_without_meaning_are_refused(form, message):
    with pytest.raises(ValueError, match=message):
        gsm8k_debate.get_config(form)
