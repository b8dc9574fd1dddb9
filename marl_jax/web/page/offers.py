"""Games that can be played on the page, with their opponents."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence

import jax

from envs.games import registry as games
from envs.games import text as texts
from envs.games.bots import bot_names, make_bot
from envs.games.entry import GAMES
from envs.games.game import Game
from envs.games.puzzle import Puzzle
from envs.games.registry import make_text
from envs.games.text import Prompt
from marl_jax.interactive.game_table import PolicySeat
from marl_jax.serving.openai.calls import ServedModel
from marl_jax.setup.games import GameSetup
from marl_jax.setup.served_models import ServedRun
from marl_jax.web.page.opponents import BotOpponent, ModelOpponent, Opponent, PolicyOpponent
from models import chat, tokenizers

TRAINED = "trained policies"
MODEL = "model: "  # prefix of the names of served models


@dataclasses.dataclass(eq=False)
class Offer:
    """A game with all its opponents.

    The game is created when it is first played.

    Attributes:
        words: Title of the game on the page.
        name: Registered name of the game.
        roles: Names of its seats, `player 0`, … by default.
        make: Creates the game and the prompt that shows the user what a model would read.
        models: Served models by name.
        run: Run whose policies play as they were trained, or None.
    """

    words: str
    name: str
    roles: tuple[str, ...]
    make: Callable[[], tuple[Game, Prompt]]
    models: Mapping[str, ServedModel]
    run: ServedRun | None = None
    _bots: dict[str, BotOpponent] = dataclasses.field(default_factory=dict)
    _prepared: tuple[int, dict] | None = None

    @functools.cached_property
    def table(self) -> tuple[Game, Prompt]:
        """The game and its prompt."""
        return self.make()

    @property
    def opponents(self) -> list[str]:
        """Names of the opponents: policies of the run, served models, then bots from the best."""
        if len(self.roles) == 1:
            return []
        bots = list(reversed(bot_names(self.name)))
        return [*([TRAINED] if self.run else []), *(MODEL + name for name in self.models), *bots]

    def opponent(self, name: str, temperature: float) -> Opponent:
        """Return an opponent by name for one game."""
        game, prompt = self.table
        if name == TRAINED:
            return self._policies(temperature)
        if name.startswith(MODEL):
            return ModelOpponent(self.models[name.removeprefix(MODEL)], _readable(game, prompt), temperature)
        if name not in self._bots:
            self._bots[name] = BotOpponent.of(make_bot(game, name))
        return self._bots[name]

    def _policies(self, temperature: float) -> PolicyOpponent:
        assert self.run is not None and isinstance(self.run.setup, GameSetup)
        run, setup = self.run, self.run.setup
        with jax.set_mesh(setup.mesh):
            if self._prepared is None or self._prepared[0] != run.step:
                self._prepared = run.step, setup.team.prepare_for_sampling(run.weights())
            seat = PolicySeat(setup.game, setup.seated(), self._prepared[1], temperature)
        return PolicyOpponent(seat, setup.mesh)


def find_offers(models: Mapping[str, ServedModel], runs: Sequence[ServedRun]) -> dict[str, Offer]:
    """Return all games by id: those of the runs first, then all registered games."""
    offers: dict[str, Offer] = {}
    for run in runs:
        if isinstance(run.setup, GameSetup) and not run.setup.algorithm.verifies:
            game, prompt = run.setup.game, run.setup.backbones[0].prompt
            words = f"{_words(game.name)}, as in {run.workdir.name}"
            make = functools.partial(lambda *pair: pair, game, prompt)
            offers[f"run {len(offers)}: {run.workdir.name}"] = Offer(words, game.name, _roles(game), make, models, run)
    for name in GAMES:
        presets = games.game_class(name).PRESETS
        for preset in presets or ("",):
            words = f"{_words(name)} ({preset})" if preset else _words(name)
            make = functools.partial(_plain, name, preset)
            alone = issubclass(games.game_class(name), Puzzle)  # creating the levels of a puzzle takes seconds
            roles = ("player 0",) if alone else _roles(_game(name, preset))
            offers[f"{name} {preset}".strip()] = Offer(words, name, roles, make, models)
    return offers


def _game(name: str, preset: str) -> Game:
    return games.make(name, **({"preset": preset} if preset else {}))


def _roles(game: Game) -> tuple[str, ...]:
    return game.roles or tuple(f"player {seat}" for seat in range(game.n_players))


def _plain(name: str, preset: str) -> tuple[Game, Prompt]:
    game = _game(name, preset)
    tokenizer = tokenizers.load("bytes")
    return game, make_text(game).compile(tokenizer, chat.chat_parts(tokenizer))


def _readable(game: Game, prompt: Prompt) -> texts.Text:
    """Return the text for models that know a language.

    It is the text of the run, unless that is for models without one.
    """
    text = prompt.text
    assert isinstance(text, texts.Text)
    return make_text(game) if text.style == "brief" else text


def _words(name: str) -> str:
    return name.replace("_", " ")
