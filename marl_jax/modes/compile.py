"""`--mode=compile`: compile a run for hardware that is not present.

    python launch.py --config=experiments/NAME.py --mode=compile --topology=v5e:4x4

Compiles the rollout and the update of `train.py` for shapes on a mesh of the target devices. Reports the compiler's
memory use, operations and collectives, whether the run fits, and the largest batch that fits.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path

from ml_collections import ConfigDict

from marl_jax.dryrun import largest, render, topology
from marl_jax.dryrun.forecast import Forecast, forecast
from marl_jax.dryrun.programs import Finder
from marl_jax.errors import ConfigError

log = logging.getLogger(__name__)


def main(config: ConfigDict, workdir: Path, name: str) -> None:
    """Print the forecast for the topology `name` and write it to `compile-NAME.json`."""
    if config.task.name:
        problem = f"config.task.name is {config.task.name!r}, but --mode=compile needs a game"
        raise ConfigError([f"{problem}: the rollout of a task runs on the host"])
    target = topology.parse(name)
    devices, note = topology.devices(target)
    finder = Finder()

    def measure(games: int) -> Forecast:
        trial = config.copy_and_resolve_references()
        trial.rollout.num_envs = games
        return forecast(trial, devices, finder)

    def write(first: Forecast, best_batch: dict | None = None) -> dict:
        result = render.as_json(config, target, first, [*filter(None, [note]), *sorted(finder.notes)], best_batch)
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / f"compile-{target.name.replace(':', '-')}.json").write_text(json.dumps(result, indent=1) + "\n")
        return result

    # Partial results are written at once because the update and the search for the largest batch may take long.
    first = forecast(config, devices, finder, half=write)
    sys.stdout.write(render.as_text(write(first)) + "\n")
    sys.stdout.flush()
    log.info("searching for the largest batch that fits; the table above is complete, so Ctrl-C is safe")
    step = largest.step_of(config, first.mesh["data"] * first.mesh["fsdp"])
    best, exact, made = largest.search(first, measure, step, target.chip.usable)
    best_batch = dict(
        games=best.games if best else None,
        needs=best.needs if best else None,
        exact=exact,
        tried=sorted(f.games for f in made),
        points={f.games: render.finite(f.needs) for f in made},
    )
    sys.stdout.write(render.largest_text(write(first, best_batch)) + "\n")
