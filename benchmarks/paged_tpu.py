"""Memory that the batcher's programs need on TPUs, from ahead-of-time compilation.

    python -m benchmarks.paged_tpu
    python -m benchmarks.paged_tpu --topologies=v5e --models=qwen2.5-1.5b --rows=128 --tokens=100000 --tensor=2

The programs are those of `marl_jax.sampling.batcher`: `decode` generates a chunk in every row, and `read` prefills
lines of text into pages. They are compiled for chips of a 2x2 slice by libtpu (Linux x86-64, `pip install libtpu`; no
TPU needed) and never run. Each program is a row of a table with GiB per chip, as reported by the compiler:

    weights, cache  arguments of the program
    in place        results that reuse the memory of arguments
    temporaries     additional memory
    total           all of it, compared with the memory of the chip

`--gather` stores keys and values separately and gathers the pages of all rows, as on other platforms without a kernel.
"""

from __future__ import annotations

import argparse
import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from marl_jax.dryrun import topology
from marl_jax.dryrun.programs import placed
from marl_jax.sampling.batch_rows import LINE, LINES
from marl_jax.sampling.programs import Lines, Programs, RowBatch, Weights
from models import cache as kv
from models import registry, tpu_attention
from models.model import Model
from models.sharding import ACTIVATION_RULES, MESH_AXES, param_shardings, partition_spec

HEAD = ("chip", "model", "program", "weights", "cache", "in place", "temporaries", "total", "of")
STOPS = 2  # number of stop tokens


def main():
    """Compile the programs and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topologies", default="v5e,v6e")
    parser.add_argument("--models", default="smollm2-135m,qwen2.5-0.5b,qwen2.5-1.5b")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--longest", type=int, default=2048, help="Tokens in the longest context")
    parser.add_argument("--tokens", type=int, default=131072, help="Capacity of all pages in tokens")
    parser.add_argument("--page", type=int, default=16, help="Tokens per page")
    parser.add_argument("--chunk", type=int, default=16, help="Tokens that a row generates per call")
    parser.add_argument("--tensor", type=int, default=1, help="Number of chips over which heads are sharded")
    parser.add_argument("--data", type=int, default=1, help="Number of chips over which rows are sharded")
    parser.add_argument("--gather", action="store_true")
    flags = parser.parse_args()
    if flags.gather:
        tpu_attention.supported = lambda kv_heads: False
    print("| " + " | ".join(HEAD) + " |\n" + "| --- " * len(HEAD) + "|")
    for kind in flags.topologies.split(","):
        target = topology.parse(f"{kind}:2x2")
        topology.prepare(target)
        devices, _ = topology.devices(target)
        chosen = np.asarray(devices[: flags.data * flags.tensor]).reshape(flags.data, 1, flags.tensor)
        mesh = Mesh(chosen, MESH_AXES, axis_types=(AxisType.Auto,) * len(MESH_AXES))
        for name in flags.models.split(","):
            for program, given, compiled in compile_programs(Model(registry.get(name).config), mesh, flags):
                numbers = sizes(given, compiled.memory_analysis())
                amounts = [f"{n / 2**30:.3f}" for n in (*numbers, target.chip.memory)]
                cells = [kind, name, program, *amounts]
                print("| " + " | ".join(cells) + " |", flush=True)


def compile_programs(model: Model, mesh: Mesh, flags):
    """Yield (name, (weights, pages) as shapes, compiled program) of every program."""
    programs = Programs(model, jnp.bfloat16, mesh)
    weights, pages = _weights(model, mesh), _pages(model, mesh, flags)
    rows = functools.partial(_by_rows, mesh)
    width = -(-flags.longest // flags.page)

    def ints(*shape):
        return jax.ShapeDtypeStruct(shape, jnp.int32)

    n = flags.rows
    batch = RowBatch(
        ints(n), ints(n), ints(n), jax.ShapeDtypeStruct((n,), jnp.uint32), jax.ShapeDtypeStruct((n,), jnp.float32),
        ints(n, STOPS), ints(n), ints(n, width),
    )  # fmt: skip
    lowered = programs._decode_rows.lower(weights, pages, rows(batch), flags.chunk)
    yield f"decode, {n} rows", (weights, pages), lowered.compile()
    for n in LINES["tpu"]:
        lines = Lines(ints(n, LINE["tpu"]), ints(n), ints(n), ints(n, width), ints(n))
        lowered = programs._read_lines.lower(weights, pages, rows(lines))
        yield f"read, {n} lines of {LINE['tpu']}", (weights, pages), lowered.compile()


def _weights(model: Model, mesh: Mesh):
    """Return weights for decoding as shapes on the mesh."""
    unstack = functools.partial(model.unstack, dtype=jnp.bfloat16, fuse=mesh.shape["tensor"] == 1)
    stacked = model.abstract(jnp.bfloat16)
    given = placed(stacked, param_shardings(mesh, model.axes(), stacked))
    with jax.set_mesh(mesh):
        where = jax.jit(unstack).lower(given).compile().output_shardings
    return Weights(placed(jax.eval_shape(unstack, stacked), where), None, None)


def _pages(model: Model, mesh: Mesh, flags):
    """Return the pages of the cache as shapes on the mesh."""
    with jax.set_mesh(mesh):
        shapes = jax.eval_shape(lambda: kv.empty_pages(model.cfg, flags.tokens // flags.page, flags.page))
    spec = functools.partial(partition_spec, "BSKH", mesh_sizes=dict(mesh.shape), rules=ACTIVATION_RULES)
    return placed(shapes, jax.tree.map(lambda x: NamedSharding(mesh, spec(x.shape)), shapes))


def _by_rows(mesh: Mesh, tree):
    """Shard the first axis of all arrays over the data axes."""
    return placed(tree, NamedSharding(mesh, PartitionSpec(("data", "fsdp"))))


def sizes(given, memory) -> list[int]:
    """Return the bytes per chip: weights, cache, updated in place, temporaries, total."""
    own = [sum(_on_a_chip(x) for x in jax.tree.leaves(tree)) for tree in given]
    new = memory.output_size_in_bytes - memory.alias_size_in_bytes
    total = memory.argument_size_in_bytes + new + memory.temp_size_in_bytes
    return [*own, memory.alias_size_in_bytes, memory.temp_size_in_bytes, total]


def _on_a_chip(x) -> int:
    """Return the bytes of an array on one chip."""
    return int(np.prod(x.sharding.shard_shape(x.shape))) * x.dtype.itemsize


if __name__ == "__main__":
    main()
