"""Rollouts with conversations over several turns, and the same conversations replayed move by move.

The reference knows the game, its texts and the moves that were made. It says what every seat has read at each of its
turns, where conversations begin again, and which answers a row has room for.
"""

import contextlib
import dataclasses
import functools
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import registry as games
from envs.games.registry import make_text
from marl_jax.agents import scoring
from marl_jax.agents.answers import FreeText
from marl_jax.rollouts.conversations import transcripts
from marl_jax.rollouts.conversations.contexts import HistoryContext
from marl_jax.rollouts.games import GameRollout
from tests.marl_jax import tiny_play
from tests.marl_jax.tiny_play import SHAPE, TOKENIZER
from tests.models.tiny_models import quick_jit

GAMES = {
    "tic_tac_toe": {},
    "hanabi": dict(preset="small", max_life_tokens=4),
    "plan_path": dict(roles="two", size=5, n_train=24, n_test=8, budget=20),
    "short_path": dict(roles="two", size=5, n_train=24, n_test=8, budget=7),
}


@functools.cache
def game(name):
    """One of `GAMES`."""
    return games.make("plan_path" if name == "short_path" else name, **GAMES[name])


@functools.cache
def prompt(name, style="brief", context="history", free=False):
    """Its text."""
    return make_text(game(name), style).compile(TOKENIZER, context=context, free=free)


@functools.cache
def policy(name, style="brief", context="history", lora=None, long_names=False, free=0, critic="head"):
    """Of two layers: with one, keys and values would not tell what was read before them."""
    text = prompt(name, style, context, bool(free))
    names = tiny_play.names_of(text, (b"d", b"do ")) if long_names else None
    answers, shape = tiny_play.answers(text, names, free, lengths=True), SHAPE | dict(n_layers=2)
    return tiny_play.policy_of(text, answers, critic, lora, shape, keeps_cache=context == "history")


def rollout(name, rows, turns, kind=GameRollout, context="history", history_turns=32, style="brief", **settings):
    """A rollout of a game; arguments of `policy` go there."""
    of_policy = {key: settings.pop(key) for key in ("lora", "long_names", "free", "critic") if key in settings}
    made = policy(name, style, context, **of_policy)
    text = prompt(name, style, context, bool(of_policy.get("free")))
    turns_ = history_turns if context == "history" else 0
    return tiny_play.rollout(game(name), made, rows, turns, prompt=text, kind=kind, history_turns=turns_, **settings)


def params_of(roll, seed=0):
    """Random weights of the only backbone."""
    trained, frozen = tiny_play.weights(roll.team.backbones[0].policy, seed)
    return {"main": {**frozen, **trained}}


@contextlib.contextmanager
def watching():
    """A list that fills with the moves of programs that are traced inside: (before, move, after, turn, through).

    Arrays [B, …], one entry for each turn, whenever the programs run.
    """
    moves, observe = [], HistoryContext.observe

    def watched(self, carry, before, action, after, turn, through=None):
        seen = (before, action, after, turn, jnp.zeros((len(action), 1), jnp.int32) if through is None else through)
        jax.debug.callback(lambda *found: moves.append(jax.tree.map(np.asarray, found)), *seen, ordered=True)
        return observe(self, carry, before, action, after, turn, through)

    with mock.patch.object(HistoryContext, "observe", watched):
        yield moves


@dataclasses.dataclass
class Run:
    """What a rollout made: samples, what ended, the games afterwards, the moves."""

    program: "Program"
    roll: GameRollout
    params: dict
    start: object
    samples: object
    finished: object
    after: object
    moves: list

    def scores(self, backbone=0):
        """What the learner of a backbone computes."""
        return self.program.score(self.params, self.samples, backbone)


class Program:
    """A rollout compiled once, with the learner's scores of what it samples."""

    def __init__(self, roll):
        self.roll = roll
        self._play = jax.jit(lambda *given: roll.play(*given))
        self._score = [
            quick_jit(lambda weights, samples, i=i, b=b: scoring.score(b.policy, weights, roll.team.own(samples, i)))
            for i, b in enumerate(roll.team.backbones)
        ]
        self._moves = None

    def __call__(self, params=None, start=None, key=1, snapshot=None) -> Run:
        """One rollout from fresh games or others."""
        params = params_of(self.roll) if params is None else params
        start = jax.jit(self.roll.fresh_games)(jax.random.key(0)) if start is None else start
        given = (params, start, jax.random.key(key), snapshot)
        if self._moves is None:
            with watching() as self._moves:
                found = self._play(*given)
        else:
            self._moves.clear()
            found = self._play(*given)
        samples, finished, after = jax.device_get(jax.block_until_ready(found))
        jax.effects_barrier()
        return Run(self, self.roll, params, start, samples, finished, after, list(self._moves))

    def score(self, params, samples, backbone=0):
        """What the learner of a backbone computes."""
        name = self.roll.team.backbones[backbone].name
        return jax.device_get(self._score[backbone](params[name], samples))

    def favorites(self, params, samples) -> np.ndarray:
        """int [N, S]: the most likely one-token names under some weights, by the learner."""
        found = [
            self.score(params, samples.replace(action=np.full_like(samples.action, action))).logps
            for action in range(self.roll.game.n_actions)
        ]
        legal = np.moveaxis(samples.legal, -1, 0)
        return np.argmax(np.where(legal, np.stack(found), -np.inf), axis=0)


@dataclasses.dataclass
class Told:
    """What the reference says of every answer [N, S].

    exists     there is one
    recorded   the row had room for it
    fresh      its conversation begins with it
    opposite   someone sits there who is not the learner
    bot        a bot made the move
    waits      the game was over
    played     the move, as its seat saw it
    """

    exists: np.ndarray
    recorded: np.ndarray
    fresh: np.ndarray
    opposite: np.ndarray
    bot: np.ndarray
    waits: np.ndarray
    played: np.ndarray


class Seat:
    """One seat's conversation: the tokens so far, its answers, what it heard since, and what its row holds."""

    def __init__(self):
        self.ids, self.read, self.count, self.pending, self.heard = [], 0, 0, "", 0
        self.given, self.written, self.segment, self.whole = 0, 0, -1, True


def tell(found: Run) -> Told:
    """Follows the games, checks everything that every seat read, and says what became of every answer."""
    roll, samples = found.roll, found.samples
    n, k = roll.game.n_players, samples.n_completions // len(found.moves)
    learners = [*found.finished.seat, found.after.seat]  # of turns; the message at the last turn is never read
    shape = samples.completion_lengths.shape
    told = Told(*(np.zeros(shape, bool) for _ in range(6)), np.full(shape, -1))
    for b in range(roll.rows):
        seats, state = [Seat() for _ in range(n)], None
        for t, moves in enumerate(found.moves):
            before, move, after, turn, through = jax.tree.map(lambda x, b=b: x[b], moves)
            if turn == 0 and t > 0:
                for seat in seats:
                    seat.count, seat.pending, seat.heard = 0, "", 0
            elif t > 0:
                jax.tree.map(np.testing.assert_array_equal, before, state)
            state = after
            jax.tree.map(np.testing.assert_array_equal, after, _step(roll.game)(before, jnp.int32(move))[0])
            learner = learners[t][b] if t < len(learners) else None
            _turn(found, told, seats, b, before, int(move), through, k, learner)
            for number, seat in enumerate(seats):
                see = functools.partial(_seen, roll, through=through, seat=number)
                heard = (see(before), _mapped(roll, move, through, number), see(after), number)
                text = _prompt(roll, number).event_text(*heard)
                seat.pending += text
                seat.heard += len(_tokenizer(roll, number).encode(text))
                if seat.heard > roll.context.history.room:
                    seat.count, seat.pending, seat.heard = 0, "", 0
    np.testing.assert_array_equal(samples.completion_lengths > 0, told.exists)
    np.testing.assert_array_equal(samples.recorded(), told.recorded)
    return told


def _turn(found: Run, told: Told, seats, b, before, move, through, k, learner):
    roll, samples, history = found.roll, found.samples, found.roll.context.history
    number = int(roll.game.player(before))
    seat, row = seats[number], b * roll.game.n_players + number
    prompt, tokenizer = _prompt(roll, number), _tokenizer(roll, number)
    backbone = _backbone(roll, number)
    longest = transcripts.room(history, roll.context.turns, roll.history_tokens)

    more = prompt.close_text + seat.pending + prompt.ask_text(number)
    size = len(tokenizer.encode(more)) + len(seat.ids) - seat.read
    fresh = seat.count in (0, roll.history_turns) or seat.read + size + roll.team.width > history.slots(backbone)
    skip = len(backbone.policy.prefix)
    if fresh:
        more = prompt.opening_text(_seen(roll, before, through=through, seat=number), number)
        seat.ids, seat.read, seat.count, seat.segment = [], 0, 0, seat.segment + 1
        seat.whole = True
    new = len(tokenizer.encode(more)) - (skip if fresh else 0)
    seat.whole &= seat.written + new <= longest
    seat.written += new if seat.whole else 0

    s = seat.given * k
    here = slice(s, s + k)
    told.exists[row, here], told.fresh[row, here] = True, fresh
    opposite, bot = _who(roll, b, number, learner)
    told.opposite[row, here], told.bot[row, here] = opposite, bot
    told.waits[row, here] = bool(roll.game.done(before))
    told.played[row, here] = seen_move = _mapped(roll, move, through, number)
    assert (samples.seat[row, here] == number).all()
    kept = _kept(found, row, s, k, number, seen_move, opposite, bot)
    seat.whole &= seat.written + len(kept) <= longest
    seat.written += len(kept) if seat.whole else 0
    told.recorded[row, here] = seat.whole
    if seat.whole:
        w = samples.width // samples.n_completions
        last = int(samples.logits_index[row, s * w])
        assert samples.segment[row, last] == seat.segment
        trunk = np.ones(samples.tokens.shape[1:], bool) if samples.branch is None else samples.branch[row] < 0
        mine = (samples.segment[row] == seat.segment) & trunk & (samples.positions[row] < samples.context_len[row, s])
        places = np.flatnonzero(mine)
        order = np.argsort(samples.positions[row, places])
        np.testing.assert_array_equal(np.sort(samples.positions[row, places]), skip + np.arange(len(places)))
        ids = samples.tokens[row, places[order]].tolist()
        assert places[order][-1] == last
        assert ids[: len(seat.ids)] == seat.ids, "what was read stays as it was"
        new_ids = [*(backbone.policy.prefix if fresh else ()), *ids[len(seat.ids) :]]
        assert tokenizer.decode(new_ids) == more, (row, s)
        seat.ids = ids
    else:
        seat.ids = seat.ids + tokenizer.encode(more)[skip if fresh else 0 :]
    seat.read, seat.ids = len(seat.ids), seat.ids + kept
    seat.count, seat.given, seat.pending, seat.heard = seat.count + 1, seat.given + 1, "", 0


def _kept(found: Run, row, s, k, number, move, opposite, bot) -> list[int]:
    """Return the tokens with which the conversation continues."""
    if found.roll.seating.has_bot(number):
        return []  # nobody is asked
    answers = _backbone(found.roll, number).policy.answers
    w = found.samples.width // found.samples.n_completions
    if (opposite and not bot) or k > 1:
        ids, _ = answers.written()
        assert not opposite or k == 1
        if k > 1:
            assert move in found.samples.action[row, s : s + k]
        return ids[move, : answers.names[move]].tolist()
    length = int(found.samples.completion_lengths[row, s])
    ids = found.samples.targets[row, s * w : s * w + length].tolist()
    if isinstance(answers, FreeText):
        return ids[:-1] if ids[-1] in answers.stop_ids else ids
    action = int(found.samples.action[row, s])
    assert bot or opposite or action == move or hasattr(found.roll, "noise")
    return ids[: answers.names[action]]


def _who(roll, b, number, learner) -> tuple[bool, bool]:
    """Whether someone sits opposite the learner here, and whether that is a bot."""
    if roll.opponents is None:
        return False, roll.seating.has_bot(number)
    for bot, rows in roll.opponents.sections.slices():
        if rows.start <= b < rows.stop:
            return number != learner, number != learner and bot is not None
    return False, False


@functools.cache
def _backbone(roll, seat):
    policy = int(roll.seating.policy(jnp.asarray(seat)))
    return roll.team.backbones[int(roll.team.backbone_of(policy))]


def _prompt(roll, seat):
    return _backbone(roll, seat).prompt


def _tokenizer(roll, seat):
    return _backbone(roll, seat).tokenizer


def _seen(roll, state, through, seat):
    return state if roll.symmetry is None else _apply(roll.symmetry)(state, through[seat])


def _mapped(roll, move, through, seat) -> int:
    return int(move if roll.symmetry is None else roll.symmetry.map_action(jnp.int32(move), through[seat]))


@functools.cache
def _step(game):
    return jax.jit(game.step)


@functools.cache
def _apply(symmetry):
    return jax.jit(symmetry.apply)
