"""Logs of games and task episodes for users to read, a few at regular intervals.

logs/game_results_<time>.log       moves, boards and outcomes
logs/llm_conversation_<time>.log   all prompts and completions in full
logs/game_summary_<model>.txt      results of all logged games, rewritten each time
games.jsonl                        the same games for the report
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import logging
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.running.metrics import JsonLines, read_json_lines, replace_text
from marl_jax.running.private_files import make_private, make_private_folder

log = logging.getLogger(__name__)

RULE = "-" * 80
LINE = 60  # characters of a completion in the list of results


@dataclasses.dataclass(frozen=True)
class Move:
    """One decision of a player.

    Attributes:
        player: Seat of the player.
        prompt: Prompt of the player.
        answer: Completion of the player.
        action: Action that was played; "" if the completion itself is the action.
        reward: Reward of the step for each player.
        board: Position after the move as text.
        svg: Position after the move as a drawing.
        error: Reason why the completion could not be used.
        seconds: Time of the completion, if it was measured.
        value: Value that the critic predicted before the completion, if there is one.
        image: Picture in the prompt as a data URI, or "".
    """

    player: int
    prompt: str
    answer: str
    action: str
    reward: tuple[float, ...] = ()
    board: str = ""
    svg: str = ""
    error: str = ""
    seconds: float | None = None
    value: float | None = None
    image: str = ""


@dataclasses.dataclass(frozen=True)
class GameRecord:
    """One complete game.

    Attributes:
        game: Name of the game or task.
        players: Name of the player in each seat.
        moves: Moves of the game.
        outcome: "win" (see `winner`), "draw", "end" (a cooperative game or a task, see `scores`) or "incomplete".
        scores: Sum of rewards of each seat.
        winner: Seat that won, or -1.
        start_board: First position as text.
        start_svg: First position as a drawing.
        source: "train" or "eval".
        solved: Whether a puzzle or task was solved; None for other games.
        error: Reason why an episode failed.
        roles: Name of each seat.
    """

    game: str
    players: tuple[str, ...]
    moves: tuple[Move, ...]
    outcome: str
    scores: tuple[float, ...]
    winner: int = -1
    start_board: str = ""
    start_svg: str = ""
    source: str = "train"
    solved: bool | None = None
    error: str = ""
    roles: tuple[str, ...] = ()

    def __post_init__(self):
        if self.outcome not in ("win", "draw", "end", "incomplete"):
            raise ValueError(f"outcome is {self.outcome!r}, but must be one of: win, draw, end, incomplete")
        if (self.outcome == "win") != (0 <= self.winner < len(self.players)):
            subject = f"winner is {self.winner} with outcome {self.outcome!r} and {len(self.players)} players"
            raise ValueError(f"{subject}, but must be a seat if the outcome is 'win', and -1 otherwise")

    def seat(self, number: int) -> str:
        """Return the role of a seat, or its number."""
        return self.roles[number].replace("_", " ") if self.roles else f"player {number}"

    def rewards(self, values: Sequence[float]) -> str:
        """Return one value per seat in words: "planner +1, executor -0.5"."""
        return ", ".join(f"{self.seat(number)} {value:+.3g}" for number, value in enumerate(values))

    @property
    def result(self) -> str:
        """Description of the outcome."""
        if self.outcome == "win":
            return f"{self.seat(self.winner)} ({self.players[self.winner]}) wins"
        if self.outcome == "end":
            score = statistics.fmean(self.scores)
            how = "ended" if self.solved is None else "solved" if self.solved else "not solved"
            return f"{how} with score {score:.3g}"
        return f"{self.outcome} ({self.error})" if self.error else self.outcome


class GameLogs:
    """The logs of one run.

    Args:
        config: Config of the run.
        workdir: Folder of the run.
        start: Step that the run resumes from.
        main: Whether this process writes (process 0).
    """

    def __init__(self, config: ConfigDict, workdir: Path, start: int = 0, main: bool = True):
        self._config, self._main, self._full, self._is_task = config, main, False, bool(config.task.name)
        self._reported: set[Path] = set()  # files whose errors have been reported
        if not main:
            return
        folder = workdir / "logs"
        self._games = workdir / "games.jsonl"
        self._records = JsonLines(self._games, start, private=True)
        self._rounds = [_round(row) for row in read_json_lines(self._games)]
        now = datetime.datetime.now().strftime("%Y%m%d_%H%M%S")
        model = re.sub(r"[^\w.-]+", "-", config.model.name)
        make_private_folder(folder)
        self._results = folder / f"game_results_{now}.log"
        self._conversation = folder / f"llm_conversation_{now}.log"
        self._summary = folder / f"game_summary_{model}.txt"
        environment = config.task if config.task.name else config.env
        game = " ".join([environment.name, *(f"{k}={v}" for k, v in environment.params.items())])
        self._head = f"{config.name}: {game}, model {config.model.name}, from step {start}\n"

    def due(self, step: int) -> bool:
        """Return whether games are logged at this step.

        The result is the same in all processes, which play the games together.
        """
        return self._config.log.games > 0 and step % self._config.log.games_every == 0

    def write(self, step: int, games: Sequence[GameRecord]) -> None:
        """Append the first `log.games` of the games to every log."""
        if not self._main or self._is_full():
            return
        for number, game in enumerate(games[: self._config.log.games]):
            what = f"{game.source} {'episode' if self._is_task else 'game'} {number}: {game.game}"
            title = f"\n{RULE}\nstep {step}, {what}, {_seats(game)}\n{RULE}\n"
            self._append(self._results, title + "".join(_results(game)))
            self._append(self._conversation, title + "".join(_conversation(game)))
            row = {"step": step, **dataclasses.asdict(game), "result": game.result}
            self._records.write(row)
            self._rounds.append(_round(row))
        try:
            text = (task_summary if self._is_task else summary)(self._config.model.name, self._rounds)
            replace_text(self._summary, text)
        except OSError as error:
            if self._summary not in self._reported:
                log.warning("%s: %s", self._summary, error.strerror)
            self._reported.add(self._summary)

    def close(self) -> None:
        """Close the files."""
        if self._main:
            self._records.close()

    def _append(self, path: Path, text: str) -> None:
        try:
            with make_private(path).open("a", encoding="utf-8", errors="replace") as file:
                file.write(text if file.tell() else self._head + text)
        except OSError as error:
            if path not in self._reported:
                log.warning("%s: %s; games are missing from it", path, error.strerror)
            self._reported.add(path)

    def _is_full(self) -> bool:
        """Return whether a file has reached the size limit.

        With drawings the first one to do so is `games.jsonl`, otherwise the conversation log.
        """
        limit = self._config.log.max_megabytes
        for path in () if self._full else (self._games, self._conversation):
            if path.exists() and path.stat().st_size > limit * 1_000_000:
                self._full = True
                log.info("%s has reached log.max_megabytes (%d); no more games are logged", path, limit)
                break
        return self._full


def summary(model: str, rounds: Sequence[Mapping]) -> str:
    """Return the text of the summary: outcomes, and the results of each player."""
    lines = [f"Games of {model}: {len(rounds)} written out", ""]
    outcomes = collections.Counter(row["outcome"] for row in rounds)
    words = {"win": "won by a player", "draw": "drawn", "end": "played to the end together", "incomplete": "incomplete"}
    lines += [f"  {outcomes[key]:6d}  {word}" for key, word in words.items() if outcomes[key]]
    names = sorted({name for row in rounds for name in row["players"]})
    if names:
        lines += ["", f"  {'player':24s} {'seats':>6s} {'wins':>6s} {'draws':>6s} {'losses':>6s} {'mean score':>11s}"]
    for name in names:
        seats = [(row, seat) for row in rounds for seat, who in enumerate(row["players"]) if who == name]
        wins = sum(row["winner"] == seat for row, seat in seats)
        draws = sum(row["outcome"] == "draw" for row, _ in seats)
        losses = sum(row["outcome"] == "win" and row["winner"] != seat for row, seat in seats)
        score = statistics.fmean(row["scores"][seat] for row, seat in seats)
        lines.append(f"  {name:24s} {len(seats):6d} {wins:6d} {draws:6d} {losses:6d} {score:11.3f}")
    if rounds:
        lines += ["", f"  {statistics.fmean(row['moves'] for row in rounds):.1f} moves a game"]
        lines += [f"  {sum(row['errors'] for row in rounds)} answers that could not be used"]
        lines += [f"  last written at step {rounds[-1]['step']}"]
    return "\n".join(lines) + "\n"


def task_summary(model: str, rounds: Sequence[Mapping]) -> str:
    """Return the summary of a task: episodes, successes and rewards of each role."""
    finished = [row for row in rounds if row["outcome"] != "incomplete"]
    lines = [f"Episodes of {model}: {len(rounds)} written out", ""]
    lines += [f"  {sum(bool(row['solved']) for row in finished):6d}  solved"]
    lines += [f"  {sum(not row['solved'] for row in finished):6d}  not solved"]
    lines += [f"  {len(rounds) - len(finished):6d}  failed"] if len(finished) < len(rounds) else []
    names = list(dict.fromkeys(name for row in finished for name in row["players"]))
    lines += ["", f"  {'role':24s} {'episodes':>8s} {'mean reward':>12s}"] if names else []
    for name in names:
        scores = [s for row in finished for s, who in zip(row["scores"], row["players"], strict=True) if who == name]
        lines.append(f"  {name:24s} {len(scores):8d} {statistics.fmean(scores):12.3f}")
    if rounds:
        lines += ["", f"  {statistics.fmean(row['moves'] for row in rounds):.1f} turns an episode"]
        lines += [f"  {sum(row['errors'] for row in rounds)} completions that could not be used"]
        lines += [f"  last written at step {rounds[-1]['step']}"]
    return "\n".join(lines) + "\n"


def _round(row: Mapping) -> dict:
    """Return the fields of a game that the summary needs."""
    moves = row["moves"]
    errors = sum(bool(move["error"]) for move in moves)
    kept = {key: row[key] for key in ("step", "players", "outcome", "winner", "scores")}
    return {**kept, "solved": row.get("solved"), "moves": len(moves), "errors": errors}


def _seats(game: GameRecord) -> str:
    seats = [(game.seat(number), name) for number, name in enumerate(game.players)]
    return ", ".join(name if name.startswith(seat) else f"{seat} is {name}" for seat, name in seats)


def _results(game: GameRecord):
    if game.start_board:
        yield game.start_board + "\n\n"
    for turn, move in enumerate(game.moves):
        gained = f"; reward: {game.rewards(move.reward)}" if any(move.reward) else ""
        yield f"turn {turn}: {game.seat(move.player)} {_done(move)}{gained}{_error(move)}\n"
        yield f"{move.board}\n\n" if move.board else ""
    yield f"result: {game.result}; scores: {game.rewards(game.scores)}; {len(game.moves)} moves\n"


def _conversation(game: GameRecord):
    for turn, move in enumerate(game.moves):
        took = "" if move.seconds is None else f" ({move.seconds:.3f} s)"
        head = f"[turn {turn}, {game.seat(move.player)}]"
        yield f"\n{head} prompt\n{move.prompt}\n{head} answer{took}\n{move.answer}\n"
        if move.action or move.error:
            yield f"{head} {_done(move)}{_error(move)}\n"


def _done(move: Move) -> str:
    """Describe the move of a player in one line."""
    if move.action:
        return f"plays {move.action}"
    line = " ".join(move.answer.split())
    return f"answers {line[:LINE]!r}{' …' if len(line) > LINE else ''}"


def _error(move: Move) -> str:
    return f"  ! {move.error}" if move.error else ""
