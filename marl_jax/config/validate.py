"""Refuses a config that cannot work, before anything is compiled.

`rules.RULES` says what each field accepts; `COMBINATIONS` are the conditions between fields. `check` collects every
problem, so that a user mends them all at once; each names the field, its value and what is accepted.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games.bots import bot_names
from envs.games.game import Reward
from marl_jax.config.rules import LORA_TARGETS, MODEL, OPEN, RULES
from marl_jax.errors import ConfigError
from marl_jax.rollouts import opponents
from models import registry as models
from models.config import ModelConfig
from models.families import FAMILIES


def fields(config: ConfigDict, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Every field as (dotted name, value); open groups count as one field."""
    for key, value in config.items(preserve_field_references=False):
        name = prefix + key
        if isinstance(value, ConfigDict) and RULES.get(rule_name(name)) is not OPEN:
            yield from fields(value, name + ".")
        else:
            yield name, value


def rule_name(field: str) -> str:
    """The key of `RULES` for a field: the name of a policy becomes `*`, and a policy's own model is a model."""
    parts = field.split(".")
    if parts[0] == "policies" and parts[2:3] == ["model"] and len(parts) > 3:
        return ".".join(parts[2:])
    return ".".join(["policies", "*", *parts[2:]]) if parts[0] == "policies" and len(parts) > 2 else field


def did_you_mean(word: str, known) -> str:
    """A hint at the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else ""


def _single_fields(config: ConfigDict) -> Iterator[str]:
    found = dict(fields(config))
    for name, value in found.items():
        rule = RULES.get(rule_name(name))
        if rule is None:
            yield f"config.{name} is not a field{did_you_mean(name, RULES)}"
        elif not rule.holds(value):
            hint = did_you_mean(value, models.names()) if rule is MODEL and isinstance(value, str) else ""
            yield f"config.{name} is {value!r}; accepted: {rule.accepted}{hint}"
    for agent, player in config.get("agents", {}).items():
        if not isinstance(player, str):
            yield f"config.agents.{agent} is {player!r}; accepted: the name of a policy, or bot:NAME"
    wanted = [name for name in RULES if "*" not in name]
    for policy, fields_of in config.get("policies", {}).items():
        if fields_of.get("model"):
            wanted += [f"policies.{policy}.{name}" for name in RULES if name.startswith("model.")]
    for name in wanted:
        if name not in found:
            yield f"config.{name} is missing; accepted: {RULES[rule_name(name)].accepted}"


# ------------------------------------------------------------------------------------------- between fields


def _algorithm(c: ConfigDict) -> Iterator[str]:
    grouped = c.algo.name != "ppo"
    if grouped and c.algo.group_size < 2:
        yield (
            f"config.algo.group_size is {c.algo.group_size} with algo.name {c.algo.name!r}; a group of one has no "
            "advantage, accepted: 2 and more"
        )
    if not grouped and c.algo.group_size != 1:
        yield f"config.algo.group_size is {c.algo.group_size} with algo.name 'ppo', one sample a prompt; accepted: 1"
    if grouped and c.algo.critic != "none":
        yield f"config.algo.critic is {c.algo.critic!r} with algo.name {c.algo.name!r}; accepted: 'none'"
    if not grouped and c.algo.critic == "none":
        yield "config.algo.critic is 'none' with algo.name 'ppo'; accepted: 'head', 'separate', 'central'"
    if c.algo.name == "grpo" and c.rollout.games % c.algo.group_size:
        yield _not_divisible("rollout.games", c.rollout.games, c.algo.group_size, "algo.group_size")
    if c.algo.share_prefix and c.algo.name != "at_grpo":
        yield (
            f"config.algo.share_prefix is True with algo.name {c.algo.name!r}, whose samples do not share prompts; "
            "accepted: False, or algo.name 'at_grpo'"
        )
    if grouped and (c.opponents.self_play_frac < 1 or c.opponents.bot_frac > 0 or c.opponents.pool_size):
        yield (
            f"config.opponents has other players than the learner with algo.name {c.algo.name!r}, whose groups compare "
            "the learner with itself; accepted: self_play_frac 1, bot_frac 0 and pool_size 0"
        )
    longest = c.rollout.max_new_tokens
    if c.algo.overlong == "penalty" and c.rollout.answer == "free" and c.algo.overlong_buffer >= longest:
        yield (
            f"config.algo.overlong_buffer is {c.algo.overlong_buffer} with rollout.max_new_tokens {longest}, so that "
            "every answer would be over-long; accepted: less than the limit"
        )
    if c.algo.gae == "token" and c.rollout.answer == "constrained":
        yield "config.algo.gae is 'token' with rollout.answer 'constrained'; accepted: 'turn', or rollout.answer 'free'"
    if c.algo.gae == "token" and c.algo.critic == "central":
        yield (
            "config.algo.gae is 'token' with algo.critic 'central', which has one value a turn; accepted: 'turn', or "
            "algo.critic 'head' or 'separate'"
        )
    if grouped and c.algo.gamma != 1:
        yield f"config.algo.gamma is {c.algo.gamma} with algo.name {c.algo.name!r}, which never discounts; accepted: 1"


def _packing(c: ConfigDict) -> Iterator[str]:
    if not c.algo.pack:
        return
    found = f"config.algo.pack is {c.algo.pack} with"
    if c.rollout.answer != "free":
        yield f"{found} rollout.answer {c.rollout.answer!r}, whose samples are of one length; accepted: 0, or 'free'"
    if c.algo.grad_accum_steps < 2:
        yield f"{found} algo.grad_accum_steps 1: no parts to leave out; accepted: 0, or algo.grad_accum_steps from 2 up"
    if c.algo.share_prefix:
        yield f"{found} algo.share_prefix True, which packs answers of one prompt; accepted: one of them"
    if c.algo.critic not in ("none", "head"):
        yield f"{found} algo.critic {c.algo.critic!r}; accepted: 0, or algo.critic 'none' or 'head'"
    if c.model.lora.rank and len(c.policies) > 1:
        yield f"{found} an adapter for each of {len(c.policies)} policies; accepted: 0, or one policy"


def _batch(c: ConfigDict) -> Iterator[str]:
    parts = c.algo.minibatches * c.algo.grad_accum_steps
    if c.algo.share_prefix and samples(c) // c.algo.group_size % parts:
        what = f"algo.minibatches x algo.grad_accum_steps = {parts}, and groups that share a prompt stay together"
        yield _not_divisible("rollout.games x turns", samples(c) // c.algo.group_size, parts, what)
    elif samples(c) % parts:
        what = f"algo.minibatches x algo.grad_accum_steps = {parts}"
        yield _not_divisible(f"rollout.games x turns{' x algo.group_size' if c.algo.name == 'at_grpo' else ''}",
                             samples(c), parts, what)  # fmt: skip
    if c.optim.warmup >= c.steps:
        yield f"config.optim.warmup is {c.optim.warmup} with steps {c.steps}; accepted: less than the steps"


def _roles(c: ConfigDict) -> Iterator[str]:
    for agent, player in c.agents.items():
        if player.startswith(opponents.BOT):
            yield from _bots(f"agents.{agent}", [player.removeprefix(opponents.BOT)], c.env.name)
        elif player not in c.policies:
            known = ", ".join(c.policies) or "none"
            yield (
                f"config.agents.{agent} is {player!r}, a policy that is not in config.policies ({known}); accepted: "
                "one of them, or bot:NAME"
            )
    used = set(c.agents.values())
    for name in c.policies:
        if name not in used:
            yield f"config.policies.{name} is used by no agent; give it a seat in config.agents or leave it out"
    owners: dict[str, str] = {}
    for name, policy in c.policies.items():
        if policy.model or not c.model.lora.rank:
            continue  # weights of its own
        adapter = policy.adapter or name
        if adapter in owners:
            yield (
                f"config.policies.{name}.adapter is {adapter!r}, the adapter of policy {owners[adapter]!r} too; "
                "accepted: one adapter per policy, or one policy for both roles"
            )
        owners.setdefault(adapter, name)
    if c.policies and all(policy.frozen for policy in c.policies.values()):
        yield "config.policies: all are frozen, so nothing would learn; accepted: at least one with frozen False"


def _model(c: ConfigDict) -> Iterator[str]:
    own = {f"policies.{name}.model": policy.model for name, policy in c.policies.items() if policy.model}
    for field, model in {"model": c.model, **own}.items():
        yield from _one_model(field, model)


def _one_model(field: str, model: ConfigDict) -> Iterator[str]:
    lora = model.lora
    if lora.rank and not lora.targets:
        yield f"config.{field}.lora.targets is empty with rank {lora.rank}; accepted: some of {LORA_TARGETS}"
    projections = FAMILIES.get(models.get(model.name).config.family).lora_targets
    for target in (target for target in lora.targets if lora.rank and target not in projections):
        yield f"config.{field}.lora.targets has {target!r}, which {model.name} does not have; leave it out"
    known = [part.name for part in dataclasses.fields(ModelConfig)]
    for part in model.shape:
        if part not in known:
            yield f"config.{field}.shape.{part} is not a field of a model{did_you_mean(part, known)}"
    if set(model.shape) <= set(known):
        try:
            dataclasses.replace(models.get(model.name).config, **model.shape.to_dict())
        except (TypeError, ValueError) as error:
            yield f"config.{field}.shape: {error}"
    if model.init_from and not (Path(model.init_from.partition("@")[0]).expanduser() / "config.json").is_file():
        yield (
            f"config.{field}.init_from is {model.init_from!r}, where no run is, or none any more; accepted: '', or the "
            "folder of a run, with @STEP or not"
        )
    place = model.weights
    if place not in ("", "random") and not Path(place).expanduser().exists():
        accepted = "'', 'random', a folder, a GGUF file"
        yield f"config.{field}.weights is {place!r}, which does not exist; accepted: {accepted}"


def _game(c: ConfigDict) -> Iterator[str]:
    try:
        game = games.make(c.env.name, **c.env.params.to_dict())
    except (TypeError, ValueError) as error:
        yield f"config.env.params: {error}"
        return
    seats = {f"seat_{i}" for i in range(game.n_players)} | set(game.roles)
    for agent in c.agents:
        if agent != "all" and agent not in seats:
            yield f"config.agents.{agent} is no seat of {c.env.name}; accepted: all, {', '.join(sorted(seats))}"
    named = game.seat_names
    if c.env.symmetry and games.symmetry(game) is None:
        yield f"config.env.symmetry is True, and {c.env.name} declares no symmetries; accepted: False"
    players = [c.agents.get(f"seat_{i}", c.agents.get(role, c.agents.get("all", ""))) for i, role in enumerate(named)]
    if c.opponents.self_play_frac < 1 and sum(not player.startswith(opponents.BOT) for player in players) < 2:
        yield (
            f"config.opponents.self_play_frac is {c.opponents.self_play_frac}, and policies have one seat only, "
            "the learner's; accepted: 1"
        )
    free = [role for i, role in enumerate(named) if not {role, f"seat_{i}", "all"} & set(c.agents)]
    if free:
        yield f"config.agents has no policy for {', '.join(free)}; accepted: every seat, or 'all'"
    for i, role in enumerate(named):
        if role != f"seat_{i}" and {role, f"seat_{i}"} <= set(c.agents):
            yield f"config.agents has {role} and seat_{i}, which are the same seat; accepted: one of them"
    if c.algo.name == "grpo" and c.rollout.turns < game.max_turns:
        yield (
            f"config.rollout.turns is {c.rollout.turns}, but an episode of {c.env.name} may take {game.max_turns}, and "
            f"algo.name 'grpo' judges whole episodes; accepted: {game.max_turns} and more"
        )


def _opponents(c: ConfigDict) -> Iterator[str]:
    o = c.opponents
    if o.self_play_frac + o.bot_frac > 1 + 1e-9:
        yield f"config.opponents: self_play_frac {o.self_play_frac} + bot_frac {o.bot_frac} is above 1"
    if o.bot_frac > 0 and not o.bots:
        yield f"config.opponents.bot_frac is {o.bot_frac} and opponents.bots is empty; accepted: names, e.g. random"
    yield from _bots("opponents.bots", o.bots, c.env.name)
    if o.bots and not round(c.rollout.games * o.bot_frac / len(o.bots)):
        yield (
            f"config.opponents.bot_frac is {o.bot_frac}, which leaves the bots no game of {c.rollout.games}; "
            "accepted: more, or opponents.bots empty"
        )
    if o.self_play_frac + o.bot_frac < 1 - 1e-9 and not o.pool_size:
        yield (
            f"config.opponents.pool_size is 0 and leaves {1 - o.self_play_frac - o.bot_frac:.2f} of the games without "
            "an opponent; accepted: 1 and more, or shares that add up to 1"
        )
    if o.pool_size and o.self_play_frac + o.bot_frac > 1 - 1e-9:
        yield (
            f"config.opponents.pool_size is {o.pool_size}, but self_play_frac {o.self_play_frac} and bot_frac "
            f"{o.bot_frac} leave no games for past selves; accepted: 0, or shares that add up to less than 1"
        )


def _bots(field: str, names: Sequence[str], game: str) -> Iterator[str]:
    known = bot_names(game)
    for name in names:
        if name not in known:
            yield f"config.{field} has {name!r}, which is no bot of {game}; accepted: {', '.join(known)}"


def _evaluation(c: ConfigDict) -> Iterator[str]:
    runs = [name for name in c.eval.opponents if (Path(name.partition("@")[0]).expanduser() / "config.json").is_file()]
    for problem in _bots("eval.opponents", [name for name in c.eval.opponents if name not in runs], c.env.name):
        yield f"{problem}, or the folder of a run, with @STEP or not"
    if c.eval.swap_roles and (len(set(c.agents.values())) == 1 or games.game_class(c.env.name).competitive):
        yield (
            f"config.eval.swap_roles is True, and {c.env.name} is played against each other or all its roles have one "
            "policy; accepted: False, or a cooperative game with a policy for each role"
        )
    if c.log.wandb and importlib.util.find_spec("wandb") is None:
        yield "config.log.wandb is True, but the package wandb is not installed; accepted: False, or pip install wandb"


def _best(c: ConfigDict) -> Iterator[str]:
    found = c.checkpoint.best_metric
    if not found:
        return
    try:
        game = games.make(c.env.name, **c.env.params.to_dict())
    except (TypeError, ValueError):
        return  # told by `_game`
    known = set() if game.competitive else {"self", *(["swapped"] if c.eval.swap_roles else [])}
    if game.n_players > 1:
        known |= {Path(name).name for name in c.eval.opponents}
    opponent, _, figure = found.partition("/")
    if opponent not in known:
        which = f"an opponent of {', '.join(sorted(known))}" if known else "an opponent, and eval.opponents is empty"
        yield (
            f"config.checkpoint.best_metric is {found!r}, and {opponent!r} is no opponent; "
            f"accepted: <opponent>/<figure> with {which}"
        )
    if game.competitive:
        figures = ["win_rate", "draw_rate", "loss_rate", *(f"win_rate_seat_{i}" for i in range(game.n_players))]
    else:
        figures = ["score", *(["success"] if game.solvable else [])]
    if figure != "game_length" and figure.removesuffix("_low").removesuffix("_high") not in figures:
        yield (
            f"config.checkpoint.best_metric is {found!r}, and an evaluation of {c.env.name} has no figure {figure!r}; "
            f"accepted: <opponent>/<figure> with game_length, {', '.join(figures)}, or an end of their intervals (_low)"
        )
    if not c.eval.every:
        yield f"config.checkpoint.best_metric is {found!r} with eval.every 0; accepted: 1 and more"


def _planner(c: ConfigDict) -> Iterator[str]:
    # A planner's step moves nothing: it is paid for its proposal at the process level, at once, and never ends a game.
    if c.algo.name != "at_grpo" or c.algo.team_term != "immediate" or c.env.params.get("roles") != "two":
        return
    planner = next((c.agents[agent] for agent in ("seat_0", "planner", "all") if agent in c.agents), "")
    if planner not in c.policies or c.policies[planner].frozen:
        return
    unpaid = [] if c.reward.dense else ["reward.dense is False"]
    unpaid += [] if c.reward.process else ["reward.process is 0"]
    if c.env.params.get("planner_weight", 1) == 0 and c.rollout.answer != "free":
        unpaid.append("env.params.planner_weight is 0")
    for why in unpaid:
        yield (
            f"config.{why} with algo.name 'at_grpo' and algo.team_term 'immediate': all proposals of the planner are "
            "paid alike, so it would never learn; accepted: another value, or algo.team_term 'lookahead'"
        )


def _machines(c: ConfigDict) -> Iterator[str]:
    if sum(ways == -1 for ways in c.mesh.values()) > 1:
        yield f"config.mesh has more than one -1 ({dict(c.mesh)}); accepted: one axis that takes the devices left"
    if c.mesh.sampling == "tensor" and c.mesh.tensor == 1:
        yield "config.mesh.sampling is 'tensor' with mesh.tensor 1, which splits nothing; accepted: same, replicated"
    d = c.distributed
    if not d.enabled and (d.coordinator or d.processes or d.index >= 0):
        yield "config.distributed has an address or a number, and enabled is False; accepted: enabled True"
    if d.coordinator and not 0 <= d.index < d.processes:
        yield f"config.distributed.index is {d.index}; accepted: from 0 to processes - 1, {d.processes - 1}"


def _rewards(c: ConfigDict) -> Iterator[str]:
    if c.reward.team == c.reward.agent == c.reward.process == 0:
        yield "config.reward: all three weights are 0, so nothing would be learnt; accepted: at least one other than 0"
        return
    paid = games.game_class(c.env.name).reward_levels_with(c.env.params)
    if c.rollout.answer == "free" and "process" not in paid:
        paid = (*paid, "process")  # what an answer costs that names nothing
    for level in Reward._fields:
        # 1 is what the weights are where nobody chose them.
        if level not in paid and c.reward[level] not in (0, 1):
            yield (
                f"config.reward.{level} is {c.reward[level]:g}, but {c.env.name} never pays at that level; accepted: "
                f"a weight for {' or '.join(paid)}"
            )
    if not any(c.reward[level] for level in paid):
        names = " and ".join(paid)
        yield f"config.reward.{names} is 0, and {c.env.name} pays at no other level; accepted: another weight"


def _curriculum(c: ConfigDict) -> Iterator[str]:
    k = c.curriculum
    if not k.enabled:
        return
    if not games.game_class(c.env.name).has_levels:
        known = [name for name in games.GAMES if games.game_class(name).has_levels]
        yield f"config.curriculum.enabled is True with env.name {c.env.name!r}; accepted: {', '.join(known)}"
        return
    if k.start > k.grades:
        yield f"config.curriculum.start is {k.start} with grades {k.grades}; accepted: from 1 to grades"
    if k.down >= k.up:
        yield f"config.curriculum.down is {k.down:g} with up {k.up:g}; accepted: less than up"
    # A curriculum counts games that paid the team, which is what solving one does.
    field = games.game_class(c.env.name).success_reward
    if c.env.params.get(field, 1) <= 0:
        paid = c.env.params[field]
        yield f"config.env.params.{field} is {paid:g} with a curriculum, which counts on it; accepted: above 0"


def _demonstrations(c: ConfigDict) -> Iterator[str]:
    s = c.sft
    yield from _bots("sft.bot", [s.bot] if s.bot else [], c.env.name)
    parts = s.minibatches * c.algo.grad_accum_steps
    if s.games * s.turns % parts:
        what = f"sft.minibatches x algo.grad_accum_steps = {parts}"
        yield _not_divisible("sft.games x turns", s.games * s.turns, parts, what)
    if s.warmup >= s.steps:
        yield f"config.sft.warmup is {s.warmup} with sft.steps {s.steps}; accepted: less than the steps"


COMBINATIONS = (
    _algorithm, _packing, _batch, _roles, _model, _game, _opponents, _evaluation, _best, _planner, _machines, _rewards,
    _curriculum, _demonstrations,
)  # fmt: skip


def samples(config: ConfigDict) -> int:
    """How many answers one rollout gathers."""
    candidates = config.algo.group_size if config.algo.name == "at_grpo" else 1
    return config.rollout.games * config.rollout.turns * candidates


def check(config: ConfigDict, mode: str = "train") -> None:
    """Raises `ConfigError` with every problem of the config; combinations are looked at once the fields are right.

    Where nothing is learnt (`mode`), no best checkpoint is chosen, and its metric may name whom it likes.
    """
    problems = list(_single_fields(config))
    if not problems:
        wanted = [x for x in COMBINATIONS if x is not _best or mode in ("train", "sft", "compile")]
        problems = [problem for combination in wanted for problem in combination(config)]
    if problems:
        raise ConfigError(problems)


def nearest(size: int, by: int) -> tuple[int, ...]:
    """The multiples of `by` around `size`, without 0."""
    below = size // by * by
    return tuple(n for n in (below, below + by) if n > 0)


def _not_divisible(name: str, size: int, by: int, what: str) -> str:
    near = " or ".join(str(n) for n in nearest(size, by))
    return f"config.{name} is {size}, not a multiple of {what if '=' in what else f'{what}, {by}'}; nearest: {near}"
