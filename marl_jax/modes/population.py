"""Populations: members that are trained one after the other against the earlier ones (`config.population`).

    python launch.py --config=experiments/leduc.py:psro

The first member is an ordinary run with the config of the population. In each round of PSRO, a new member responds to
a mixture of all members. In each round of a league, the main policy continues against itself and all members, an
exploiter responds to the main policy, and another one to all members; both start again from the first main policy.

Members are runs in the subfolder `members`, and can be resumed, evaluated, played and ranked like any other run.
Running the command again continues the population.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ml_collections import ConfigDict

from marl_jax import setup as setups
from marl_jax.devices.aot import SharedPrograms
from marl_jax.errors import RunError
from marl_jax.evaluation.population import Population, Standings
from marl_jax.modes import train
from marl_jax.running import console
from marl_jax.running.metrics import replace_text, write_config
from marl_jax.running.processes import workdir_lock
from marl_jax.running.signals import GracefulStop
from marl_jax.schema import run_fields, saved, stages, sweeps
from marl_jax.setup import GameSetup
from marl_jax.web import population as page

log = logging.getLogger(__name__)

FOLDER, FILE = "members", "population.json"
LEAST_SHARE = 1e-3
"""Probability below which a member of the mixture is left out of the opponents."""


@dataclasses.dataclass(frozen=True)
class Member:
    """How a member is trained.

    Attributes:
        name: Name of its folder.
        start: Member whose weights it starts from.
        opponents: Share of each opponent.
        prioritized: Whether opponents that win are met more often.
        self_play_frac: Fraction of games against itself.
    """

    name: str
    start: str
    opponents: Mapping[str, float]
    prioritized: bool = False
    self_play_frac: float = 0.0


def main(config: ConfigDict, workdir: Path, stop: GracefulStop | None = None) -> None:
    """Train a population, or continue it.

    Args:
        config: Config of the population.
        workdir: Folder of the population.
        stop: Active handler of signals; a new one by default.
    """
    if (workdir / sweeps.FILE).exists() or (workdir / "checkpoints").exists():
        raise RunError(f"{workdir} is the folder of a run or sweep; choose another --workdir for the population")
    folder, rounds = workdir / FOLDER, config.population.rounds
    method, first = METHODS[config.population.method]
    with workdir_lock(workdir), contextlib.nullcontext(stop) if stop else GracefulStop() as stop:
        trained = functools.partial(_train, folder=folder, stop=stop, programs={})
        write_config(config, workdir)
        founder = founder_config(config, first)
        if not trained(first, founder, kind=""):
            return _stopped(first)
        setup = setups.make(founder, workdir=folder / first)
        assert isinstance(setup, GameSetup)
        with contextlib.closing(setup):
            population = Population(setup, config.population.meta_solver)
            population.add(folder / first)
            standings = population.standings()
            history = [_record(0, standings, [])]
            _write(workdir, history)
            for number in range(1, rounds + 1):
                before, members = standings, []
                for make in method:
                    members.append(make(number, standings, config))
                    name = members[-1].name
                    log.info("round %d of %d: %s against %s", number, rounds, name, _words(members[-1]))
                    if not trained(name, member_config(config, members[-1], number, folder)):
                        return _stopped(name)
                    population.add(folder / name)
                    standings = population.standings()
                history.append(_record(number, standings, members, before))
                _write(workdir, history)
    log.info("population: %s", workdir / page.FILE)


def _train(
    name: str,
    config: ConfigDict,
    folder: Path,
    stop: GracefulStop,
    programs: dict[str, SharedPrograms],
    kind: str | None = None,
) -> bool:
    """Train a member, and return whether it has finished.

    Args:
        name: Name of the member.
        config: Its config.
        folder: Folder of all members.
        stop: Tells whether the user has stopped the run.
        programs: Programs by kind of member; members of a kind differ only in opponents and initial weights.
        kind: Kind of the member; by default its name without the number.
    """
    if train.all_steps_done(folder / name, config.steps, config.stop_when):
        return True
    if stages.has_begun(folder / name):
        config = saved.read(folder / name)  # a member that was interrupted keeps its opponents and its size of the pool
    shared = programs.setdefault(name.rpartition("-")[0] if kind is None else kind, SharedPrograms())
    with console.also_log_to(folder / name):
        return train.train_stages(config, folder / name, stop, shared)


# ------------------------------------------------------------------------------------------------------------ methods


def response(number: int, standings: Standings, config: ConfigDict) -> Member:
    """Respond to a mixture of all members, from the weights of the first one."""
    opponents = {
        name: float(share)
        for name, share in zip(standings.names, standings.opponents, strict=True)
        if share >= LEAST_SHARE
    }
    return Member(f"response-{number:02}", standings.names[0], opponents)


def main_policy(number: int, standings: Standings, config: ConfigDict) -> Member:
    """Continue the main policy against itself and all members."""
    everyone = dict.fromkeys(standings.names, 1.0)
    newest = _newest(standings.names, "main")
    return Member(f"main-{number:02}", newest, everyone, True, config.population.self_play_frac)


def main_exploiter(number: int, standings: Standings, config: ConfigDict) -> Member:
    """Respond to the newest main policy, from the first one."""
    return Member(f"main_exploiter-{number:02}", "main-00", {_newest(standings.names, "main"): 1.0})


def league_exploiter(number: int, standings: Standings, config: ConfigDict) -> Member:
    """Respond to all members, from the first main policy."""
    return Member(f"league_exploiter-{number:02}", "main-00", dict.fromkeys(standings.names, 1.0), True)


Maker = Callable[[int, Standings, ConfigDict], Member]
METHODS: Mapping[str, tuple[Sequence[Maker], str]] = {
    "psro": ((response,), "response-00"),
    "league": ((main_policy, main_exploiter, league_exploiter), "main-00"),
}
"""The members of a round, and the name of the first member, by method."""


def _newest(names: Sequence[str], kind: str) -> str:
    return max(name for name in names if name.rpartition("-")[0] == kind)


# ------------------------------------------------------------------------------------------------------------ configs


def founder_config(config: ConfigDict, name: str) -> ConfigDict:
    """Return the config of the first member: the population's without the population."""
    config = config.copy_and_resolve_references().unlock()
    config.population, config.name = run_fields.group("population"), name
    return config.lock()


def member_config(config: ConfigDict, member: Member, number: int, folder: Path) -> ConfigDict:
    """Return the config of a member that is trained against others.

    It starts from a trained policy, so its entropy bonus starts where that of the first member ended. A response has no
    magnet, and its bonus falls to zero, because a best response need not be mixed.

    Args:
        config: Config of the population.
        member: The member.
        number: Number of the round.
        folder: Folder of all members.
    """
    rounds, makers = config.population.rounds, METHODS[config.population.method][0]
    changed = founder_config(config, member.name).unlock()
    changed.first_stage, changed.steps, changed.seed = {}, config.population.steps, config.seed + number
    changed.optim.warmup = min(config.optim.warmup, changed.steps - 1)
    for model in (changed.model, *(policy.model for policy in changed.policies.values() if policy.get("model"))):
        model.init_from = str(folder.absolute() / member.start)
    changed.opponents.update(
        dict(
            self_play_frac=member.self_play_frac,
            pool_size=1 + rounds * len(makers),
            prioritized=member.prioritized,
            members=tuple(str(folder.absolute() / name) for name in member.opponents),
            shares=tuple(member.opponents.values()),
        )
    )
    algo = changed.algo
    responds = not member.self_play_frac
    if "entropy_ratio" in algo:
        algo.entropy_coef, algo.entropy_ratio = algo.entropy_coef * algo.entropy_ratio, 0.0 if responds else 1.0
    if "magnet_coef" in algo and responds:
        algo.magnet_coef = 0.0
    return changed.lock()


# ------------------------------------------------------------------------------------------------------------ results


def _record(
    number: int, standings: Standings, members: Sequence[Member], before: Standings | None = None
) -> dict[str, Any]:
    """Return the results of a round as JSON values."""
    record: dict[str, Any] = {
        "round": number,
        "names": list(standings.names),
        "payoffs": standings.payoffs.tolist(),
        "shares": standings.shares.tolist(),
        "exploitability": standings.exploitability,
        "of_members": None if standings.of_members is None else list(standings.of_members),
        "opponents": {member.name: dict(member.opponents) for member in members},
    }
    if before is not None:
        n = len(before.names)
        gains = standings.payoffs[n:, :n] @ before.opponents
        record["gain"] = dict(zip(standings.names[n:], gains.tolist(), strict=True))
        record["best_gain"] = before.best_gain
    return record


def _write(workdir: Path, history: Sequence[dict[str, Any]]) -> None:
    """Write the results of all rounds as JSON, a table and a page."""
    replace_text(workdir / FILE, json.dumps({"rounds": history}, indent=2) + "\n")
    replace_text(workdir / "population.md", page.markdown(history))
    replace_text(workdir / page.FILE, page.html(workdir.name, history))


def _words(member: Member) -> str:
    """Return the opponents of a member with their shares."""
    total = sum(member.opponents.values())
    words = [f"{name} {share / total:.0%}" for name, share in member.opponents.items()]
    return ", ".join(words[-6:]) + (f" and {len(words) - 6} others" if len(words) > 6 else "")


def _stopped(name: str) -> None:
    log.info("stopped while training %s; run the same command to continue", name)
