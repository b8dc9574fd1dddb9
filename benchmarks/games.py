"""Steps per second of the games under random play, as JSON lines.

    python -m benchmarks.games                                  # all games, rules only and with token rendering
    python -m benchmarks.games --games hanabi --batch 4096 --tokenizer smollm2-135m

Every figure is one jitted scan over turns of a batch: sample a uniformly random legal action in every row, step, and
reset finished games. `rules+tokens` also renders the prompt of every row's state. Other libraries run the same loop in
the same process if they are installed: pgx (tic-tac-toe, connect four) with its `auto_reset`, and JaxMARL (Hanabi) with
the reset inside its `step`. Their `step` also computes observation planes, which cannot be disabled. Ours computes
none, so `rules+tokens` is the fairer comparison.

steps_per_s:     batch × turns / wall time, the best of the repeats
steps_per_cpu_s: the same by CPU time of all threads, which other processes on the machine affect less
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
"""Small pools: their size changes the time to build them, but not the time of a step."""


class Subject(NamedTuple):
    """One benchmark.

    Attributes:
        library: Name of the library.
        game: Name of the game.
        what: Description of the work in a step.
        start: Maps keys [B] to states.
        turn: Maps (states, keys [B]) to (states, a number that depends on all results).
    """

    library: str
    game: str
    what: str
    start: Callable[[jax.Array], Any]
    turn: Callable[[Any, jax.Array], tuple[Any, jax.Array]]


def ours(game: Game, prompt: texts.Prompt | None = None) -> Subject:
    """Return the benchmark of our rules, with token rendering if a prompt is given."""
    bot = UniformBot(game)

    def turn(states, keys):
        tokens = jnp.int32(0)
        if prompt is not None:
            ids, lengths = jax.vmap(lambda s: prompt.opening(s, game.player(s)))(states)
            ids = jax.lax.optimization_barrier(ids)  # materialize the tokens as for a model
            tokens = jnp.sum(ids) + jnp.sum(lengths)
        states, reward = jax.vmap(game.step)(states, jax.vmap(bot.act)(states, keys))
        total = sum(jnp.sum(level) for level in reward)
        return reset_done(game, states, keys), total + tokens

    what = "rules" if prompt is None else f"rules+tokens ({prompt.text.style}, up to {prompt.opening_length} tokens)"
    return Subject("marl_jax", game.name, what, jax.vmap(game.reset), turn)


def pgx_subject(name: str) -> Subject:
    """Return the benchmark of the same game in pgx."""
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
    """Return the benchmark of full two-player Hanabi in JaxMARL."""
    import jaxmarl

    env = jaxmarl.make("hanabi")

    def turn(states, keys):
        legal = jax.vmap(env.get_legal_moves)(states)
        actions = {agent: jax.vmap(pick)(legal[agent] > 0, keys) for agent in env.agents}
        observations, states, rewards, _, _ = jax.vmap(env.step)(keys, states, actions)
        return states, sum(jnp.sum(x) for x in jax.tree.leaves((observations, rewards)))

    return Subject("jaxmarl", "hanabi", "rules+observation", lambda keys: jax.vmap(env.reset)(keys)[1], turn)


def subjects(names: list[str], tokenizer: Any, styles: Sequence[str]) -> Iterator[Subject]:
    """Yield the benchmarks of the given games."""
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
    """Return one figure.

    The first run compiles the program and desynchronizes the games.
    """

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
    """Run the benchmarks and print their JSON lines."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--games", nargs="+", default=list(GAMES), choices=GAMES, metavar="GAME", help=", ".join(GAMES))
    parser.add_argument("--batch", type=int, default=1024, help="Number of parallel games")
    parser.add_argument("--turns", type=int, default=100, help="Number of turns per run")
    parser.add_argument("--repeats", type=int, default=5, help="Number of runs; the best one counts")
    parser.add_argument("--tokenizer", default="bytes", help="Name or path of the tokenizer for rendering")
    args = parser.parse_args()
    tokenizer = tokenizers.load(args.tokenizer)
    styles = [
        s for s in texts.STYLES if s != "brief" or args.tokenizer == "bytes"
    ]  # brief texts are for the byte tokenizer
    for subject in subjects(args.games, tokenizer, styles):
        print(json.dumps(measure(subject, args.batch, args.turns, args.repeats)), flush=True)


if __name__ == "__main__":
    main()
