"""Training on a mesh: rollout, update and checkpoints on eight devices match those on one device.

All in float32. Sums have another order, so numbers may differ by rounding: log-probabilities, losses and gradients by
1e-5 of their size, and parameters by 1e-6. Sampled tokens are the same.
"""

import functools
from unittest import mock

import jax
import numpy as np
import pytest
from jax.sharding import PartitionSpec

from configs import planning
from marl_jax import setup as setups
from marl_jax.agents.team import Backbone
from marl_jax.devices import placement
from marl_jax.devices.resharding import SamplerParams
from marl_jax.learning.learn_step import optimizer_for
from marl_jax.learning.moments import scale_by_adam
from marl_jax.running.checkpoint import Checkpoints
from marl_jax.setup.train_programs import at_start, programs, resumed, saved
from tests.conftest import nightly_cases
from tests.marl_jax import tiny_run

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("quick_compilation")]

SHAPE = dict(d_model=16, n_layers=1, n_heads=8, n_kv_heads=2, head_dim=4, d_ff=16)
MESHES = {"one": (1, 1, 1), "all": (2, 2, 2), "four": (1, 2, 2)}  # sizes of data, fsdp and tensor


def config_of(case: str):
    """Return the config of a small run.

    full     all weights; PPO with a value head
    adapters LoRA, one for each of two roles; AT-GRPO with shared prompts, a KL to the base, accumulation, 8-bit
             moments, refill
    """
    if case == "full":
        config = tiny_run.get_config()
        config.rollout.update(dict(num_envs=16, unroll_length=2))
        config.algo.minibatches = 1
    else:
        config = planning.puzzle("plan_path", "at_grpo_lora", 10, size=5, n_train=24, n_test=8)
        config.rollout.update(dict(num_envs=8, unroll_length=2))
        config.algo.update(dict(minibatches=1, grad_accum_steps=2, filter_zero_std_groups=False, kl_coef=0.1, refill=1))
        config.eval.games = 8
        config.model.lora.update(dict(rank=2, targets=("q", "down")))
        config.optim.adam_state_dtype = "int8"
    config.model.update(dict(shape=SHAPE, dtype="float32", remat="none" if case == "full" else "full"))
    config.optim.update(dict(warmup=0, schedule="constant"))
    return config


@functools.cache
def random_parameters(model):
    """Initialize on the host, because compiling the initialization takes too long."""
    return jax.device_get(jax.jit(model.init)(jax.random.key(0)))


def placed_parameters(backbone: Backbone, _key) -> dict:
    """Replace `Backbone.params`."""
    return jax.device_put(
        random_parameters(backbone.model),
        placement.shardings_of(backbone.abstract()[backbone.policy.lora is not None])["model"],
    )


class Run:
    """A run on some devices that records each step."""

    def __init__(self, case: str, mesh: str, sampling: str = "same"):
        config = config_of(case)
        config.mesh.update(dict(zip(("data", "fsdp", "tensor"), MESHES[mesh], strict=True), sampling=sampling))
        self.setup = setup = setups.make(config, jax.devices()[: int(np.prod(MESHES[mesh]))])
        self.key, self.steps = jax.random.key(0), []
        rollout, optimizer = setup.rollout, optimizer_for(config)
        with jax.set_mesh(setup.mesh), mock.patch.object(Backbone, "params", placed_parameters):
            self.train_states, self.state = at_start(setup, rollout, optimizer, self.key)
            self.play, self.learn, _ = programs(setup, rollout, optimizer, self.train_states, self.state)
        self.sampler = SamplerParams(setup.team.sampling_layout, setup.reshards)

    def sample(self):
        """Run one rollout and return (key, weights, samples, metrics)."""
        key = jax.random.fold_in(self.key, len(self.steps))
        with jax.set_mesh(self.setup.sample_mesh):
            weights = self.sampler(self.train_states)
            samples, self.state, metrics = self.play(weights, self.state, key)
        return key, weights, samples, metrics

    def step(self) -> tuple:
        """Run a rollout and an update."""
        key, _, samples, metrics = self.sample()
        with jax.set_mesh(self.setup.mesh):
            self.train_states, more = self.learn(self.train_states, samples, key)
        self.steps.append(jax.device_get((samples, {**metrics, **more}, self.train_states)))
        return self.steps[-1]

    def restore(self, workdir) -> None:
        """Restore the newest checkpoint."""
        checkpoints = Checkpoints(workdir, read_only=True)
        restored = checkpoints.restore(saved(self.train_states, self.state))
        checkpoints.close()
        self.train_states, self.state = resumed(self.train_states, restored.state)
        self.steps = self.steps[: restored.step] or [None] * restored.step


@functools.cache
def run(case: str, mesh: str) -> Run:
    """Two steps."""
    made = Run(case, mesh)
    made.step()
    made.step()
    return made


def check(found, expected, tolerance):
    """Check that arrays are equal up to a fraction of the largest value."""
    for (path, x), y in zip(jax.tree.leaves_with_path(found), jax.tree.leaves(expected), strict=True):
        if np.issubdtype(np.asarray(y).dtype, np.integer) or np.asarray(y).dtype == bool:
            np.testing.assert_array_equal(x, y, err_msg=jax.tree_util.keystr(path))
        else:
            largest = max(1e-3, np.max(np.abs(y), initial=0.0))
            np.testing.assert_allclose(x, y, rtol=0, atol=tolerance * largest, err_msg=jax.tree_util.keystr(path))


def assert_close(parameters, others):
    for x, y in zip(jax.tree.leaves(parameters), jax.tree.leaves(others), strict=True):
        np.testing.assert_allclose(x, y, rtol=0, atol=1e-6)


def gradients(train_state):
    """Return the first moments, which are proportional to the gradients after one step."""
    return train_state.optimizer[1].mu


def assert_in_place(setup, train_states):
    """Check that weights are sharded by their axes and moments like their weights."""
    for backbone in setup.backbones:
        train_state, wanted = train_states[backbone.name], backbone.abstract()
        places = (
            placement.shardings_of(wanted),
            placement.like_parameters(setup.mesh, train_state.optimizer, wanted[0]),
        )
        state = ((train_state.trained, train_state.frozen), train_state.optimizer)
        for x, place in zip(jax.tree.leaves(state), jax.tree.leaves(places), strict=True):
            assert x.sharding.is_equivalent_to(place, x.ndim)


@pytest.mark.nightly_for("adapters")
@pytest.mark.parametrize("case", ["full", "adapters"])
def test_a_mesh_gives_what_one_device_gives(case):
    ours, theirs = run(case, "all"), run(case, "one")
    for found, expected in zip(ours.steps[:2], theirs.steps[:2], strict=True):
        (samples, metrics, train_states), (their_samples, their_metrics, their_states) = found, expected
        np.testing.assert_array_equal(samples.tokens, their_samples.tokens)
        np.testing.assert_array_equal(samples.action, their_samples.action)
        np.testing.assert_array_equal(samples.group, their_samples.group)
        check((samples.logps, samples.values), (their_samples.logps, their_samples.values), 1e-5)
        check((metrics["loss"], metrics["grad_norm"]), (their_metrics["loss"], their_metrics["grad_norm"]), 1e-5)
        assert metrics["logprob_diff"] < 1e-5
        if case == "adapters":
            assert metrics["refill/rollouts"] == 1
            assert metrics["refill/replaced"] == their_metrics["refill/replaced"] > 0
        for name, train_state in train_states.items():
            if case == "full":  # 8-bit moments round
                check(gradients(train_state), gradients(their_states[name]), 1e-5)
            assert_close(train_state.trained, their_states[name].trained)
    first, second = (jax.tree.leaves([x.trained for x in ours.steps[i][2].values()]) for i in (0, 1))
    assert any(np.any(a != b) for a, b in zip(first, second, strict=True))


@pytest.mark.nightly_for("adapters")
@pytest.mark.parametrize("case", ["full", "adapters"])
def test_state_lies_where_its_parameters_do_after_updates_too(case):
    made = run(case, "all")
    assert_in_place(made.setup, made.train_states)
    if case == "full":  # adapters are small and mostly replicated
        state = jax.tree.leaves(made.train_states["main"].optimizer)
        assert sum(x.addressable_shards[0].data.nbytes for x in state) < 0.5 * sum(x.nbytes for x in state)


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
def test_moments_of_every_kind_are_split_as_their_parameters_are(kind):
    setup = run("full", "all").setup
    backbone = setup.backbones[0]
    trained = backbone.abstract()[0]
    state = jax.eval_shape(scale_by_adam(0.9, 0.99, 1e-8, kind).init, trained)
    places = placement.like_parameters(setup.mesh, state, trained)
    up, moment = trained["model"]["layers"]["mlp"]["up"], places.mu["model"]["layers"]["mlp"]["up"]
    assert up.sharding.spec == PartitionSpec(None, "fsdp", "tensor")
    if kind == "int8":
        assert moment.code.spec == up.sharding.spec
        assert moment.top.spec == PartitionSpec(None, "fsdp", None)
    else:
        assert moment.spec == up.sharding.spec
    assert places.count.is_fully_replicated


@pytest.mark.parametrize("sampling", nightly_cases(["replicated", "tensor"], "tensor"))
def test_sampling_on_another_arrangement_gives_the_same_tokens(sampling):
    made = Run("full", "all", sampling)
    assert dict(made.setup.sample_mesh.shape) == {
        "replicated": {"data": 8, "fsdp": 1, "tensor": 1}, "tensor": {"data": 4, "fsdp": 1, "tensor": 2}
    }[sampling]  # fmt: skip
    _, weights, samples, _ = made.sample()
    expected = run("full", "all").steps[0][0]
    np.testing.assert_array_equal(samples.tokens, expected.tokens)
    check(samples.logps, expected.logps, 1e-5)
    if sampling == "replicated":
        assert all(x.sharding.is_fully_replicated for x in jax.tree.leaves(weights))
    else:
        layers = weights["main"]["model"]["layers"]
        up = (layers[0] if isinstance(layers, tuple) else layers)["mlp"]["up"]
        assert up.sharding.shard_shape(up.shape)[-2:] == (16, 8)  # all of D, half of F


@pytest.mark.nightly
def test_a_checkpoint_of_eight_devices_goes_on_on_one_and_on_four(tmp_path):
    eight, one, four = run("full", "all"), run("full", "one"), Run("full", "four")
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(2, saved(eight.train_states, eight.state), {})
    checkpoints.close()
    samples, _, train_states = one.step()  # without interruption, on one device
    for other in (one, four):
        other.restore(tmp_path)
        for x, y in zip(jax.tree.leaves(other.train_states), jax.tree.leaves(eight.train_states), strict=True):
            np.testing.assert_array_equal(x, y)
        assert_in_place(other.setup, other.train_states)
        found, _, further = other.step()
        np.testing.assert_array_equal(found.tokens, samples.tokens)
        assert_close(further["main"].trained, train_states["main"].trained)
