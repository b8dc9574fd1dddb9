"""Parts of a run with a game: rules, prompts, opponents, curriculum and jitted rollout."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import jax
from ml_collections import ConfigDict

from envs.games import registry as games
from envs.games.bots import bot_names, make_bot
from envs.games.game import Bot, Game
from envs.games.medium import Medium
from envs.games.parser import make_parser
from envs.games.puzzle import Puzzle
from envs.games.registry import make_medium, make_text
from envs.games.text import Prompt
from marl_jax.agents import critics, prompt_media
from marl_jax.agents.answers import ByValue, CompletionFormat, Constrained, FreeText
from marl_jax.agents.seating import BOT, Seating, seat_names
from marl_jax.agents.team import Backbone, Team
from marl_jax.algorithms import ALGORITHMS, settings_from
from marl_jax.devices import mesh as meshes
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import ConfigError
from marl_jax.rollouts.base import GameParts, JittedRollout, RunParts
from marl_jax.rollouts.conversations.threads import History
from marl_jax.rollouts.curriculum import Curriculum, LadderRule
from marl_jax.rollouts.games import GameRollout, central_length
from marl_jax.rollouts.level_replay import LevelReplay
from marl_jax.rollouts.opponents import Opponents, make_sections
from marl_jax.rollouts.replayed_levels import ReplayedLevels
from marl_jax.rollouts.seated_team import BestOf, SeatedTeam
from marl_jax.sampling.choice import make_choices
from marl_jax.schema.batches import check_batches
from marl_jax.setup.parts import Find, Setup, make_backbones
from models import chat
from models.config import ModelConfig
from models.tokenizers import Tokenizer


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class GameSetup(Setup):
    """Parts of a run with a game."""

    game: Game

    host = False

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the seats."""
        return tuple(self.game.seat_names)

    @property
    def reshards(self) -> bool:
        """Whether sampling and training shard the parameters differently."""
        return self.config.mesh.sampling != "same" and self.mesh.size > 1

    @property
    def parts(self) -> RunParts:
        """Parts that the algorithm builds its rollout from."""
        game = GameParts(self.game, self._rollout_arguments(), self._opponents, self._bot)
        return RunParts(self.config, self.algo, self.mesh, self.workdir, game=game)

    @property
    def rollout(self) -> JittedRollout:
        """Source of the training samples, with level replay or the curriculum if enabled."""
        rollout, c = self.algorithm.rollout(self.parts), self.config.curriculum
        if (replay := self.config.level_replay).method:
            puzzle = cast(Puzzle, self.game)
            fields = {name: replay[name] for name in ("capacity", "candidates", "replay_frac", "score")}
            edits = replay.edits if replay.method == "accel" else 0
            rule = LevelReplay(**fields, robust=replay.method != "plr", edits=edits)
            return ReplayedLevels(cast(GameRollout, rollout), rule, puzzle.levels.arrays)
        if not c.enabled:
            return cast(JittedRollout, rollout)
        rollout = cast(GameRollout, rollout)
        settings = {name: value for name, value in c.items() if name != "enabled"}
        # If games continue in the next rollout, games of the previous difficulty level end after a change.
        wait = self.game.max_turns if rollout.games_go_on else 0
        return Curriculum(rollout, LadderRule(**settings, wait=wait))

    def _rollout_arguments(self) -> dict[str, Any]:
        """Return the arguments that all rollouts of games share."""
        c = self.config
        return dict(
            game=self.game,
            team=self.team,
            rows=c.rollout.num_envs,
            turns=c.rollout.unroll_length,
            seating=self.seating,
            learns=self.learns,
            symmetry=games.symmetry(self.game) if c.env.symmetry else None,
            reward_weights=(c.reward.team, c.reward.agent, c.reward.process),
            dense=c.reward.dense,
            parse_failure_reward=c.rollout.parse_failure_reward,
            history_turns=self.history_turns,
            history_tokens=c.env.history_tokens,
            turn_tokens=c.env.turn_tokens,
        )

    def environment(self) -> dict[str, Any]:
        """Return the settings that must match to resume from a checkpoint."""
        c = self.config
        return {
            "env": c.env.to_dict(),
            "games": c.rollout.num_envs,
            "pool": c.opponents.pool_size,
            "curriculum": c.curriculum.to_dict() if c.curriculum.enabled else {},
            **({"level_replay": c.level_replay.to_dict()} if c.level_replay.method else {}),
        }

    def _opponents(self) -> Opponents | None:
        """Build the opponents of the learner; None if it only plays itself."""
        o = self.config.opponents
        bots = [make_bot(self.game, name) for name in o.bots]
        sections = make_sections(self.config.rollout.num_envs, o.self_play_frac, bots, o.bot_frac)
        if sections.own == sections.rows and not o.pool_size:
            return None
        return Opponents(sections, o.pool_size, o.snapshot_every, o.prioritized, bool(o.members), self.game.sides)

    def _bot(self, name: str) -> Bot:
        """Build a bot by name; "" is the strongest one of the game."""
        return make_bot(self.game, name or bot_names(self.config.env.name)[-1])

    def seated(self, swapped: bool = False, best_of: int = 1) -> SeatedTeam:
        """Return the team as a contestant of matches.

        Args:
            swapped: Whether every seat is played by the policy of the next seat.
            best_of: Number of candidate moves from which the one with the highest value is played; 1 to play the
                policy's move.
        """
        seating = self.seating.swapped() if swapped else self.seating
        best = BestOf(best_of, self.config.reward.agent) if best_of > 1 else None
        return SeatedTeam(self.team, seating, self.history_turns, best)

    @property
    def history_turns(self) -> int:
        """Number of completions after which a conversation restarts; 0 without conversations."""
        return self.config.env.history_turns if self.config.env.context == "history" else 0


def make(
    config: ConfigDict,
    devices: Sequence[jax.Device] | None,  # pyright: ignore[reportInvalidTypeForm]  # a variable in JAX
    find: Find,
    workdir: Path | None,
    programs: SharedPrograms,
) -> GameSetup:
    """Build the parts of a run with a game; see `setup.make` for the arguments."""
    mesh = meshes.make(config, devices)
    sample_mesh = meshes.for_sampling(mesh, config.mesh.sampling)
    check_batches(config, meshes.batch_shards(mesh), meshes.batch_shards(sample_mesh))
    game = games.make(config.env.name, **config.env.params.to_dict())
    algorithm = ALGORITHMS.get(config.algo.name)
    policies = tuple(config.policies)

    def environment(cfg: ModelConfig, tokenizer: Tokenizer):
        medium = None if config.env.observation == "text" else make_medium(game, config.env.text)
        prompt = _prompt(config, game, tokenizer, cfg, medium)
        history = config.env.context == "history"
        settings = dict(rules=prompt.prefix, keeps_cache=history, n_seats=game.n_players)
        settings |= dict(answers=_answers(config, prompt, tokenizer), simultaneous=game.simultaneous, medium=medium)
        return prompt, settings | dict(message=config.env.message if config.env.message_tokens else "")

    def find_with_messages(chosen: ConfigDict):
        cfg, place, tokenizer = find(chosen)
        return dataclasses.replace(cfg, message_tokens=config.env.message_tokens), place, tokenizer

    backbones = make_backbones(config, algorithm, mesh, find_with_messages, environment, workdir, programs)
    _check_tokenizers(config, backbones)
    seating = _seating(config, game, policies)
    setup = GameSetup(config, mesh, Team(backbones, policies), seating, algorithm, workdir, programs, game=game)
    _check_positions(setup)
    return setup


def _prompt(config: ConfigDict, game: Game, tokenizer: Tokenizer, cfg: ModelConfig, medium: Medium | None) -> Prompt:
    parts = chat.chat_parts(tokenizer) if config.env.style == "chat" else None
    text = make_text(game, config.env.text, config.env.reasoning)
    if medium is not None:
        places = _places(config, tokenizer, cfg, medium)
        text = text.with_media(medium, places, config.env.observation, config.env.media_order)
    return text.compile(tokenizer, parts, config.env.context, free=config.rollout.completion == "free")


def _places(config: ConfigDict, tokenizer: Tokenizer, cfg: ModelConfig, medium: Medium) -> list[str]:
    """Return the special tokens in the place of each medium, as text."""
    names = {"vision": "images", "audio": "sounds", "table": "tables"}
    missing = next((names[part.encoder] for part in medium.parts if getattr(cfg, part.encoder) is None), None)
    if missing:
        raise ConfigError(
            [f"config.env.observation is {config.env.observation!r}, but the weights have no encoder of {missing}"]
        )
    assert cfg.placeholder is not None
    start, end = (cfg.vision.start_id, cfg.vision.end_id) if cfg.vision is not None else (None, None)
    places = []
    for size in prompt_media.sizes(cfg, medium):
        ids = [number for number in (start, *[cfg.placeholder] * size, end) if number is not None]
        places.append(tokenizer.decode(ids))
        if tokenizer.encode(places[-1]) != ids:
            shown = tokenizer.decode(ids[:2])
            raise ConfigError([f"the tokenizer {tokenizer.name} does not read {shown!r} as the tokens {ids[:2]}"])
    return places


def _check_tokenizers(config: ConfigDict, backbones: tuple[Backbone, ...]) -> None:
    """Check that a central critic can read the prompts of all models."""
    if len({backbone.tokenizer.fingerprint for backbone in backbones}) == 1:
        return
    names = ", ".join(f"{backbone.name}: {backbone.config.name}" for backbone in backbones)
    if (critic := settings_from(config.algo).critic) in critics.CENTRAL:
        field = "algo.critic is 'central'" if critic == "central" else f"algo.name is {config.algo.name!r}"
        raise ConfigError(
            [
                f"config.{field} with policies that have different tokenizers ({names}), but its critic reads the "
                "prompts of all seats. Use one tokenizer, or algo.name 'ppo' with algo.critic 'head' or 'separate'"
            ]
        )


def _check_positions(setup: GameSetup) -> None:
    """Check that models with learned positions have enough of them."""
    problems = []
    for backbone in setup.backbones:
        known, needed = backbone.model.cfg.learned_positions, _longest(setup, backbone)
        if known and known < needed:
            name = backbone.name
            field = f"policies.{name}.model" if setup.config.policies[name].get("model") else "model"
            actual = f"shape.max_positions is {known}, but must be"
            if backbone.place is not None:
                actual = f"name is {backbone.config.name!r}, which has {known} learned positions, but must have"
            required = f">= {needed} for the prompts and completions of {setup.game.name}"
            problems.append(f"config.{field}.{actual} {required}")
    if problems:
        raise ConfigError(problems)


def _longest(setup: GameSetup, backbone: Backbone) -> int:
    """Return the largest number of tokens that a model reads in one pass, including padding."""
    policy, lengths = backbone.policy, [backbone.row]
    if setup.history_turns:
        lengths.append(History(setup.game, setup.team, setup.seating, setup.history_turns, 1).more_length)
    assert backbone.prompt is not None
    views = central_length(setup.game, policy.critic, backbone.prompt.opening_length, policy.width)
    return max(len(policy.prefix) + max(lengths), views)


def _answers(config: ConfigDict, prompt: Prompt, tokenizer: Tokenizer) -> CompletionFormat:
    """Return the completion format of the policies."""
    if config.rollout.completion == "constrained":
        names = [row[:n].tolist() for row, n in zip(prompt.action_ids, prompt.action_lengths, strict=True)]
        choices = make_choices(names, tokenizer.eos_id)
        algo = settings_from(config.algo)
        if algo.critic in critics.ACTING:
            return ByValue(choices, prompt.action_lengths, algo.epsilon)
        return Constrained(choices, prompt.action_lengths)
    longest, limit = int(prompt.action_lengths.max()), config.rollout.max_new_tokens
    if longest > limit:
        problem = f"config.rollout.max_new_tokens is {limit}, but must be >= {longest}"
        raise ConfigError([f"{problem}, the length of the longest move"])
    parse = make_parser(prompt.text.names, tokenizer.token_bytes(skip_special=True), prompt.text.marked)
    return FreeText(parse, prompt.action_ids, prompt.action_lengths, tokenizer.stop_ids, limit)


def _seating(config: ConfigDict, game: Game, policies: tuple[str, ...]) -> Seating:
    seats = seat_names(config.agents, game.seat_names)
    bots = [names[0].removeprefix(BOT) if names[0].startswith(BOT) else None for names in seats]
    return Seating(
        table=tuple(tuple(-1 if name.startswith(BOT) else policies.index(name) for name in names) for names in seats),
        bots=tuple(None if name is None else make_bot(game, name) for name in bots),
    )
