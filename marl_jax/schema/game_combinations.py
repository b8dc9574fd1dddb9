"""Checks of field combinations for runs with a game.

They run after every field and name has been checked on its own and the game has accepted its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games.bots import bot_names
from envs.games.game import Game, Reward
from envs.games.puzzle import Puzzle
from marl_jax.agents import critics
from marl_jax.agents.seating import BOT, seat_names
from marl_jax.algorithms import settings_from
from marl_jax.fields import STEP
from marl_jax.schema import combinations, run_fields
from marl_jax.serving.remote import is_remote
from models import registry as models

LEAST_REASONING = 16
"""Minimum value of `max_new_tokens` that leaves room for reasoning."""


def _made(c: ConfigDict) -> Game:
    return games.make(c.env.name, **c.env.params.to_dict())


def _seats(c: ConfigDict) -> Iterator[str]:
    game = _made(c)
    named = game.seat_names
    problems = [*combinations.seats(c, named, c.env.name)]
    yield from problems
    if c.env.symmetry and games.symmetry(game) is None:
        yield f"config.env.symmetry is True, but must be False: {c.env.name} has no symmetries"
    if problems:
        return
    bots = sum(names[0].startswith(BOT) for names in seat_names(c.agents, named))
    if c.opponents.self_play_frac < 1 and len(named) - bots < 2:
        yield (
            f"config.opponents.self_play_frac is {c.opponents.self_play_frac}, but must be 1 because only one seat "
            "has a policy"
        )


def _history(c: ConfigDict) -> Iterator[str]:
    if c.env.context != "history":
        return
    changing = [agent for agent in c.agents if "@" in agent]
    if changing:
        yield (
            f"config.agents.{changing[0]} changes the policy of a seat during its conversation with env.context "
            "'history'. Use one policy per seat, or set env.context to 'turn'."
        )


def _reasoning(c: ConfigDict) -> Iterator[str]:
    if not c.env.reasoning:
        return
    for field, value, accepted in (
        ("rollout.completion", c.rollout.completion, "free"),
        ("env.text", c.env.text, "full"),
    ):
        if value != accepted:
            yield f"config.env.reasoning is True with {field} {value!r}, but {field} must be {accepted!r}"
    if c.rollout.completion == "free" and c.rollout.max_new_tokens < LEAST_REASONING:
        yield (
            f"config.rollout.max_new_tokens is {c.rollout.max_new_tokens} with env.reasoning True, but must be >= "
            f"{LEAST_REASONING}"
        )
    if c.algo.name == "sft":
        yield "config.env.reasoning is True, but must be False: the demonstrations of algo 'sft' have no reasoning"


def _pictures(c: ConfigDict) -> Iterator[str]:
    if c.env.observation == "text":
        return
    start = f"config.env.observation is {c.env.observation!r}"
    if c.env.context != "turn":
        yield f"{start} with env.context {c.env.context!r}, but env.context must be 'turn': a prompt has one picture"
    if (entry := games.GAMES.get(c.env.name)).medium is None:
        yield f"{start}, but must be 'text': {entry.rules.name} has no pictures"
    if (critic := settings_from(c.algo).critic) in critics.CENTRAL:
        field = f"algo.critic {critic!r}" if critic == "central" else f"algo.name {c.algo.name!r}"
        yield f"{start} with {field}, but must be 'text': a central critic joins the prompts of all seats"
    for field, model in combinations.models_of(c).items():
        if models.get(model.name).config.placeholder is None:
            seeing = ", ".join(name for name in models.names() if models.get(name).config.placeholder is not None)
            yield f"{start} with {field}.name {model.name!r}, but the model must be one of: {seeing}"


def _messages(c: ConfigDict) -> Iterator[str]:
    if not c.env.message_tokens:
        return
    start = f"config.env.message_tokens is {c.env.message_tokens}"
    if not (game := _made(c)).speakers:
        yield f"{start}, but must be 0: {game.name} has no speakers"
    if (critic := settings_from(c.algo).critic) in critics.CENTRAL:
        field = f"algo.critic {critic!r}" if critic == "central" else f"algo.name {c.algo.name!r}"
        yield f"{start} with {field}, but must be 0: a central critic joins the prompts of all seats"
    for field, value, accepted in (
        ("env.context", c.env.context, "turn"),
        ("env.observation", c.env.observation, "text"),
        ("env.symmetry", c.env.symmetry, False),
    ):
        if value != accepted:
            yield f"{start} with {field} {value!r}, but {field} must be {accepted!r}"
    if len(c.policies) > 1 or c.model.lora.rank:
        field = "model.lora.rank" if c.model.lora.rank else "policies"
        yield (
            f"{start}, but must be 0 with several policies or adapters ({field}): speaker and listener share all "
            "weights, which are trained"
        )


def _seat_bots(c: ConfigDict) -> Iterator[str]:
    for agent, player in c.agents.items():
        if player.startswith(BOT):
            yield from _bots(f"agents.{agent}", [player.removeprefix(BOT)], c.env.name)
        if is_remote(player):
            yield (
                f"config.agents.{agent} is {player!r}, but must be a policy or bot:NAME: games are compiled and cannot "
                "train with remote models. eval.opponents and play.opponent accept them"
            )
    if c.judge.name:
        yield f"config.judge.name is {c.judge.name!r} with env.name {c.env.name!r}, but must be '': only tasks use it"


def _opponents(c: ConfigDict) -> Iterator[str]:
    o = c.opponents
    if o.self_play_frac + o.bot_frac > 1 + 1e-9:
        total = f"{o.self_play_frac} + {o.bot_frac}"
        yield f"config.opponents.self_play_frac + bot_frac is {total}, but must be at most 1"
    if o.bot_frac > 0 and not o.bots:
        yield f"config.opponents.bot_frac is {o.bot_frac}, but opponents.bots is empty; add bots, e.g. random"
    yield from _bots("opponents.bots", o.bots, c.env.name)
    if o.bots and not round(c.rollout.num_envs * o.bot_frac / len(o.bots)):
        yield (
            f"config.opponents.bot_frac is {o.bot_frac}, which gives the bots none of the {c.rollout.num_envs} games. "
            "Raise it, or remove opponents.bots."
        )
    if o.self_play_frac + o.bot_frac < 1 - 1e-9 and not o.pool_size:
        yield (
            f"config.opponents.pool_size is 0, but {1 - o.self_play_frac - o.bot_frac:.2f} of the games need past "
            "policies as opponents. Set pool_size >= 1, or self_play_frac and bot_frac that add up to 1."
        )
    if o.pool_size and o.self_play_frac + o.bot_frac > 1 - 1e-9:
        yield (
            f"config.opponents.pool_size is {o.pool_size}, but self_play_frac {o.self_play_frac} and bot_frac "
            f"{o.bot_frac} leave no games for past policies. Set pool_size to 0, or lower the fractions."
        )
    if len(o.members) > o.pool_size:
        yield f"config.opponents.members has {len(o.members)} runs, but must have at most pool_size: {o.pool_size}"
    if o.shares and len(o.shares) != len(o.members):
        yield f"config.opponents.shares has {len(o.shares)} numbers, but must have one for each run in members"


def _population(c: ConfigDict) -> Iterator[str]:
    if not c.population.method:
        return
    game = _made(c)
    if not game.competitive or game.n_players != 2:
        yield (
            f"config.population.method is {c.population.method!r} with env.name {c.env.name!r}, but must be '' except "
            "for competitive games for two"
        )
    if c.opponents.to_dict() != run_fields.group("opponents").to_dict():
        yield "config.opponents has changed fields, but must have its defaults: a population sets them for each member"
    known = (
        c.rollout.completion == "constrained" and c.env.context == "turn" and set(c.agents.values()) <= {*c.policies}
    )
    if c.population.meta_solver == "least_exploitable" and not (game.n_deals and known):
        yield (
            "config.population.meta_solver is 'least_exploitable', but must be 'nash' unless the game can be "
            "enumerated (kuhn, leduc), completions are constrained, env.context is 'turn' and all seats have policies"
        )
    if c.distributed.enabled:
        yield "config.distributed.enabled is True, but must be False for a population"


def _bots(field: str, names: Sequence[str], game: str) -> Iterator[str]:
    known = bot_names(game)
    for name in names:
        if name not in known:
            yield f"config.{field} has {name!r}, but the bots of {game} are: {', '.join(known)}"


def _evaluation(c: ConfigDict) -> Iterator[str]:
    local = [name for name in c.eval.opponents if not is_remote(name)]
    for name in local:
        step = name.partition("@")[2]
        if "@" in name and not STEP.holds(step):
            yield f"config.eval.opponents has {name!r}, but its step must be {STEP.accepted}"
    runs = [name for name in local if combinations.exists(name.partition("@")[0], "config.json")]
    for problem in _bots("eval.opponents", [name for name in local if name not in runs], c.env.name):
        yield f"{problem}; an opponent may also be the folder of a run, optionally with @STEP"
    if c.eval.swap_roles and (len(set(c.agents.values())) == 1 or games.game_class(c.env.name).competitive):
        yield (
            "config.eval.swap_roles is True, but must be False unless the game is cooperative and its roles have "
            "different policies"
        )


def _best_of(c: ConfigDict) -> Iterator[str]:
    if c.eval.best_of == 1:
        return
    field = f"config.eval.best_of is {c.eval.best_of}"

    def suits(name: str) -> bool:
        game = games.game_class(name)
        return game.perfect_information and game.competitive

    if not suits(c.env.name):
        known = ", ".join(filter(suits, games.GAMES))
        yield f"{field} with env.name {c.env.name!r}, but must be 1 for games other than: {known}"
    if (critic := settings_from(c.algo).critic) != "head":
        yield f"{field} with critic {critic!r}, but the critic must be 'head' to score moves"
    if c.env.context != "turn" or c.rollout.completion != "constrained":
        yield (
            f"{field} with env.context {c.env.context!r} and rollout.completion {c.rollout.completion!r}, but they "
            "must be 'turn' and 'constrained'"
        )


def _best(c: ConfigDict) -> Iterator[str]:
    best_metric = c.checkpoint.best_metric
    if not best_metric:
        return
    game = _made(c)
    known = set() if game.competitive else {"self", *(["swapped"] if c.eval.swap_roles else [])}
    if game.n_players > 1:
        known |= {Path(name).name for name in c.eval.opponents}
    if game.n_deals:
        known.add("best_response")
    opponent, _, metric = best_metric.partition("/")
    if opponent not in known:
        opponents = f"one of: {', '.join(sorted(known))}" if known else "in eval.opponents, which is empty"
        yield (
            f"config.checkpoint.best_metric is {best_metric!r}, but must be OPPONENT/METRIC, where OPPONENT is "
            f"{opponents}"
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
            f"config.checkpoint.best_metric is {best_metric!r}, but must be OPPONENT/METRIC, where METRIC is one of: "
            f"game_length, {', '.join(metrics)}, or one of them with _low or _high"
        )
    if not c.eval.every:
        yield f"config.checkpoint.best_metric is {best_metric!r}, but must be '' with eval.every 0"


def _rewards(c: ConfigDict) -> Iterator[str]:
    levels = games.game_class(c.env.name).reward_levels_with(c.env.params)
    if c.rollout.completion == "free" and "process" not in levels:
        levels = (*levels, "process")  # the penalty of completions that name no legal move
    for level in Reward._fields:
        # 1 is the default, so it need not be deliberate.
        if level not in levels and c.reward[level] not in (0, 1):
            yield (
                f"config.reward.{level} is {c.reward[level]:g}, but {c.env.name} gives no {level} rewards; set the "
                f"weight of {' or '.join(levels)}"
            )
    if not any(c.reward[level] for level in levels):
        names = " and ".join(levels)
        yield f"config.reward.{names} is 0, but must be nonzero: {c.env.name} gives no other rewards"


def _curriculum(c: ConfigDict) -> Iterator[str]:
    k = c.curriculum
    if not k.enabled:
        return
    game = games.game_class(c.env.name)
    if not game.has_levels:
        known = [name for name in games.GAMES if games.game_class(name).has_levels]
        yield f"config.curriculum.enabled is True with env.name {c.env.name!r}, but must be one of: {', '.join(known)}"
        return
    if k.start > k.difficulty_levels:
        most = k.difficulty_levels
        yield f"config.curriculum.start is {k.start}, but must be from 1 to curriculum.difficulty_levels = {most}"
    if k.down >= k.up:
        yield f"config.curriculum.down is {k.down:g} with up {k.up:g}, but must be less than up"
    # A curriculum counts games with a team reward, which is given for solving one.
    field = cast(type[Puzzle], game).success_reward
    if c.env.params.get(field, 1) <= 0:
        reward = c.env.params[field]
        yield f"config.env.params.{field} is {reward:g} with a curriculum, but must be > 0 to count solved games"


def _level_replay(c: ConfigDict) -> Iterator[str]:
    if not (method := c.level_replay.method):
        return
    start = f"config.level_replay.method is {method!r}"
    game = games.game_class(c.env.name)
    if game is not games.game_class("plan_path") and game is not games.game_class("sokoban"):
        yield f"{start} with env.name {c.env.name!r}, but must be one of: plan_path, sokoban"
    if shaping := game is games.game_class("sokoban") and c.env.params.get("shaping_reward", 0.0):
        yield (
            f"{start} with env.params.shaping_reward {shaping:g}, but sokoban has this reward on levels of the pool "
            "only. Set it to 0"
        )
    needs_solver = method == "accel" or c.level_replay.score == "regret"
    if needs_solver and game is games.game_class("sokoban") and c.env.params.get("boxes", 1) > 1:
        yield (
            f"{start} and level_replay.score {c.level_replay.score!r} with env.params.boxes {c.env.params.boxes}, but "
            "boxes must be 1, because other levels cannot be solved inside the rollout"
        )
    if c.env.params.get("roles", "one") != "one":
        yield f"{start} with env.params.roles {c.env.params.roles!r}, but roles must be 'one'"
    if c.algo.name != "ppo":
        yield f"{start} with algo.name {c.algo.name!r}, but algo.name must be 'ppo'"
    if c.curriculum.enabled:
        yield f"{start} with curriculum.enabled True, but they are mutually exclusive"
    if c.env.context != "turn":
        yield f"{start} with env.context {c.env.context!r}, but env.context must be 'turn'"


def _tasks_only(c: ConfigDict) -> Iterator[str]:
    if c.rollout.in_flight_updates:
        yield (
            f"config.rollout.in_flight_updates is True with env.name {c.env.name!r}, but must be False for games, "
            "whose rollout is one program"
        )
    if c.eval.samples > 1:
        yield f"config.eval.samples is {c.eval.samples} with env.name {c.env.name!r}, but must be 1 for games"
    if c.eval.test != "never":
        yield f"config.eval.test is {c.eval.test!r} with env.name {c.env.name!r}, but must be 'never' for games"


COMBINATIONS = (
    _seats, _seat_bots, _history, _reasoning, _pictures, _messages, _opponents, _population, _evaluation, _best_of,
    _best, _rewards, _curriculum, _level_replay, _tasks_only,
)  # fmt: skip

ONLY_LEARNING = (_best,)
"""Checks that apply only when training."""
