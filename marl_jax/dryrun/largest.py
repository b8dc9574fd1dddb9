"""The largest batch that fits: memory grows in a straight line with the games, so two forecasts show where it ends."""

from __future__ import annotations

import math
from collections.abc import Callable

from ml_collections import ConfigDict

from marl_jax.algorithms import settings_from
from marl_jax.dryrun.forecast import Forecast
from marl_jax.errors import ConfigError
from marl_jax.schema import batches, validate

MOST = 16  # times the games of the config: nobody plans further, and compilers get slow
ATTEMPTS = 4


def step_of(config: ConfigDict, num_shards: int) -> int:
    """The smallest number of games that splits as the config and the mesh demand; all others are multiples of it."""
    trial = config.copy_and_resolve_references()
    # Every condition is that of a multiple, and its divisor is one of the numbers that rows are cut by.
    most = num_shards * batches.parts(config) * settings_from(config.algo).group_size
    for games in range(num_shards, most + 1, num_shards):
        trial.rollout.num_envs = games
        try:
            validate.check(trial)
            batches.check_batches(trial, num_shards)
        except ConfigError:
            continue
        return games
    raise ConfigError([f"config.rollout.num_envs: no number up to {most} splits over {num_shards} parts of the mesh"])


def search(
    first: Forecast, measure: Callable[[int], Forecast], step: int, limit: float
) -> tuple[Forecast | None, bool, list[Forecast]]:
    """(the largest forecast that fits, whether more than it was ruled out, all forecasts made on the way).

    first    the forecast of the config as it is
    measure  a forecast for another number of games
    step     games come in multiples of it
    limit    bytes of a chip
    """
    made = {first.games: first}
    guess = 2 * first.games if first.fits(limit) else max(step, first.games // 2 // step * step)
    top = MOST * first.games // step * step
    for _ in range(ATTEMPTS):
        if guess in made:
            break
        made[guess] = measure(guess)
        guess = _next(made, step, top, limit)
        if guess is None:
            break
    fitting = [games for games, found in made.items() if found.fits(limit)]
    if not fitting:
        return None, step in made, list(made.values())
    best = max(fitting)
    above = min((games for games, found in made.items() if not found.fits(limit)), default=math.inf)
    return made[best], above <= best + step or _line(made, limit) < best + step, list(made.values())


def _next(made: dict[int, Forecast], step: int, top: int, limit: float) -> int | None:
    """The next number of games to try: where the line through the forecasts meets the limit."""
    wanted = min(_line(made, limit), top) // step * step
    fits = [games for games, found in made.items() if found.fits(limit)]
    not_ = [games for games, found in made.items() if not found.fits(limit)]
    low, high = max(fits, default=0), min(not_, default=math.inf)
    guess = max(min(wanted, high - step), low, step)  # stays between what is known to fit and what is known not to
    return None if guess in made else int(guess)


def _line(made: dict[int, Forecast], limit: float) -> float:
    """Where the straight line through the two forecasts nearest to the limit meets it."""
    known = sorted((f for f in made.values() if math.isfinite(f.needs)), key=lambda f: abs(f.needs - limit))[:2]
    if len(known) < 2:
        return min(made) / 2  # the compiler did not say by how much it was too large
    a, b = sorted(known, key=lambda f: f.games)
    slope = (b.needs - a.needs) / (b.games - a.games)
    return math.inf if slope <= 0 else a.games + (limit - a.needs) / slope
