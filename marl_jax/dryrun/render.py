"""Forecasts as JSON, text and Markdown tables."""

from __future__ import annotations

import dataclasses
from typing import Any

from ml_collections import ConfigDict

from marl_jax.algorithms import settings_from
from marl_jax.dryrun.forecast import Forecast
from marl_jax.dryrun.topology import Topology

NAMES = {"play": "rollout (play)", "learn": "update (learn)"}


def as_json(config: ConfigDict, topology: Topology, made: Forecast, notes: list[str], largest: dict | None) -> dict:
    """Convert a forecast to a JSON value."""
    limit, algo = topology.chip.usable, settings_from(config.algo)
    return dict(
        experiment=config.name,
        model=config.model.name,
        lora=config.model.lora.rank,
        param_dtype=config.model.param_dtype,
        moments=config.optim.adam_state_dtype,
        algorithm=config.algo.name,
        critic=algo.critic,
        group=algo.group_size,
        games=made.games,
        turns=config.rollout.unroll_length,
        epochs=config.algo.epochs,
        minibatches=config.algo.minibatches,
        grad_accum_steps=config.algo.grad_accum_steps,
        topology=topology.name,
        chips=made.chips,
        mesh=made.mesh,
        limit=limit,
        needs=finite(made.needs),
        fits=made.fits(limit) if len(made.programs) + len(made.refused) == len(NAMES) else None,
        counted=dataclasses.asdict(made.counted),
        programs={name: dataclasses.asdict(program) for name, program in made.programs.items()},
        refused={name: finite(size) for name, size in made.refused.items()},
        largest=largest,
        notes=notes,
    )


def finite(size: float) -> float | None:
    """Return a size, or None if the compiler did not report it."""
    return size if size < float("inf") else None


def as_text(result: dict) -> str:
    """Format a result of `as_json` for a terminal."""
    lora = f"LoRA rank {result['lora']}" if result["lora"] else "all weights"
    mesh = " x ".join(f"{axis} {num_shards}" for axis, num_shards in result["mesh"].items())
    counted = result["counted"]
    lines = [
        f"{result['experiment']}, {result['algorithm']}, {result['model']} ({lora}) on {result['topology']}",
        f"{result['chips']} chips as {mesh}; {result['games']} games x {result['turns']} turns, rows of "
        f"{counted['row']} tokens",
        *result["notes"],
    ]
    for name, program in result["programs"].items():
        lines += ["", *_program(NAMES[name], program, result["chips"])]
    for name in NAMES.keys() - result["programs"].keys() - result["refused"].keys():
        lines += ["", f"{NAMES[name]}: not compiled"]
    for name, size in result["refused"].items():
        lines += ["", f"{NAMES[name]}: rejected by the compiler, needs {amount(size)} per chip"]
    return "\n".join([*lines, "", verdict(result)])


def _program(name: str, p: dict, chips: int) -> list[str]:
    rows = [(kind, size) for kind, size in p["given"].items()]
    rows += [("temporaries", p["temporaries"])]
    if p["cache"]:
        rows += [("  of which cache", p["cache"])]
    rows += [("outputs", p["outputs"]), ("other arrays", p["beside"]), ("total", p["total"])]
    lines = [f"{name}, bytes per chip (compiled in {p['seconds']:.0f} s)"]
    lines += [f"  {kind:<18}{amount(size):>12}" for kind, size in rows]
    compiler = p["compiler_flops"]
    note = "" if compiler is None else f"; by the compiler, loops once: {count(compiler)} per chip"
    lines += [
        f"  operations: {count(p['flops'])} in matrix products, {count(p['flops'] / chips)} per chip (by the "
        f"{'6N' if name == NAMES['learn'] else '2N'} rule {count(p['model_flops'])}){note}"
    ]
    for t in p["traffic"]:
        lines += [
            f"  {t['kind']:<18}{t['count']:>8,} x over {'+'.join(t['axes']) or '-'} ({t['num_shards']}): "
            f"{amount(t['size'])}, sent {amount(t['sent'])} per chip"
        ]
    return lines


def verdict(result: dict) -> str:
    """Return a sentence that says whether the run fits."""
    limit = f"{amount(result['limit'])} of a {result['topology'].partition(':')[0]} chip"
    needs = "more than it has" if result["needs"] is None else amount(result["needs"])
    return f"fits: needs {needs} of the {limit}" if result["fits"] else f"does not fit: needs {needs} of the {limit}"


def largest_text(result: dict) -> str:
    """Return a sentence about the largest batch that fits."""
    largest = result["largest"]
    if largest["games"] is None:
        tried = ", ".join(map(str, largest["tried"]))
        return f"no batch fits (tried {tried} games): use more chips or train fewer weights"
    kind = (
        "largest batch that fits"
        if largest["exact"]
        else "a batch that fits (larger ones may fit too, but were not tried)"
    )
    return f"{kind}: rollout.num_envs {largest['games']}, {amount(largest['needs'])} per chip"


def amount(size: float | None) -> str:
    """Format a number of bytes."""
    if size is None:
        return "unknown"
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def count(number: float) -> str:
    """Format a number of operations."""
    for power, unit in ((15, "P"), (12, "T"), (9, "G"), (6, "M")):
        if number >= 10**power:
            return f"{number / 10**power:.3g} {unit}FLOP"
    return f"{number:.0f} FLOP"


def markdown(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table of memory per chip by kind, in GiB."""
    head = (
        "case", "topology, mesh", "games", "parameters", "optimizer", "frozen", "rollout: temporaries (cache)",
        "update: temporaries", "most at once", "of", "fits", "largest games",
    )  # fmt: skip
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for r in results:
        play, learn = (r["programs"].get(name) for name in ("play", "learn"))
        any_ = learn or play or {"given": {}}
        given = lambda kind, source=any_: gib(source["given"].get(kind, 0.0))  # noqa: E731
        lora = f"LoRA {r['lora']}" if r["lora"] else "all weights"
        mesh = ", ".join(f"{axis} {num_shards}" for axis, num_shards in r["mesh"].items() if num_shards > 1)
        cells = [
            f"{_case(r)}, {lora}", f"{r['topology']}: {mesh}", r["games"],
            given("parameters"), given("optimizer"), given("frozen"),
            f"{_temporaries(r, 'play')} ({gib(play['cache'])})" if play else _temporaries(r, "play"),
            _temporaries(r, "learn"),
            gib(r["needs"]), gib(r["limit"]), {True: "yes", False: "no", None: "–"}[r["fits"]],
            _largest_cell(r["largest"]),
        ]  # fmt: skip
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines) + "\n"


def _temporaries(result: dict, name: str) -> str:
    if name in result["programs"]:
        return gib(result["programs"][name]["temporaries"])
    return f"{gib(result['refused'][name])} in all" if name in result["refused"] else "not compiled"


def _case(result: dict) -> str:
    return f"{result['algorithm'].upper().replace('_', '-')}, {result['model']}"


def _largest_cell(largest: dict | None) -> str:
    if largest is None:
        return "–"
    if largest["games"] is None:
        return "none"
    return f"{largest['games']:,}" if largest["exact"] else f"≥ {largest['games']:,}"


def gib(size: float | None) -> str:
    """Format a number of bytes in GiB."""
    return "?" if size is None else f"{size / 2**30:.2f}"


def traffic_table(results: list[dict[str, Any]]) -> str:
    """Return a Markdown table of the collectives of both programs, by kind and axes."""
    head = ("case", "topology", "program", "collective", "over", "runs", "GiB", "sent by a chip, GiB")
    lines = [f"| {' | '.join(head)} |", "|" + " --- |" * len(head)]
    for r in results:
        for name, program in r["programs"].items():
            for t in program["traffic"]:
                cells = [
                    _case(r),
                    r["topology"],
                    NAMES[name].split()[0],
                    t["kind"],
                    f"{'+'.join(t['axes'])} ({t['num_shards']})",
                    f"{t['count']:,}",
                    gib(t["size"]),
                    gib(t["sent"]),
                ]
                lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
