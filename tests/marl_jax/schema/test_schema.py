"""Config fields: each has a valid default and a help text, and none is declared twice."""

import ast
import dataclasses
from pathlib import Path

import pytest
from ml_collections import ConfigDict

import configs
from configs import algorithms, defaults, published
from marl_jax import fields
from marl_jax.algorithms import ALGORITHMS
from marl_jax.fields import Field
from marl_jax.schema import renamed, run_fields, validate

pytestmark = pytest.mark.quick

ALGORITHM_FIELDS = {
    f"{name}: algo.{key}": field for name in ALGORITHMS for key, field in ALGORITHMS.get(name).fields.items()
}
EVERYTHING = {**run_fields.FIELDS, **ALGORITHM_FIELDS}


@pytest.mark.parametrize("name", EVERYTHING)
def test_every_field_accepts_its_default_and_says_what_it_is(name):
    field = EVERYTHING[name]
    assert isinstance(field, Field) and field.rule.holds(field.default), field
    assert field.help.strip() and field.help[-1] != "." and "\n" not in field.help
    assert field.rule.accepted


def test_the_default_run_has_every_field_and_no_other():
    config = defaults.get_config()
    found = {run_fields.field_name(name) for name, _ in validate.fields(config)}
    assert found == set(run_fields.FIELDS) | set(validate.algorithm_fields("ppo"))


@pytest.mark.parametrize("name", ["ppo", "grpo", "at_grpo", "sft"])
def test_an_algorithm_has_its_name_and_its_own_fields(name):
    algo = getattr(algorithms, name)()
    assert algo.name == name and set(algo) == {"name", *ALGORITHMS.get(name).fields}
    own = dict(ppo={"critic", "gae", "whiten"}, sft={"bot", "noise"}, at_grpo={"continuation", "team_term"}, grpo=set())
    for other, only in own.items():
        assert (only <= set(algo)) == (other in (name, "grpo")), other
    assert ("group_size" in algo) == (name in ("grpo", "at_grpo"))
    assert {"minibatches", "grad_accum_steps"} <= set(algo) and "share_prefix" not in algo


def test_variants_change_fields_that_there_are():
    assert algorithms.grpo(6).group_size == 6 and algorithms.grpo().group_size == 8
    assert algorithms.at_grpo().group_size == published.rloo().group_size == 4
    assert published.dapo().overlong_buffer == 4096 and published.dapo(8, 1000).overlong_buffer == 200
    assert published.gspo(2).clip_high == 4e-4 and algorithms.dr_mas().normalize == "agent"
    with pytest.raises(ValueError, match="unknown fields: continuation; fields: epochs"):
        algorithms.grpo(continuation="best")


def test_groups_are_fresh_each_time():
    first, second = defaults.get_config(), defaults.get_config()
    first.env.params.size = 3
    first.agents.seat_0 = "bot:random"
    first.model.lora.rank = 4
    assert "size" not in second.env.params and "seat_0" not in second.agents and second.model.lora.rank == 0
    assert "seat_0" not in run_fields.AGENTS.default and not run_fields.ENV["params"].default


def test_no_default_is_repeated_in_configs():
    """No call in `configs` sets a field of a group to its default."""
    folder, repeated = Path(configs.__file__).parent, []
    for file in folder.glob("*.py"):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "schema.group":
                members = run_fields.GROUPS[ast.literal_eval(node.args[0])]
                for word in node.keywords:
                    if word.arg and isinstance(word.value, ast.Constant):
                        same = word.value.value == members[word.arg].default
                        repeated += [f"{file.name}:{node.lineno} {word.arg}"] if same else []
    assert not repeated


def test_old_names_are_gone_and_new_ones_exist():
    def exists(name):
        return name in run_fields.FIELDS or any(key.endswith(f": {name}") for key in ALGORITHM_FIELDS)

    for old, new in renamed.RENAMED.items():
        assert not exists(old) and (exists(new) or new.startswith("env.params.")), old
    for field, old in renamed.VALUES:
        rules = [found.rule for name, found in EVERYTHING.items() if name.rpartition(" ")[2] == field]
        assert rules and not any(rule.holds(old) for rule in rules), field


def test_every_old_name_and_value_in_a_config_is_found():
    config = ConfigDict(dict(algo=dict(critic="role", name="ppo", role_decay=0.9), rollout=dict(games=2)))
    assert renamed.problems(config) == [
        "config.algo.critic is 'role', which is now algo.baseline 'seat_ema'",
        "config.algo.role_decay is now config.algo.baseline_decay",
        "config.rollout.games is now config.rollout.num_envs",
    ]
    assert renamed.problems(defaults.get_config()) == []
    assert renamed.field("algo.gamma") is None


@pytest.mark.parametrize(
    "rule, good, bad",
    [
        (fields.integer(1, 3), (1, 3), (0, 4, 2.0, True, "2")),
        (fields.number(0, 1, above=True), (0.5, 1), (0, 1.1, True, float("nan"), "1")),
        (fields.off_or(fields.number(1)), (0, 0.0, 1, 2.5), (0.5, -1, False, "0")),
        (fields.choice("a", "b"), ("a", "b"), ("c", "", None, ("a",))),
        (fields.some_of("a", "b"), ((), ("b",), ["a", "b"]), (("c",), ("a", "a"), "a", (["a"],))),
        (fields.TEXTS, ((), ("a",)), ("a", (1,), None)),
        (fields.SWITCH, (True, False), (0, "true")),
        (fields.STEP, ("newest", "best", "0", "120"), ("", "-1", "last", 3, "1.0")),
        (fields.OPEN, ({}, ConfigDict()), ((), "a", None)),
    ],
    ids=lambda x: x.accepted[:30] if isinstance(x, fields.Rule) else "",
)
def test_rules(rule, good, bad):
    assert all(rule.holds(x) for x in good) and not any(rule.holds(x) for x in bad)


def test_fields_with_other_defaults():
    group = {"a": Field(1, fields.integer(0), "one"), "b": Field(2, fields.integer(0), "two")}
    changed = fields.with_defaults(group, b=3)
    assert fields.defaults(changed) == {"a": 1, "b": 3} and fields.defaults(group) == {"a": 1, "b": 2}
    assert changed["b"] == dataclasses.replace(group["b"], default=3)
