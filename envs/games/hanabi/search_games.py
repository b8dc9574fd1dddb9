"""Play games of Hanabi with searching seats and record their moves.

    python -m envs.games.hanabi.search_games --out=runs/small_search --preset=small --games=256
    python -m envs.games.hanabi.search_games --out=runs/search --games=4096 --batch=256 --hands=1024 --rollouts=256
    python -m envs.games.hanabi.search_games --out=runs/small --preset=small --seats=all --screening=16 --rollouts=64

One seat searches, in turns, and the others play the bot. With --seats=all, every seat searches as if the others played
the bot, and plays the bot's move once their moves cannot be explained that way.

The bot plays the same decks in all seats, so that scores can be compared game by game. After every batch, its games
are written to a file in --out and the scores of all games so far to a line of the table, so the command can be stopped
at any time. Running it again continues after the last batch. `sft` trains on the recorded moves of the folder
`config.algo.data`.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from envs.games.hanabi import recorded
from envs.games.hanabi.belief import without_deck
from envs.games.hanabi.bots import ConventionBot
from envs.games.hanabi.rules import Hanabi, HanabiState
from envs.games.hanabi.search import Choice, SearchBot, play_out


class SearchGames(NamedTuple):
    """B finished games of at most T turns.

    Attributes:
        scores: int32 [B]. Final scores.
        of_bot: int32 [B]. Scores of the bot in all seats with the same decks.
        states: Positions before each turn, arrays [T, B, …], without decks.
        choices: The moves, arrays [T, B]; those of the other seats have no gain.
        searched: bool [T, B]. Whether the move was made by a searching seat.
        live: bool [T, B]. Whether the game was not over yet.
    """

    scores: jax.Array
    of_bot: jax.Array
    states: HanabiState
    choices: Choice
    searched: jax.Array
    live: jax.Array


def play(search: SearchBot, keys: jax.Array, searching: jax.Array) -> SearchGames:
    """Play games in which some seats search and the others follow their bot.

    Args:
        search: Settings of the search.
        keys: Random keys [B], one per game; they determine the decks and the search.
        searching: bool [P]. Seats that search, the same in all games.
    """
    game, rows = search.game, keys.shape[0]
    first = jax.vmap(game.reset)(keys)
    memories = jax.vmap(lambda seat: jax.vmap(search.begin, (0, None))(first, seat))(jnp.arange(game.players))

    def follow(memory, states: HanabiState, keys: jax.Array) -> Choice:
        action = jax.vmap(search.bot.act)(states, keys)
        nothing = jnp.zeros((rows,), jnp.float32)
        return Choice(action, action, nothing, nothing, jnp.zeros((rows,), jnp.int32))

    def turn(carry, number: jax.Array):
        states, memories = carry
        turn_keys = jax.vmap(jax.random.fold_in, (0, None))(keys, number)
        seat = number % game.players
        own, memory = searching[seat], jax.tree.map(lambda x: x[seat], memories)
        choices = jax.lax.cond(
            own & ~jnp.all(states.over), jax.vmap(search.choose), follow, memory, states, turn_keys
        )  # fmt: skip
        observe = jax.vmap(jax.vmap(search.observe), (0, None, None))
        memories = observe(memories, states, choices.action)
        after, _ = jax.vmap(game.step)(states, choices.action)
        record = jax.vmap(without_deck)(states), choices, jnp.broadcast_to(own, (rows,)), ~states.over
        return (after, memories), record

    (last, _), record = jax.lax.scan(turn, (first, memories), jnp.arange(game.max_turns))
    score = jax.vmap(game.score)
    return SearchGames(score(last), score(play_out(game, search.bot, first)), *record)


def decisions(games: SearchGames) -> dict[str, Any]:
    """Return the moves of all games as arrays [n, …] by name, for a file."""
    games = jax.device_get(games)
    live = games.live
    arrays: dict[str, Any] = {
        f"state.{name}": x[live] for name, x in games.states._asdict().items() if name not in ("deck", "last")
    }
    arrays |= {f"last.{name}": x[live] for name, x in games.states.last._asdict().items()}
    arrays |= {name: x[live] for name, x in games.choices._asdict().items()}
    return {**arrays, "searched": games.searched[live], "scores": games.scores, "of_bot": games.of_bot}


class _Table:
    """Scores of the games in a folder, printed and written to search.md.

    Args:
        folder: Folder of the games. If it has some, they are the first line.
    """

    HEAD = "seconds  games    bot  search  difference (95 %)     deviations  unexplained"

    def __init__(self, folder: Path):
        self._folder = folder
        self._lines = [self.HEAD]
        print(self.HEAD, flush=True)
        if any(folder.glob("games-*.npz")):
            self.add_line(0)

    def add_line(self, seconds: float) -> None:
        """Add the scores of all games so far."""
        now = recorded.summary(self._folder)
        interval = f"{now['difference']:+.2f} [{now['difference_low']:.2f}, {now['difference_high']:.2f}]"
        self._lines.append(
            f"{seconds:7.0f} {now['games']:6d} {now['bot']:6.2f} {now['search']:7.2f}  {interval:<20} "
            f"{now['deviations']:11.1%} {now['lost']:12.1%}"
        )
        print(self._lines[-1], flush=True)
        (self._folder / "search.md").write_text("```text\n" + "\n".join(self._lines) + "\n```\n")


def main(arguments: list[str] | None = None) -> int:
    """Play games and write their moves and scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="Output folder.")
    parser.add_argument("--preset", default="full", choices=tuple(Hanabi.PRESETS), help="Rules.")
    parser.add_argument("--players", type=int, default=2, help="Number of players.")
    parser.add_argument("--games", type=int, default=256, help="Number of games.")
    parser.add_argument("--batch", type=int, default=32, help="Number of games played at the same time, and per file.")
    parser.add_argument("--seats", default="one", choices=("one", "all"), help="Seats that search.")
    parser.add_argument("--seed", type=int, default=0, help="Random seed.")
    limit = "Seconds within which the last batch should end; it is estimated from the batch before."
    parser.add_argument("--limit", type=float, default=float("inf"), help=limit)
    settings = [field for field in dataclasses.fields(SearchBot) if field.name not in ("game", "bot")]
    for field in settings:
        kind = type(field.default)
        parser.add_argument(f"--{field.name}", type=kind, default=field.default, help=f"SearchBot.{field.name}.")
    flags = parser.parse_args(arguments)
    game = Hanabi(**{**Hanabi.PRESETS[flags.preset], "players": flags.players})
    search = SearchBot(game, ConventionBot(game), **{field.name: getattr(flags, field.name) for field in settings})
    described = {
        "game": recorded.rules_of(game),
        "search": {field.name: getattr(flags, field.name) for field in settings},
    }
    described |= {"seats": flags.seats, "seed": flags.seed, "batch": flags.batch}
    flags.out.mkdir(parents=True, exist_ok=True)
    place = flags.out / "search.json"
    if place.exists() and json.loads(place.read_text()) != described:
        parser.error(f"--out is {flags.out}, but its games have other settings. Choose another folder.")
    place.write_text(json.dumps(described, indent=2) + "\n")
    program, start = jax.jit(play, static_argnums=0), time.monotonic()
    table = _Table(flags.out)
    last = before = 0.0
    for number in range(-(-flags.games // flags.batch)):
        file = flags.out / f"games-{number:05d}.npz"
        if file.exists():
            continue
        if (before := time.monotonic() - start) + last > flags.limit:
            break
        keys = jax.random.split(jax.random.fold_in(jax.random.key(flags.seed), number), flags.batch)
        searching = (np.arange(game.players) == number % game.players) | (flags.seats == "all")
        arrays = decisions(program(search, keys, searching))
        part = file.with_suffix(".part")
        with part.open("wb") as out:
            np.savez_compressed(out, **arrays)
        part.rename(file)
        last = time.monotonic() - start - before
        table.add_line(before + last)
    return 0


if __name__ == "__main__":
    sys.exit(main())
