"""Conditions between the fields of a run whose environment is a game.

Called once every field by itself is right, every name is known and the game accepts its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games.bots import bot_names
from envs.games.game import Game, Reward
from marl_jax.agents.seating import BOT, seat_names
from marl_jax.algorithms import settings_from
from marl_jax.fields import STEP
from marl_jax.schema import combinations
from marl_jax.serving.remote import is_remote

LEAST_REASONING = 16
"""Tokens of an answer below which there is no room for reasoning."""


def _made(c: ConfigDict) -> Game:
    return games.make(c.env.name, **c.env.params.to_dict())


def _seats(c: ConfigDict) -> Iterator[str]:
    game = _made(c)
    named = game.seat_names
    problems = [*combinations.seats(c, named, c.env.name)]
    yield from problems
    if c.env.symmetry and games.symmetry(game) is None:
        yield f"config.env.symmetry is True, and {c.env.name} declares no symmetries; accepted: False"
    if problems:
        return
    bots = sum(names[0].startswith(BOT) for names in seat_names(c.agents, named))
    if c.opponents.self_play_frac < 1 and len(named) - bots < 2:
        yield (
            f"config.opponents.self_play_frac is {c.opponents.self_play_frac}, and policies have one seat only, "
            "the learner's; accepted: 1"
        )


def _history(c: ConfigDict) -> Iterator[str]:
    if c.env.context != "history":
        return
    changing = [agent for agent in c.agents if "@" in agent]
    if changing:
        yield (
            f"config.agents.{changing[0]} changes the policy of a seat inside its conversation, with env.context "
            "'history'; accepted: one policy for a seat, or env.context 'turn'"
        )


def _reasoning(c: ConfigDict) -> Iterator[str]:
    if not c.env.reasoning:
        return
    for field, found, accepted in (
        ("rollout.completion", c.rollout.completion, "free"),
        ("env.text", c.env.text, "full"),
    ):
        if found != accepted:
            yield f"config.env.reasoning is True with {field} {found!r}; accepted: {accepted!r}, or no reasoning"
    if c.rollout.completion == "free" and c.rollout.max_new_tokens < LEAST_REASONING:
        yield (
            f"config.rollout.max_new_tokens is {c.rollout.max_new_tokens} with env.reasoning True; accepted: "
            f"{LEAST_REASONING} and more"
        )
    if c.algo.name == "sft":
        yield "config.env.reasoning is True, and the demonstrations of algo 'sft' have no reasons; accepted: False"


def _seat_bots(c: ConfigDict) -> Iterator[str]:
    for agent, player in c.agents.items():
        if player.startswith(BOT):
            yield from _bots(f"agents.{agent}", [player.removeprefix(BOT)], c.env.name)


def _opponents(c: ConfigDict) -> Iterator[str]:
    o = c.opponents
    if o.self_play_frac + o.bot_frac > 1 + 1e-9:
        yield f"config.opponents: self_play_frac {o.self_play_frac} + bot_frac {o.bot_frac} is above 1"
    if o.bot_frac > 0 and not o.bots:
        yield f"config.opponents.bot_frac is {o.bot_frac} and opponents.bots is empty; accepted: names, e.g. random"
    yield from _bots("opponents.bots", o.bots, c.env.name)
    if o.bots and not round(c.rollout.num_envs * o.bot_frac / len(o.bots)):
        yield (
            f"config.opponents.bot_frac is {o.bot_frac}, which leaves the bots no game of {c.rollout.num_envs}; "
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
            f"{o.bot_frac} leave no games for historical opponents; accepted: 0, or shares that add up to less than 1"
        )


def _bots(field: str, names: Sequence[str], game: str) -> Iterator[str]:
    known = bot_names(game)
    for name in names:
        if name not in known:
            yield f"config.{field} has {name!r}, which is no bot of {game}; accepted: {', '.join(known)}"


def _evaluation(c: ConfigDict) -> Iterator[str]:
    local = [name for name in c.eval.opponents if not is_remote(name)]
    for name in local:
        step = name.partition("@")[2]
        if "@" in name and not STEP.holds(step):
            yield f"config.eval.opponents has {name!r} with the step {step!r}; accepted: {STEP.accepted}"
    runs = [name for name in local if combinations.exists(name.partition("@")[0], "config.json")]
    for problem in _bots("eval.opponents", [name for name in local if name not in runs], c.env.name):
        yield f"{problem}, or the folder of a run, with @STEP or not"
    if c.eval.swap_roles and (len(set(c.agents.values())) == 1 or games.game_class(c.env.name).competitive):
        yield (
            f"config.eval.swap_roles is True, and {c.env.name} is played against each other or all its roles have one "
            "policy; accepted: False, or a cooperative game with a policy for each role"
        )


def _best_of(c: ConfigDict) -> Iterator[str]:
    if c.eval.best_of == 1:
        return
    found = f"config.eval.best_of is {c.eval.best_of}"

    def suits(name: str) -> bool:
        game = games.game_class(name)
        return game.perfect_information and game.competitive

    if not suits(c.env.name):
        known = ", ".join(filter(suits, games.GAMES))
        yield f"{found} with env.name {c.env.name!r}, where no move can be tried; accepted: 1, or {known}"
    if (critic := settings_from(c.algo).critic) != "head":
        yield f"{found}, and the critic of {c.algo.name} is {critic!r}; accepted: 1, or algo.critic 'head'"
    if c.env.context != "turn" or c.rollout.completion != "constrained":
        yield (
            f"{found} with env.context {c.env.context!r} and rollout.completion {c.rollout.completion!r}; "
            "accepted: 1, or 'turn' and 'constrained'"
        )


def _best(c: ConfigDict) -> Iterator[str]:
    found = c.checkpoint.best_metric
    if not found:
        return
    game = _made(c)
    known = set() if game.competitive else {"self", *(["swapped"] if c.eval.swap_roles else [])}
    if game.n_players > 1:
        known |= {Path(name).name for name in c.eval.opponents}
    if game.n_deals:
        known.add("best_response")
    opponent, _, metric = found.partition("/")
    if opponent not in known:
        which = f"an opponent of {', '.join(sorted(known))}" if known else "an opponent, and eval.opponents is empty"
        yield (
            f"config.checkpoint.best_metric is {found!r}, and {opponent!r} is no opponent; "
            f"accepted: <opponent>/<metric> with {which}"
        )
    if opponent == "best_response":
        metrics = ["exploitability", "nash_conv"]
    elif game.competitive:
        seats = [f"win_rate_seat_{i}" for i in range(game.n_players)]
        metrics = [*(["payoff"] if game.stakes else []), "score", "win_rate", "draw_rate", "loss_rate", *seats]
    else:
        metrics = ["score", *(["success"] if game.solvable else [])]
    if metric != "game_length" and metric.removesuffix("_low").removesuffix("_high") not in metrics:
        yield (
            f"config.checkpoint.best_metric is {found!r}, and an evaluation of {c.env.name} has no metric {metric!r}; "
            f"accepted: <opponent>/<metric> with game_length, {', '.join(metrics)}, or an end of their intervals (_low)"
        )
    if not c.eval.every:
        yield f"config.checkpoint.best_metric is {found!r} with eval.every 0; accepted: 1 and more"


def _rewards(c: ConfigDict) -> Iterator[str]:
    paid = games.game_class(c.env.name).reward_levels_with(c.env.params)
    if c.rollout.completion == "free" and "process" not in paid:
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
    if k.start > k.difficulty_levels:
        most = k.difficulty_levels
        yield f"config.curriculum.start is {k.start}, but difficulty_levels is {most}. It must be from 1 to {most}."
    if k.down >= k.up:
        yield f"config.curriculum.down is {k.down:g} with up {k.up:g}; accepted: less than up"
    # A curriculum counts games that paid the team, which is what solving one does.
    field = games.game_class(c.env.name).success_reward
    if c.env.params.get(field, 1) <= 0:
        paid = c.env.params[field]
        yield f"config.env.params.{field} is {paid:g} with a curriculum, which counts on it; accepted: above 0"


def _tasks_only(c: ConfigDict) -> Iterator[str]:
    if c.rollout.in_flight_updates:
        yield (
            f"config.rollout.in_flight_updates is True with env.name {c.env.name!r}, whose rollout is one program; "
            "accepted: False, or a task"
        )
    if c.eval.samples > 1:
        yield f"config.eval.samples is {c.eval.samples} with env.name {c.env.name!r}; accepted: 1, or a task"


COMBINATIONS = (
    _seats, _seat_bots, _history, _reasoning, _opponents, _evaluation, _best_of, _best, _rewards, _curriculum,
    _tasks_only,
)  # fmt: skip

ONLY_LEARNING = (_best,)
"""Conditions that do not matter where nothing is learnt."""
