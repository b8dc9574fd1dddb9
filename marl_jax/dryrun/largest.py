"""Search for the largest batch that fits, by linear extrapolation of memory use."""

from __future__ import annotations

import math
from collections.abc import Callable

from ml_collections import ConfigDict

from marl_jax.algorithms import settings_from
from marl_jax.dryrun.forecast import Forecast
from marl_jax.errors import ConfigError
from marl_jax.schema import batches, validate

MOST = 16  # times the games of the config; compilation gets slow beyond that
ATTEMPTS = 4


def step_of(config: ConfigDict, num_shards: int) -> int:
    """Return the smallest valid number of games; all others are multiples of it."""
    trial = config.copy_and_resolve_references()
    # Every check is for a multiple of a number that divides `most`.
    most = num_shards * batches.parts(config) * settings_from(config.algo).group_size
    for games in range(num_shards, most + 1, num_shards):
        trial.rollout.num_envs = games
        try:
            validate.check(trial)
            batches.check_batches(trial, num_shards)
        except ConfigError:
            continue
        return games
    raise ConfigError([f"config.rollout.num_envs has no valid value up to {most} for {num_shards} batch shards"])


def search(
    first: Forecast, measure: Callable[[int], Forecast], step: int, limit: float
) -> tuple[Forecast | None, bool, list[Forecast]]:
    """Search for the largest number of games that fits.

    Args:
        first: Forecast of the config.
        measure: Makes a forecast for another number of games.
        step: Smallest valid number of games.
        limit: Number of bytes per chip.

    Returns:
        The largest forecast that fits, if any, whether larger ones are known not to fit, and all forecasts.
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
    fitting = [games for games, forecast in made.items() if forecast.fits(limit)]
    if not fitting:
        return None, step in made, list(made.values())
    best = max(fitting)
    above = min((games for games, forecast in made.items() if not forecast.fits(limit)), default=math.inf)
    return made[best], above <= best + step or _line(made, limit) < best + step, list(made.values())


def _next(made: dict[int, Forecast], step: int, top: int, limit: float) -> int | None:
    """Return the next number of games to try, by linear extrapolation, or None."""
    wanted = min(_line(made, limit), top) // step * step
    fits = [games for games, forecast in made.items() if forecast.fits(limit)]
    not_ = [games for games, forecast in made.items() if not forecast.fits(limit)]
    low, high = max(fits, default=0), min(not_, default=math.inf)
    guess = max(min(wanted, high - step), low, step)  # between the largest that fits and the smallest that does not
    return None if guess in made else int(guess)


def _line(made: dict[int, Forecast], limit: float) -> float:
    """Extrapolate the two forecasts nearest to the limit and return where they meet it."""
    known = sorted((f for f in made.values() if math.isfinite(f.needs)), key=lambda f: abs(f.needs - limit))[:2]
    if len(known) < 2:
        return min(made) / 2  # the compiler did not report the size
    a, b = sorted(known, key=lambda f: f.games)
    slope = (b.needs - a.needs) / (b.games - a.games)
    return math.inf if slope <= 0 else a.games + (limit - a.needs) / slope
