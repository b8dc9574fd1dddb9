"""Sharding: whatever the mesh, the numbers are those of one device."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh, PartitionSpec

from models.logprobs import token_logprobs
from models.model import build
from models.sharding import (
    ACTIVATION_RULES,
    MESH_AXES,
    PARAM_RULES,
    constrain,
    num_shards,
    param_shardings,
    partition_spec,
)
from tests.models.tiny_models import (
    CONFIGS,
    FAMILIES,
    largest,
    largest_difference,
    make,
    quick_jit,
    random_tokens,
)  # fmt: skip

MESHES = {"data": (8, 1, 1), "fsdp": (1, 8, 1), "tensor": (1, 1, 8), "all": (2, 2, 2)}
BATCH, TIME = 8, 6
DECODING = [("qwen2", "tensor", False), ("gpt2", "all", False), ("qwen2", "all", True)]  # family, mesh, fuse


def mesh_of(shape) -> Mesh:
    return jax.make_mesh(shape, MESH_AXES, axis_types=(AxisType.Auto,) * 3)


def placed(model, params, mesh):
    return jax.device_put(params, param_shardings(mesh, model.axes(), model.abstract()))


def learn(model, params, tokens):
    """hidden, logits, log-probs and the gradient of their sum: what an update needs."""

    def loss(params):
        hidden, _ = model.forward(params, tokens, dtype=jnp.float32, remat="full")
        logps, entropy = token_logprobs(model, params, hidden[:, :-1], tokens[:, 1:], chunk=2)
        return jnp.sum(logps + 0.1 * entropy), (hidden, model.logits(params, hidden), logps)

    return jax.grad(loss, has_aux=True)(params)


def sample(model, fuse, params, tokens):
    """Hidden states of a prompt and of two steps after it, with a cache."""
    params = model.unstack(params, jnp.float32, fuse)
    hidden, cache = model.forward(params, tokens[:, :-2], new_cache=TIME, dtype=jnp.float32)
    pieces = [hidden]
    for t in (TIME - 2, TIME - 1):
        hidden, cache = model.forward(params, tokens[:, t : t + 1], cache=cache, dtype=jnp.float32)
        pieces.append(hidden)
    return jnp.concatenate(pieces, axis=1), cache


@functools.cache
def learnt_on_one_device():
    model, params = make("qwen2")
    return quick_jit(learn, static_argnums=0)(model, params, random_tokens(BATCH, TIME))


@functools.cache
def sampled_on_one_device(family: str):
    model, params = make(family)
    return quick_jit(sample, static_argnums=(0, 1))(model, True, params, random_tokens(BATCH, TIME))


def check(ours, theirs):
    """float32 sums in another order: 1e-5 of the largest value."""
    for mine, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        assert largest_difference(mine, other) <= 1e-5 * max(1.0, largest(other))


@pytest.mark.nightly_for("fsdp", "tensor", "data")
@pytest.mark.parametrize("name", MESHES)
def test_hidden_logits_logprobs_and_gradients_equal_one_device(name, capfd):
    model, params = make("qwen2")
    mesh, tokens = mesh_of(MESHES[name]), random_tokens(BATCH, TIME)
    with jax.set_mesh(mesh):
        params = placed(model, params, mesh)
        program = quick_jit(learn, static_argnums=0).lower(model, params, tokens).compile()
        gradients, values = program(params, tokens)
    expected, expected_values = learnt_on_one_device()
    check(values, expected_values)
    check(gradients, expected)
    # Weights may travel, [V, D] among them; an array that ends in V is made of logits and must not.
    vocab, width, text = model.cfg.vocab_size, model.cfg.d_model, program.as_text()
    travelled = re.findall(r"f32\[([\d,]*)\]\S* all-(?:gather|to-all)\(", text)
    assert not [shape for shape in travelled if shape.endswith(f",{vocab}")]
    # The gradient of the head is summed over the mesh once, not for every piece of time.
    in_loops = re.findall(r"f32\[([\d,]*)\]\S* all-reduce\(", text.partition("\nENTRY ")[0])
    vocab //= mesh.shape["tensor"]
    assert not {f"{width},{vocab}", f"{vocab},{width}"} & {*in_loops}
    assert "Involuntary full rematerialization" not in capfd.readouterr().err


@pytest.mark.nightly_for("gpt2-all-False", "qwen2-tensor-False")
@pytest.mark.parametrize("family, name, fuse", DECODING)
def test_decoding_equals_one_device(family, name, fuse):
    """Without fusing, as it should be done when heads are split, and with it, which is slower but not wrong."""
    model, params = make(family)
    mesh, tokens = mesh_of(MESHES[name]), random_tokens(BATCH, TIME)
    with jax.set_mesh(mesh):
        hidden, cache = quick_jit(sample, static_argnums=(0, 1))(model, fuse, placed(model, params, mesh), tokens)
    check((hidden, cache), sampled_on_one_device(family))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_parameter_is_split_where_it_can_be(family):
    model = build(CONFIGS[family])
    mesh = mesh_of(MESHES["all"])
    shardings = param_shardings(mesh, model.axes(), model.abstract())
    for (path, leaf), sharding in zip(
        jax.tree.leaves_with_path(model.abstract()), jax.tree.leaves(shardings), strict=True
    ):
        name = jax.tree_util.keystr(path)
        assert len(sharding.spec) == leaf.ndim, name
        used = [axis for axis in sharding.spec if axis]
        matrix = leaf.ndim - ("layers" in name) >= 2 and "bias" not in name
        if matrix:
            expected = {"fsdp"} if "positions" in name else {"fsdp", "tensor"}
            assert set(used) == expected, f"{name} {leaf.shape} {sharding.spec}"
        assert sharding.shard_shape(leaf.shape)


def test_partition_spec_leaves_whole_what_does_not_divide():
    sizes = {"data": 2, "fsdp": 2, "tensor": 4}
    spec = functools.partial(partition_spec, mesh_sizes=sizes)
    assert spec("DNH", (32, 8, 16), rules=PARAM_RULES) == PartitionSpec("fsdp", "tensor", None)
    assert spec("DKH", (32, 2, 16), rules=PARAM_RULES) == PartitionSpec("fsdp", None, None)  # two heads, four chips
    assert spec("VD", (33, 5), rules=PARAM_RULES) == PartitionSpec(None, None)
    assert spec("BTD", (8, 3, 32), rules=ACTIVATION_RULES) == PartitionSpec(("data", "fsdp"), None, None)
    assert spec("BTD", (6, 3, 32), rules=ACTIVATION_RULES) == PartitionSpec("data", None, None)
    assert spec("BTD", (3, 3, 32), rules=ACTIVATION_RULES) == PartitionSpec(None, None, None)
    alone = {"data": 4, "fsdp": 1, "tensor": 1}
    assert partition_spec("BTN", (8, 3, 8), alone, ACTIVATION_RULES) == PartitionSpec("data", None, None)


def test_ways_counts_the_parts_of_an_axis():
    assert num_shards("B", 8) == 1
    with jax.set_mesh(mesh_of((2, 4, 1))):
        assert (num_shards("B", 16), num_shards("B", 6), num_shards("B", 5), num_shards("V", 64)) == (8, 2, 1, 1)
    with jax.set_mesh(mesh_of((2, 1, 4))):
        assert (num_shards("B", 6), num_shards("V", 64)) == (2, 4)


def test_constrain_pins_an_activation_and_needs_no_mesh():
    x = jnp.ones((8, 4, 16))
    np.testing.assert_array_equal(constrain(x, "BTF"), x)
    mesh = mesh_of((2, 2, 2))
    with jax.set_mesh(mesh):
        y = jax.jit(lambda x: constrain(x, "BTF"))(x)
    assert y.sharding.shard_shape(y.shape) == (2, 4, 8)


def test_a_sharded_model_holds_a_share_of_the_parameters():
    model, params = make("llama")
    sharded = placed(model, params, mesh_of((1, 2, 4)))
    whole = sum(x.nbytes for x in jax.tree.leaves(params))
    held = sum(x.addressable_shards[0].data.nbytes for x in jax.tree.leaves(sharded))
    assert held < 0.25 * whole  # an eighth, and the K/V heads and norms that four does not divide
