"""Collectives of compiled programs and the cost model."""

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from marl_jax.devices.hardware import CHIPS
from marl_jax.dryrun import cost_model
from marl_jax.dryrun.collectives import Collective, Total, read, totals

TEXT = """HloModule jit_f, is_scheduled=true

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

%body (p: (s32[], f32[8,4])) -> (s32[], f32[8,4]) {
  %p = (s32[], f32[8,4]{1,0}) parameter(0)
  %ag = f32[8,4]{1,0} all-gather(%shard), channel_id=1, replica_groups=[2,4]<=[4,2]T(1,0), dimensions={0}
  ROOT %t = (s32[], /*index=1*/f32[8,4]{1,0}) tuple(%i, %ag)
}

%inner_cond (p.1: (u32[], bf16[2])) -> pred[] {
  %bound = u32[]{:T(128)} constant(5)
  %i.1 = u32[]{:T(128)} get-tuple-element(%p.1), index=0
  ROOT %less = pred[]{:T(512)} compare(%i.1, %bound), direction=LT
}

%inner_body (p.2: (u32[], bf16[2])) -> (u32[], bf16[2]) {
  %cps = (bf16[2]{0:T(256)}, bf16[2]{0}, u32[], u32[]) collective-permute-start(%x), source_target_pairs={{0,0},{2,4}}
  ROOT %t.2 = (u32[], bf16[2]) tuple(%i.2, %cpd)
}

%all-reduce-scatter.1 (q: f32[16]) -> f32[4] {
  %ar = f32[16]{0} all-reduce(%q), channel_id=3, replica_groups={{0,2,4,6},{1,3,5,7}}, to_apply=%add
  ROOT %ds = f32[4]{0} dynamic-slice(%ar, %offset), dynamic_slice_sizes={4}
}

ENTRY %main (x: f32[2,4]) -> f32[8,4] {
  %w = (s32[], f32[8,4]{1,0}) while(%t0), condition=%cond, body=%body, backend_config={"known_trip_count":{"n":"3"}}
  %w.2 = (u32[], bf16[2]) while(%t1), condition=%inner_cond, body=%inner_body
  %rs = f32[4]{0} fusion(%y), kind=kCustom, calls=%all-reduce-scatter.1
  %loss = f32[] all-reduce(%l), channel_id=4, replica_groups=mesh['a'=4,'b'=2] {'a','b'}, to_apply=%add
  %ags = ((bf16[1]{0}), bf16[2]{0}) all-gather-start(%h), channel_id=5, replica_groups=[4,2]<=[8], dimensions={0}
  ROOT %out = f32[8,4]{1,0} get-tuple-element(%w), index=1
}
"""


def test_every_form_is_read_and_loops_are_multiplied():
    found = set(read(TEXT, dict(data=1, fsdp=4, tensor=2)))
    assert found == {
        Collective("all-gather", 4 * 32, 4, ("fsdp",), times=3),
        Collective("collective-permute", 2 * 2, 2, ("fsdp",), times=5),
        Collective("reduce-scatter", 4 * 16, 4, ("fsdp",), times=1),
        Collective("all-reduce", 4, 8, ("fsdp", "tensor"), times=1),
        Collective("all-gather", 2 * 2, 2, ("tensor",), times=1),
    }


def test_bytes_sent_by_rings():
    assert Collective("all-gather", 128, 4, ("fsdp",), 3).sent == 3 * 128 * 3 / 4
    assert Collective("all-reduce", 128, 4, ("fsdp",), 1).sent == 2 * 128 * 3 / 4
    assert Collective("collective-permute", 128, 2, ("fsdp",), 2).sent == 256
    some = [Collective("all-gather", 8, 4, ("fsdp",), 3), Collective("all-gather", 16, 4, ("fsdp",), 1)]
    assert totals(some) == [Total("all-gather", ("fsdp",), 4, count=4, size=40, sent=30)]


def test_a_compiled_program_gathers_the_weights_of_every_layer():
    mesh = jax.make_mesh((8, 1), ("fsdp", "tensor"), axis_types=(AxisType.Auto,) * 2)
    place = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))  # noqa: E731
    layers, rows, size = 6, 16, 64

    def f(x, w):
        x, _ = jax.lax.scan(lambda x, w: (jnp.tanh(x @ jax.lax.with_sharding_constraint(w, place())), None), x, w)
        return x

    x = jax.ShapeDtypeStruct((rows, size), jnp.float32, sharding=place("fsdp"))
    w = jax.ShapeDtypeStruct((layers, size, size), jnp.float32, sharding=place(None, "fsdp"))
    text = jax.jit(f).lower(x, w).compile().as_text()
    (total,) = totals(read(text, dict(mesh.shape)))
    assert (total.kind, total.axes, total.count, total.size) == (
        "all-gather",
        ("fsdp",),
        layers,
        layers * size * size * 4,
    )


# ----------------------------------------------------------------------------------------------------- the cost model


def result(num_shards=16, **changes):
    """Compiled result with round numbers: FSDP on 16 v5e chips with one gather and one reduction."""
    gather = dict(
        kind="all-gather",
        axes=["fsdp"],
        num_shards=num_shards,
        count=1,
        size=16e9,
        sent=16e9 * (num_shards - 1) / num_shards,
    )
    reduce = dict(
        kind="all-reduce",
        axes=["fsdp"],
        num_shards=num_shards,
        count=1,
        size=8e9,
        sent=16e9 * (num_shards - 1) / num_shards,
    )
    play = dict(flops=16 * 197e12, traffic=[gather], given=dict(parameters=1e9))
    learn = dict(flops=16 * 394e12, traffic=[reduce], given=dict(parameters=1e9))
    case = dict(
        experiment="x", model="m", lora=0, algorithm="ppo", topology="v5e:4x4", chips=16, games=256, turns=10, epochs=2,
        minibatches=4, grad_accum_steps=1, mesh=dict(data=1, fsdp=16, tensor=1), programs=dict(play=play, learn=learn),
    )  # fmt: skip
    return {**case, **changes}


def test_a_step_as_compiled():
    found = cost_model.step(result(), 16, cost_model.Assumptions(mfu=0.5, links=2, overlap=0.0))
    assert found.compute == pytest.approx(3 / 0.5)
    assert found.inside == pytest.approx(30e9 / (2 * CHIPS["v5e"].link))
    assert found.outside == 0 and found.seconds == pytest.approx(found.compute + found.inside)


def test_traffic_hides_behind_arithmetic_as_far_as_there_is_any():
    half = cost_model.step(result(), 16, cost_model.Assumptions(mfu=0.5, overlap=0.5))
    assert half.seconds == pytest.approx(half.compute + half.inside / 2)
    slow = result(programs={k: {**p, "flops": 0.0} for k, p in result()["programs"].items()})
    nothing = cost_model.step(slow, 16, cost_model.Assumptions(overlap=1.0))
    assert nothing.seconds == pytest.approx(nothing.inside)


def test_in_a_slice_rings_grow_and_between_slices_gradients_travel():
    assert cost_model.traffic(result(), 256) == pytest.approx(16e9 * 255 / 256 + 2 * 8e9 * 255 / 256)
    found = cost_model.step(result(), 1024)
    parts = 1e9 * 16 / 256  # each chip of a slice of 256 reduces its shard with those of three other slices
    assert found.outside == pytest.approx(8 * 2 * 3 / 4 * parts / CHIPS["v5e"].outside)
    assert found.inside == pytest.approx(cost_model.step(result(), 256).inside)


def test_permutations_and_tensor_axes_keep_their_size():
    ring = dict(kind="collective-permute", axes=["fsdp"], num_shards=2, count=1, size=15e9, sent=15e9)
    heads = dict(kind="all-reduce", axes=["tensor"], num_shards=4, count=1, size=1e9, sent=1.5e9)
    programs = dict(play=dict(flops=0.0, traffic=[ring, heads], given={}))
    case = result(programs=programs, mesh=dict(data=1, fsdp=4, tensor=4))
    assert cost_model.traffic(case, 16) == pytest.approx(16.5e9)
    assert cost_model.traffic(case, 64) == pytest.approx(15e9 * (15 / 16) / (3 / 4) + 1.5e9)


def test_collectives_over_a_part_of_an_axis_keep_their_size():
    """The compiler also divides an axis of 16 into groups of 2 or 8, which a larger slice does not change."""
    part = dict(kind="all-gather", axes=["fsdp"], num_shards=8, sent=7.0)
    assert cost_model.growth(part, dict(data=1, fsdp=16, tensor=1), 256) == 1.0


def test_the_tables():
    rows = cost_model.table([result()], (16, 1024)).splitlines()
    assert (
        len(rows) == 4
        and "| 16 | 256 |" in rows[2]
        and rows[2].endswith("| 100% |")
        and "| 1,024 | 16,384 |" in rows[3]
    )
    large = result(num_shards=64, topology="v5e:8x8", chips=64, games=1024, mesh=dict(data=1, fsdp=64, tensor=1))
    check = cost_model.check_table([result(), large]).splitlines()
    assert len(check) == 3 and check[2].endswith("| v5e:4x4 | v5e:8x8 | 29.34 | 29.34 |")
