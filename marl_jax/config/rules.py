"""What each field of a config accepts: one line per field."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

from ml_collections import ConfigDict

from envs.games import registry as games
from models import registry as models


@dataclasses.dataclass(frozen=True)
class Rule:
    """What a field accepts: in words, and as a test."""

    accepted: str
    holds: Callable[[Any], bool]


def integer(low: int, high: int | None = None) -> Rule:
    """A whole number in a range, both ends included."""
    words = f"a whole number from {low} " + ("up" if high is None else f"to {high}")
    top = math.inf if high is None else high
    return Rule(words, lambda x: isinstance(x, int) and not isinstance(x, bool) and low <= x <= top)


def number(low: float = -math.inf, high: float = math.inf, above: bool = False) -> Rule:
    """A finite number in a range; with `above`, the lower end itself is left out."""
    start = "" if low == -math.inf else (f" above {low:g}" if above else f" from {low:g}")
    words = "a number" + start + ("" if high == math.inf else f" up to {high:g}")

    def holds(x: Any) -> bool:
        if isinstance(x, bool) or not isinstance(x, int | float) or not math.isfinite(x):
            return False
        return (low < x if above else low <= x) and x <= high

    return Rule(words, holds)


def choice(*values: str) -> Rule:
    """One of a few words."""
    return Rule("one of " + ", ".join(values), lambda x: x in values)


def some_of(*values: str) -> Rule:
    """A tuple of distinct words out of a few."""

    def holds(x: Any) -> bool:
        return isinstance(x, tuple | list) and set(x) <= set(values) and len(set(x)) == len(x)

    return Rule("a tuple of distinct words out of " + ", ".join(values), holds)


TEXT = Rule("a text", lambda x: isinstance(x, str))
TEXTS = Rule("a tuple of texts", lambda x: isinstance(x, tuple | list) and all(isinstance(y, str) for y in x))
SWITCH = Rule("True or False", lambda x: isinstance(x, bool))
OPEN = Rule("a group of fields", lambda x: isinstance(x, ConfigDict))

FLOATS = choice("float32", "bfloat16")
LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
WAYS = Rule("a whole number from 1 up, or -1 for the devices left", lambda x: x == -1 or integer(1).holds(x))
MODEL = Rule(
    "the name of a registered model, e.g. " + ", ".join(models.names()[:4]),
    lambda x: isinstance(x, str) and (x.lower() in models.names() or x.lower() in models.ALIASES),
)

RULES: dict[str, Rule] = {
    "name": TEXT,
    "seed": integer(0, 2**32 - 1),
    "steps": integer(1),
    "env.name": choice(*games.GAMES),
    "env.params": OPEN,
    "env.text": choice("full", "compact", "brief"),
    "env.style": choice("chat", "plain"),
    "env.context": choice("turn"),
    "env.symmetry": SWITCH,
    "model.name": MODEL,
    "model.weights": TEXT,
    "model.init_from": TEXT,
    "model.shape": OPEN,
    "model.dtype": FLOATS,
    "model.param_dtype": FLOATS,
    "model.remat": choice("none", "dots", "full"),
    "model.unroll": integer(0),
    "model.lora.rank": integer(0, 1024),
    "model.lora.alpha": number(0, above=True),
    "model.lora.targets": some_of(*LORA_TARGETS),
    "agents": OPEN,
    "policies.*.adapter": TEXT,
    "policies.*.frozen": SWITCH,
    "algo.name": choice("ppo", "grpo", "at_grpo"),
    "algo.gamma": number(0, 1),
    "algo.gamma_token": number(0, 1),
    "algo.lam": number(0, 1),
    "algo.gae": choice("turn", "token"),
    "algo.clip_low": number(0, 1, above=True),
    "algo.clip_high": number(0, above=True),
    "algo.dual_clip": Rule("0 (off) or a number above 1", lambda x: x == 0 or number(1, above=True).holds(x)),
    "algo.value_clip": number(0),
    "algo.value_coef": number(0),
    "algo.kl_coef": number(0),
    "algo.kl_kind": choice("k1", "k2", "k3"),
    "algo.kl_in": choice("loss", "reward"),
    "algo.entropy_coef": number(0),
    "algo.epochs": integer(1),
    "algo.minibatches": integer(1),
    "algo.grad_accum_steps": integer(1),
    "algo.critic": choice("head", "separate", "central", "none"),
    "algo.whiten": SWITCH,
    "algo.loss_agg": choice("token", "sequence", "constant"),
    "algo.ratio": choice("token", "sequence"),
    "algo.tis_clip": Rule("0 (off) or a number from 1 up", lambda x: x == 0 or number(1).holds(x)),
    "algo.group_size": integer(1),
    "algo.group_std": SWITCH,
    "algo.group_baseline": choice("mean", "leave_one_out"),
    "algo.normalise": choice("group", "agent"),
    "algo.filter_zero_std_groups": SWITCH,
    "algo.continuation": choice("best", "random", "first"),
    "algo.team_term": choice("immediate", "lookahead"),
    "algo.overlong": choice("none", "mask", "penalty"),
    "algo.overlong_buffer": integer(1),
    "algo.pack": integer(0),
    "algo.share_prefix": SWITCH,
    "rollout.games": integer(1),
    "rollout.turns": integer(1),
    "rollout.temperature": number(0, above=True),
    "rollout.max_new_tokens": integer(1),
    "rollout.answer": choice("constrained", "free"),
    "rollout.parse_failure_reward": number(),
    "optim.lr": number(0, above=True),
    "optim.critic_lr": number(0),
    "optim.schedule": choice("constant", "linear", "cosine"),
    "optim.min_lr_ratio": number(0, 1),
    "optim.warmup": integer(0),
    "optim.weight_decay": number(0),
    "optim.b1": number(0, 0.9999),
    "optim.b2": number(0, 0.99999),
    "optim.eps": number(0, above=True),
    "optim.max_grad_norm": number(0),
    "optim.adam_state_dtype": choice("float32", "bfloat16", "int8"),
    "opponents.self_play_frac": number(0, 1),
    "opponents.pool_size": integer(0),
    "opponents.snapshot_every": integer(1),
    "opponents.prioritised": SWITCH,
    "opponents.bots": TEXTS,
    "opponents.bot_frac": number(0, 1),
    "reward.team": number(),
    "reward.agent": number(),
    "reward.process": number(),
    "reward.dense": SWITCH,
    "curriculum.enabled": SWITCH,
    "curriculum.grades": integer(2),
    "curriculum.start": integer(1),
    "curriculum.up": number(0, 1, above=True),
    "curriculum.down": number(0, 1),
    "curriculum.window": integer(1),
    "sft.steps": integer(1),
    "sft.games": integer(1),
    "sft.turns": integer(1),
    "sft.minibatches": integer(1),
    "sft.lr": number(0, above=True),
    "sft.schedule": choice("constant", "linear", "cosine"),
    "sft.warmup": integer(0),
    "sft.bot": TEXT,
    "sft.noise": number(0, 0.9),
    "eval.every": integer(0),
    "eval.games": integer(1),
    "eval.opponents": TEXTS,
    "eval.temperature": number(0),
    "eval.swap_roles": SWITCH,
    "eval.confidence": number(0.5, 0.9999),
    "eval.step": integer(-2),
    "eval.seed": integer(0, 2**32 - 1),
    "play.opponent": TEXT,
    "play.seat": integer(-1),
    "play.temperature": number(0),
    "play.seed": integer(0, 2**32 - 1),
    "checkpoint.every": integer(1),
    "checkpoint.keep": integer(1),
    "checkpoint.best_metric": TEXT,
    "checkpoint.best_mode": choice("max", "min"),
    "checkpoint.nan_limit": integer(1),
    "mesh.data": WAYS,
    "mesh.fsdp": WAYS,
    "mesh.tensor": WAYS,
    "mesh.sampling": choice("same", "replicated", "tensor"),
    "distributed.enabled": SWITCH,
    "distributed.coordinator": TEXT,
    "distributed.processes": integer(0),
    "distributed.index": integer(-1),
    "distributed.timeout": integer(1),
    "log.every": integer(1),
    "log.tensorboard": SWITCH,
    "log.wandb": SWITCH,
    "log.progress": SWITCH,
    "log.games_every": integer(1),
    "log.games": integer(0),
    "log.max_megabytes": integer(1),
    "log.profile": SWITCH,
}
