"""What each algorithm refuses: conditions between its fields and those of the run, one problem per line.

Called once every field by itself is right and every name is known.
"""

from __future__ import annotations

from collections.abc import Iterator

from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games.bots import bot_names
from envs.tasks import TASKS
from marl_jax.agents.seating import seat_names
from marl_jax.algorithms import fields
from marl_jax.errors import not_divisible


def ppo(c: ConfigDict) -> Iterator[str]:
    """PPO: one sample per prompt, values from a critic."""
    yield from _train_turns(c)
    yield from _overlong(c)
    yield from _packing(c)
    if c.task.name and c.algo.critic == "central":
        yield (
            f"config.algo.critic is 'central' with task.name {c.task.name!r}, whose seats share no position to read; "
            "accepted: 'head' or 'separate'"
        )
    if c.algo.pack and c.algo.critic != "head":
        found = f"config.algo.pack is {c.algo.pack} with algo.critic {c.algo.critic!r}"
        yield f"{found}; accepted: 0, or algo.critic 'head'"
    if c.algo.pack and c.algo.critic_reads == "answer":
        yield f"config.algo.pack is {c.algo.pack} with algo.critic_reads 'answer'; accepted: 0, or 'chat'"
    for name, of_tasks, default in (("critic_reads", "answer", "chat"), ("whiten", "turn", "agent")):
        if c.algo[name] == of_tasks and not c.task.name:
            yield f"config.algo.{name} is {of_tasks!r} with env.name {c.env.name!r}; accepted: {default!r}, or a task"
    if c.algo.gae == "token" and not _free_answers(c):
        yield "config.algo.gae is 'token' with rollout.answer 'constrained'; accepted: 'turn', or rollout.answer 'free'"
    if c.algo.gae == "token" and c.algo.critic in ("central", "role"):
        yield (
            f"config.algo.gae is 'token' with algo.critic {c.algo.critic!r}, which has one value a turn; accepted: "
            "'turn', or algo.critic 'head' or 'separate'"
        )
    if c.algo.critic == "role" and c.algo.whiten != "none":
        yield (
            f"config.algo.whiten is {c.algo.whiten!r} with algo.critic 'role': it subtracts each agent's mean, and the "
            "average with it; accepted: 'none'"
        )


def grpo(c: ConfigDict) -> Iterator[str]:
    """GRPO: whole episodes from one start in groups."""
    yield from _train_turns(c)
    yield from _overlong(c)
    yield from _packing(c)
    yield from _no_other_players(c, "whose groups compare the learner with itself")
    field, size = ("task.n_episodes", c.task.n_episodes) if c.task.name else ("rollout.games", c.rollout.games)
    if size % c.algo.group_size:
        yield not_divisible(field, size, c.algo.group_size, "algo.group_size")
    if c.task.name:
        return
    longest = games.make(c.env.name, **c.env.params.to_dict()).max_turns
    if c.rollout.turns < longest:
        yield (
            f"config.rollout.turns is {c.rollout.turns}, but an episode of {c.env.name} may take {longest}, and "
            f"algo.name 'grpo' judges whole episodes; accepted: {longest} and more"
        )


def at_grpo(c: ConfigDict) -> Iterator[str]:
    """AT-GRPO: candidates of one prompt in groups."""
    yield from _train_turns(c)
    yield from _overlong(c)
    yield from _no_other_players(c, "whose groups compare the learner with itself")
    if not c.task.name:
        yield from _planner(c)
        return
    for name, default in (("continuation", "best"), ("team_term", "immediate")):
        if c.algo[name] != default:
            yield (
                f"config.algo.{name} is {c.algo[name]!r} with task.name {c.task.name!r}, which scores candidates and "
                f"keeps one itself; accepted: {default!r}, and what task.params offer"
            )
    workflow = getattr(TASKS.get(c.task.name)(**c.task.params.to_dict()), "graph", None)
    for node in workflow.nodes.values() if workflow is not None else ():
        for step in node.steps if not node.is_last else ():
            if step.rewards is None:
                yield (
                    f"config.algo.name is 'at_grpo' with task.name {c.task.name!r}, whose step of {step.role!r} at "
                    f"{node.name!r} has no rewards to compare candidates by; accepted: rewards at each step, or []"
                )


def sft(c: ConfigDict) -> Iterator[str]:
    """Supervised training: a bot plays all seats and all levels of a game."""
    if c.task.name:
        yield f"config.algo.name is 'sft' with task.name {c.task.name!r}, which no bot plays; accepted: a game"
        return
    known = bot_names(c.env.name)
    if c.algo.bot and c.algo.bot not in known:
        yield f"config.algo.bot is {c.algo.bot!r}, which is no bot of {c.env.name}; accepted: '', {', '.join(known)}"
    kinds = games.make(c.env.name, **c.env.params.to_dict()).action_kinds
    for kind in fields.kind_weights(c.algo.kind_weights):
        if kind not in kinds:
            known = ", ".join(dict.fromkeys(kinds)) or "none"
            yield f"config.algo.kind_weights has {kind!r}, which is no kind of move of {c.env.name}; accepted: {known}"
    yield from _no_other_players(c, "where a bot plays all seats")
    if c.curriculum.enabled:
        yield "config.curriculum.enabled is True with algo.name 'sft', which shows all levels; accepted: False"


def verifier(c: ConfigDict) -> Iterator[str]:
    """One policy, and a task of one role whose answers are labelled."""
    if not c.task.name:
        yield f"config.algo.name is 'verifier' with env.name {c.env.name!r}; accepted: a task of one role"
        return
    roles = tuple(TASKS.get(c.task.name)(**c.task.params.to_dict()).roles)
    if len(roles) != 1:
        found = f"config.task.name is {c.task.name!r} with the roles {', '.join(roles)} and algo.name 'verifier'"
        yield f"{found}, which labels the answers of one; accepted: a task, or params of it, with one role"
    if len(c.policies) != 1 or any(policy.frozen for policy in c.policies.values()):
        yield f"config.policies has {', '.join(c.policies)} with algo.name 'verifier'; accepted: one that learns"
    if c.algo.per_side > c.algo.samples:
        yield f"config.algo.per_side is {c.algo.per_side} with algo.samples {c.algo.samples}; accepted: so many at most"


def _no_other_players(c: ConfigDict, why: str) -> Iterator[str]:
    o = c.opponents
    if o.self_play_frac < 1 or o.bot_frac > 0 or o.pool_size:
        yield (
            f"config.opponents has other players than the learner with algo.name {c.algo.name!r}, {why}; "
            "accepted: self_play_frac 1, bot_frac 0 and pool_size 0"
        )


def _free_answers(c: ConfigDict) -> bool:
    return bool(c.task.name) or c.rollout.answer == "free"


def _overlong(c: ConfigDict) -> Iterator[str]:
    field, longest = (
        ("task.max_new_tokens", c.task.max_new_tokens)
        if c.task.name
        else ("rollout.max_new_tokens", c.rollout.max_new_tokens)
    )
    if c.algo.overlong == "penalty" and _free_answers(c) and c.algo.overlong_buffer >= longest:
        yield (
            f"config.algo.overlong_buffer is {c.algo.overlong_buffer} with {field} {longest}, so that every answer "
            "would be over-long; accepted: less than the limit"
        )


def _train_turns(c: ConfigDict) -> Iterator[str]:
    if c.algo.train_turns and not c.task.name:
        yield f"config.algo.train_turns is {c.algo.train_turns!r} with env.name {c.env.name!r}; accepted: (), or a task"
    if c.algo.turn_block and len(c.algo.train_turns) < 2:
        yield (
            f"config.algo.turn_block is {c.algo.turn_block} with algo.train_turns {c.algo.train_turns!r}, so that no "
            "turns take turns; accepted: 0, or two turns and more"
        )


def _packing(c: ConfigDict) -> Iterator[str]:
    if not c.algo.pack:
        return
    found = f"config.algo.pack is {c.algo.pack} with"
    if not _free_answers(c):
        yield f"{found} rollout.answer {c.rollout.answer!r}, whose samples are of one length; accepted: 0, or 'free'"
    if c.algo.grad_accum_steps < 2:
        yield f"{found} algo.grad_accum_steps 1: no parts to leave out; accepted: 0, or algo.grad_accum_steps from 2 up"
    if c.model.lora.rank and len(c.policies) > 1:
        yield f"{found} an adapter for each of {len(c.policies)} policies; accepted: 0, or one policy"


def _planner(c: ConfigDict) -> Iterator[str]:
    # A planner's step moves nothing: it is paid for its proposal at the process level, at once, and never ends a game.
    if c.algo.team_term != "immediate" or c.env.params.get("roles") != "two":
        return
    planners = seat_names(c.agents, ("planner",))[0]
    if not any(name in c.policies and not c.policies[name].frozen for name in planners):
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
