"""Speed of the games: steps per second of random play with automatic reset, one JSON line per figure.

    python -m benchmarks.games                                  # all games, rules only and with token rendering
    python -m benchmarks.games --games hanabi --batch 4096 --tokenizer smollm2-135m

Every figure is one jitted scan over turns of a whole batch: draw a uniformly random legal action in every row, step,
and begin a new game where one ended; `rules+tokens` also renders the prompt of every row's state. Peers run the same
loop in the same process where they are installed: pgx (tic-tac-toe, connect four) with its `auto_reset`, JaxMARL
(Hanabi) with the reset inside its `step`. Both peers' `step` also writes their observation planes, which cannot be
switched off; ours writes none, so `rules+tokens` is the fairer figure beside them.

steps_per_s:     batch × turns / wall time, the best of the repeats
steps_per_cpu_s: the same by the CPU time of all threads, which other processes on the machine disturb less
"""

import argparse
import importlib.util
import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from envs.games import text as texts
from envs.games.bots import UniformBot, pick
from envs.games.game import Game, reset_done
from envs.games.registry import GAMES, make, make_text
from models import tokenizers

PARAMS = {
    "plan_path": {"n_train": 128, "n_test": 16},
    "sokoban": {"n_train": 64, "n_test": 8},
    "sudoku": {"n_train": 128, "n_test": 16},
}
"""Pools are kept small, because their size changes the time to build them and not the time of a step."""


class Subject(NamedTuple):
    """One thing to measure.

    start: keys[B] -> states; turn: (states, keys[B]) -> (states, a number that depends on all that was computed)
    """

    library: str
    game: str
    what: str
    start: Callable[[jax.Array], Any]
    turn: Callable[[Any, jax.Array], tuple[Any, jax.Array]]


def ours(game: Game, prompt: texts.Prompt | None = None) -> Subject:
    """Our rules, and with a prompt its token rendering too."""
    bot = UniformBot(game)

    def turn(states, keys):
        tokens = jnp.int32(0)
        if prompt is not None:
            ids, lengths = jax.vmap(lambda s: prompt.opening(s, game.player(s)))(states)
            ids = jax.lax.optimization_barrier(ids)  # the tokens are written out, as a model would need them
            tokens = jnp.sum(ids) + jnp.sum(lengths)
        states, reward = jax.vmap(game.step)(states, jax.vmap(bot.act)(states, keys))
        paid = sum(jnp.sum(level) for level in reward)
        return reset_done(game, states, keys), paid + tokens

    what = "rules" if prompt is None else f"rules+tokens ({prompt.text.style}, up to {prompt.opening_length} tokens)"
    return Subject("marl_jax", game.name, what, jax.vmap(game.reset), turn)


def pgx_subject(name: str) -> Subject:
    """The same game in pgx."""
    import pgx
    from pgx.experimental import auto_reset

    env = pgx.make(name)
    step = auto_reset(env.step, env.init)

    def turn(states, keys):
        actions = jax.vmap(pick)(states.legal_action_mask, keys)
        states = jax.vmap(step)(states, actions, keys)
        return states, jnp.sum(states.rewards) + jnp.sum(states.observation)

    return Subject("pgx", name, "rules+observation", jax.vmap(env.init), turn)


def jaxmarl_subject() -> Subject:
    """Full Hanabi for two players in JaxMARL."""
    import jaxmarl

    env = jaxmarl.make("hanabi")

    def turn(states, keys):
        legal = jax.vmap(env.get_legal_moves)(states)
        actions = {agent: jax.vmap(pick)(legal[agent] > 0, keys) for agent in env.agents}
        observations, states, rewards, _, _ = jax.vmap(env.step)(keys, states, actions)
        return states, sum(jnp.sum(x) for x in jax.tree.leaves((observations, rewards)))

    return Subject("jaxmarl", "hanabi", "rules+observation", lambda keys: jax.vmap(env.reset)(keys)[1], turn)


def subjects(names: list[str], tokenizer: Any, styles: Sequence[str]) -> Iterator[Subject]:
    """What there is to measure for the games asked for."""
    for name in names:
        game = make(name, **PARAMS.get(name, {}))
        yield ours(game)
        for style in styles:
            yield ours(game, make_text(game, style).compile(tokenizer))
        if name in ("tic_tac_toe", "connect_four") and importlib.util.find_spec("pgx"):
            yield pgx_subject(name)
        if name == "hanabi" and importlib.util.find_spec("jaxmarl"):
            yield jaxmarl_subject()


def measure(subject: Subject, batch: int, turns: int, repeats: int) -> dict:
    """One figure; the first run compiles and takes the games out of step with each other."""

    @jax.jit
    def run(states, key):
        def turn(states, key):
            return subject.turn(states, jax.random.split(key, batch))

        return jax.lax.scan(turn, states, jax.random.split(key, turns))

    states = jax.jit(subject.start)(jax.random.split(jax.random.key(0), batch))
    states, _ = jax.block_until_ready(run(states, jax.random.key(1)))
    wall, cpu = [], []
    for i in range(repeats):
        wall_start, cpu_start = time.perf_counter(), time.process_time()
        states, _ = jax.block_until_ready(run(states, jax.random.key(2 + i)))
        wall.append(time.perf_counter() - wall_start)
        cpu.append(time.process_time() - cpu_start)
    steps = batch * turns
    return {
        "benchmark": "games",
        "game": subject.game,
        "library": subject.library,
        "what": subject.what,
        "steps_per_s": round(steps / min(wall)),
        "steps_per_cpu_s": round(steps / min(cpu)),
        "batch": batch,
        "turns": turns,
        "repeats": repeats,
        "device": jax.devices()[0].device_kind,
        "cores": os.cpu_count(),
        "jax": jax.__version__,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES, metavar="GAME", help=", ".join(GAMES))
    parser.add_argument("--batch", type=int, default=1024, help="games side by side")
    parser.add_argument("--turns", type=int, default=100, help="turns per run")
    parser.add_argument("--repeats", type=int, default=5, help="runs of which the best counts")
    parser.add_argument("--tokenizer", default="bytes", help="name or path of the tokenizer to render with")
    args = parser.parse_args()
    tokenizer = tokenizers.load(args.tokenizer)
    styles = [s for s in texts.STYLES if s != "brief" or args.tokenizer == "bytes"]  # brief texts are for bytes
    for subject in subjects(args.games, tokenizer, styles):
        print(json.dumps(measure(subject, args.batch, args.turns, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
