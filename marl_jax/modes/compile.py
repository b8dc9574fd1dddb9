"""`--mode=compile --topology=v5e:4x4`: rollout and update of an experiment compiled for hardware that is not here.

The programs are those of `train.py`, the state is shapes on a mesh of the wanted devices, and the answer is what the
compiler says: bytes by kind, operations, collectives, whether it fits and the largest batch that does.
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
    """Prints the forecast of a config for the topology called `name`, and writes it to `compile-NAME.json`."""
    if config.task.name:
        problem = f"config.task.name is {config.task.name!r}, whose rollout is Python on the host, not one program"
        raise ConfigError([f"{problem}; accepted with --mode=compile: a game"])
    target = topology.parse(name)
    devices, note = topology.devices(target)
    finder = Finder()

    def measure(games: int) -> Forecast:
        trial = config.copy_and_resolve_references()
        trial.rollout.num_envs = games
        return forecast(trial, devices, finder)

    def tell(first: Forecast, found: dict | None = None) -> dict:
        result = render.as_json(config, target, first, [*filter(None, [note]), *sorted(finder.notes)], found)
        workdir.mkdir(parents=True, exist_ok=True)
        (workdir / f"compile-{target.name.replace(':', '-')}.json").write_text(json.dumps(result, indent=1) + "\n")
        return result

    # What is known is written at once: the update and the search for the largest batch may take long.
    first = forecast(config, devices, finder, half=tell)
    sys.stdout.write(render.as_text(tell(first)) + "\n")
    sys.stdout.flush()
    log.info("searching for the largest batch that fits; Ctrl-C ends it, the table is complete")
    step = largest.step_of(config, first.mesh["data"] * first.mesh["fsdp"])
    best, exact, made = largest.search(first, measure, step, target.chip.usable)
    found = dict(
        games=best.games if best else None,
        needs=best.needs if best else None,
        exact=exact,
        tried=sorted(f.games for f in made),
        points={f.games: render.finite(f.needs) for f in made},
    )
    sys.stdout.write(render.largest_text(tell(first, found)) + "\n")
