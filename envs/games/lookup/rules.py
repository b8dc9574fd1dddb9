"""Lookup: one question whose answer needs a sound and a table.

A tone names a row of a table, and the answer is the value in this row. By default, the values are a permutation of the
rows, so either the sound or the table alone leaves every value equally likely. Easier questions need one of the two:
the number of the tone, or the value in a row that the question names.
"""

import dataclasses
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from envs.games.game import Game, Reward, check_choice, check_range, keep_if_done, legal_or_end

VALUE, TONE, ROW = 0, 1, 2
"""Questions: the value in the row of the tone, the number of the tone, the value in a named row."""
QUESTIONS = {"value": (VALUE,), "tone": (TONE,), "row": (ROW,), "mixed": (VALUE, TONE, ROW)}
TAKES = 32
"""Recordings of each tone, which differ in pitch, phase, loudness and noise."""


class LookupState(NamedTuple):
    """State of a question.

    Attributes:
        question: int32 []. VALUE, TONE or ROW.
        key: int32 []. Row of the tone, or of the question ROW.
        heard: int32 []. Tone of the sound; with the question ROW it is another draw.
        take: int32 []. Recording of the tone.
        values: int32 [n]. Value in each row, a permutation unless values may repeat.
        answer: int32 []. Answer, -1 before it.
    """

    question: jax.Array
    key: jax.Array
    heard: jax.Array
    take: jax.Array
    values: jax.Array
    answer: jax.Array


@dataclasses.dataclass(frozen=True)
class Lookup(Game):
    """One question about a sound and a table, for one player.

    The team reward is 1 for the right answer.

    Attributes:
        rows: Number of rows of the table, and of tones and values.
        questions: "value", "tone" or "row" for one kind of question, "mixed" for all three in equal shares.
        hidden: "sound" or "table" to hide one of them; "" hides nothing.
        board: "table" if the values are a table of numbers, "picture" if they are a drawing.
        repeats: Whether values may repeat: they are drawn from 1 to `rows` different ones. Such tables are for
            training: with permutations, attention to all rows carries no information, so a look-up forms late. With
            repetitions, the table alone answers more than chance.
    """

    rows: int = 6
    questions: str = "value"
    hidden: str = ""
    board: str = "table"
    repeats: bool = False

    name: ClassVar[str] = "lookup"
    solvable: ClassVar[bool] = True
    reward_levels: ClassVar[tuple[str, ...]] = ("team",)
    n_players: ClassVar[int] = 1
    max_turns: ClassVar[int] = 1

    def __post_init__(self):
        check_range(self.name, "rows", self.rows, 2, 9)
        check_choice(self.name, "questions", self.questions, tuple(QUESTIONS))
        check_choice(self.name, "hidden", self.hidden, ("", "sound", "table"))
        check_choice(self.name, "board", self.board, ("table", "picture"))

    @property
    def n_actions(self) -> int:
        """A: number of values."""
        return self.rows

    @property
    def action_names(self) -> tuple[str, ...]:
        """The values as digits, from 1."""
        return tuple(str(value + 1) for value in range(self.rows))

    def reset(self, key: jax.Array) -> LookupState:
        """Draw a question, a sound and a table."""
        keys = jax.random.split(key, 5)
        kinds = jnp.asarray(QUESTIONS[self.questions], jnp.int32)
        question = kinds[jax.random.randint(keys[0], (), 0, len(kinds))]
        row, other = jax.random.randint(keys[1], (2,), 0, self.rows)
        take = jax.random.randint(keys[2], (), 0, TAKES)
        values = jax.random.permutation(keys[3], self.rows).astype(jnp.int32)
        if self.repeats:
            different, chosen = jax.random.split(keys[4])
            count = jax.random.randint(different, (), 1, self.rows + 1)
            values = values[jax.random.randint(chosen, (self.rows,), 0, count)]
        return LookupState(question, row, jnp.where(question == ROW, other, row), take, values, jnp.int32(-1))

    def player(self, state: LookupState) -> jax.Array:
        """Return the only seat: int32 []."""
        return jnp.int32(0)

    def legal(self, state: LookupState) -> jax.Array:
        """Return the legal answers; all are always legal: bool [A]."""
        return legal_or_end(jnp.ones((self.n_actions,), bool), self.done(state))

    def right(self, state: LookupState) -> jax.Array:
        """Return the right answer: int32 []."""
        return jnp.where(state.question == TONE, state.key, state.values[state.key])

    def step(self, state: LookupState, action: jax.Array) -> tuple[LookupState, Reward]:
        """Answer the question."""
        over = self.done(state)
        new = keep_if_done(over, state, state._replace(answer=jnp.asarray(action, jnp.int32)))
        gain = (~over & self.success(new)).astype(jnp.float32)
        return new, Reward(gain, jnp.zeros(1), jnp.zeros(1))

    def done(self, state: LookupState) -> jax.Array:
        """Return whether the question is answered: bool []."""
        return state.answer >= 0

    def success(self, state: LookupState) -> jax.Array:
        """Return whether the answer is right: bool []."""
        return state.answer == self.right(state)
