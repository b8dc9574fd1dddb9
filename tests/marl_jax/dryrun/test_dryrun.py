"""Forecasts for missing hardware: bytes by hand, programs on eight virtual devices, and errors."""

import dataclasses
import json
from pathlib import Path

import jax
import pytest
from jax.sharding import NamedSharding, PartitionSpec

from marl_jax import cli
from marl_jax import setup as setups
from marl_jax.devices import hardware
from marl_jax.dryrun import cost_model, largest, programs, render, tables, topology
from marl_jax.dryrun.forecast import Counted, Forecast, forecast, held, memory_wanted
from marl_jax.dryrun.programs import Finder
from marl_jax.errors import ConfigError, RunError
from marl_jax.modes import compile as forecasts
from models import cache as kv
from models import registry
from models.attention import default_kernel
from tests.marl_jax import tiny_run
from tests.models.tiny_models import CONFIGS

PARTS = 8
# Parameters of the tiny run: embedding, three norms, q, k, v, o, gate, up, down and the value head are split by D …
SPLIT = 264 * 16 + 3 * 16 + (256 + 128 + 128 + 256) + 3 * 256 + 16
# … and the biases of q, k and v and that of the value head have no D.
WHOLE = (16 + 8 + 8) + 1


@pytest.fixture(scope="module")
def made():
    """Config and forecast of a tiny run with FSDP on eight devices."""
    config = tiny_run.get_config()
    config.rollout.unroll_length = 2
    config.algo.minibatches = 1
    config.mesh.update(dict(data=1, fsdp=PARTS, tensor=1))
    return config, forecast(config, jax.devices(), Finder())


def test_bytes_of_every_kind_are_those_of_the_shards(made):
    _, found = made
    parameters = 4 * (SPLIT / PARTS + WHOLE)
    play, learn = found.programs["play"], found.programs["learn"]
    assert play.given["parameters"] == learn.given["parameters"] == parameters
    assert learn.given["optimizer"] == 2 * parameters + 4 + 4  # Adam's moments, its count and that of the schedule
    assert play.beside == learn.given["optimizer"]  # it stays on the chip during the rollout
    assert learn.beside == play.given["rollout"]
    assert learn.total == sum(learn.given.values()) + learn.temporaries + learn.outputs + learn.beside
    assert found.needs == max(play.total, learn.total) and not found.refused
    assert found.fits(found.needs) and not found.fits(found.needs - 1)


def test_parameters_are_gathered_and_gradients_added_up_over_the_mesh(made):
    _, found = made
    gathered = [t for t in found.programs["play"].traffic if t.kind == "all-gather"]
    assert {t.axes for t in gathered} == {("fsdp",)} and {t.num_shards for t in gathered} == {PARTS}
    assert sum(t.size for t in gathered) >= 4 * (SPLIT - 264 * 16)  # all but the embedding, whose rows are looked up
    assert any(t.kind in ("all-reduce", "reduce-scatter") for t in found.programs["learn"].traffic)


def test_operations_by_the_rule(made):
    config, found = made
    counted = found.counted
    n_params = SPLIT + WHOLE - 17
    assert counted.learn_flops == 6 * n_params * counted.learnt
    assert counted.learnt == config.rollout.num_envs * config.rollout.unroll_length * counted.row
    assert (
        counted.read == config.rollout.num_envs * (config.rollout.unroll_length + 2) * counted.row
    )  # two seats look ahead
    # Four projections, the feed-forward and the logits of nine moves, forward and backward, at every token.
    assert found.programs["learn"].flops > 6 * (SPLIT - 264 * 16 - 64) * counted.learnt


def test_the_text_and_the_file_say_what_was_found(made):
    config, found = made
    target = topology.parse("cpu:8")
    result = render.as_json(config, target, found, ["a note"], None)
    assert json.loads(json.dumps(result)) is not None
    text = render.as_text(result)
    for words in (
        "tiny_run, ppo, tiny (all weights) on cpu:8",
        "fsdp 8",
        "a note",
        "optimizer",
        "all-gather",
        "fits: ",
    ):
        assert words in text
    row = render.markdown([result]).splitlines()[-1]
    assert row.startswith("| PPO, tiny, all weights | cpu:8: fsdp 8 | 16 |") and "| yes |" in row


def test_samples_of_a_rollout_that_was_refused_are_split_where_they_divide(made):
    """The update is forecast all the same, because its rows are sharded differently."""
    setup = setups.make(made[0], jax.devices(), Finder())
    tree = {"tokens": jax.ShapeDtypeStruct((32, 5), "int32"), "completion_at": jax.ShapeDtypeStruct((3, 16), "int32")}
    found = programs.by_rows(tree, setup, axis=0)
    assert found["tokens"].sharding.shard_shape((32, 5)) == (4, 5)
    assert found["completion_at"].sharding.is_fully_replicated


def test_a_program_that_jaxlib_cannot_read_has_no_collectives(made, monkeypatch):
    """The memory, which is most of the forecast, is known all the same."""

    def unreadable(_):
        raise jax.errors.JaxRuntimeError("INTERNAL: RET_CHECK failure: async-update should have 1 operands\nstack")

    monkeypatch.setattr(jax.stages.Compiled, "as_text", unreadable)
    finder = Finder()
    found = forecast(made[0], jax.devices(), finder)
    assert [p.traffic for p in found.programs.values()] == [(), ()]
    assert found.needs == made[1].needs
    (note,) = finder.notes
    assert "RET_CHECK failure: async-update" in note and "stack" not in note


# ------------------------------------------------------------------------------------------------ what the parts count


def test_bytes_of_a_tree_on_one_chip():
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"))
    spec = lambda *axes: NamedSharding(mesh, PartitionSpec(*axes))  # noqa: E731
    tree = {
        "w": jax.ShapeDtypeStruct((16, 6), "bfloat16", sharding=spec("fsdp", "tensor")),
        "b": jax.ShapeDtypeStruct((6,), "float32", sharding=spec()),
    }
    assert held(tree) == 2 * (4 * 3) + 4 * 6


def test_matrix_products_count_as_often_as_they_run():
    def f(x, w):
        x, _ = jax.lax.scan(lambda x, w: (x @ w, None), x, w)
        return jax.lax.cond(x[0, 0] > 0, lambda: x @ w[0] @ w[1], lambda: x)

    x, w = jax.ShapeDtypeStruct((2, 3), "float32"), jax.ShapeDtypeStruct((5, 3, 3), "float32")
    assert cost_model.matrix_flops(jax.make_jaxpr(f)(x, w)) == (5 + 2) * 2 * 2 * 3 * 3


def test_the_compilers_complaint_about_memory():
    everything = "RESOURCE_EXHAUSTED: Ran out of memory in memory space hbm. Used 20.50G of 15.75G hbm."
    assert memory_wanted(everything, given=2**30) == 20.5 * 2**30
    temporaries = "RESOURCE_EXHAUSTED: the total memory required for HLO temporaries (75.50G) exceeds HBM (15.75G)."
    assert memory_wanted(temporaries, given=2**30) == 76.5 * 2**30
    assert memory_wanted("RESOURCE_EXHAUSTED: something else", given=0) == float("inf")
    assert memory_wanted("INVALID_ARGUMENT: no", given=0) is None


# ------------------------------------------------------------------------------------------------------- largest batch


class Straight(Forecast):
    """Return a forecast with only a memory size."""

    def fits(self, limit):
        return self.needs <= limit


def line(games, fixed=100.0, each=2.0):
    return Straight(games, 8, {}, Counted(1, 1, 1, 1.0, 1.0, 0.0), {}, {"play": fixed + each * games})


@pytest.mark.parametrize(("limit", "expected"), [(1000, 448), (300, 96), (163, None), (164, 32), (2000, 928)])
def test_the_largest_batch_is_found_on_a_line(limit, expected):
    tried = []

    def measure(games):
        tried.append(games)
        return line(games)

    best, exact, _ = largest.search(line(128), measure, step=32, limit=limit)
    assert (best.games if best else None) == expected and exact
    assert len(tried) <= largest.ATTEMPTS and all(games % 32 == 0 for games in tried)


def test_the_search_ends_where_nobody_plans_further():
    best, exact, _ = largest.search(line(32, each=0.0), lambda games: line(games, each=0.0), step=32, limit=1e6)
    assert best.games == largest.MOST * 32 and not exact


def test_the_step_of_batches():
    config = tiny_run.get_config()  # four turns, two minibatches
    assert largest.step_of(config, num_shards=8) == 8
    config.algo.grad_accum_steps = 4
    assert largest.step_of(config, num_shards=8) == 16  # 4 x games samples divide into 2 x 4 x 8 parts


# ----------------------------------------------------------------------------------------------------------- topologies


def test_topologies_by_name():
    found = topology.parse("v5p:4x4x4")
    assert (found.n, found.name, found.chip) == (64, "v5p:4x4x4", hardware.CHIPS["v5p"])
    assert topology.parse("h100:8").n == 8 and topology.parse("cpu:4").chip.platform == "cpu"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v7:2x2", "--topology is v7:2x2, but its chip must be one of: v5e"),
        ("v5p:4x4", "must have 3 sizes, as in v5p:2x2x2"),
        ("v5e:16", "must have 2 sizes"),
        ("h100:2x4", "must have one number of devices, as in h100:8"),
        ("cpu", "must have one number of devices"),
        ("v5e:0x4", "must have 2 sizes"),
        ("cpu:100000", "--topology is cpu:100000, but must have at most 2,048 devices"),
        ("h100:100000", "--topology is h100:100000, but must have at most 2,048 devices"),
        ("", "needs a --topology"),
    ],
)
def test_other_names_are_refused(name, words, capsys):
    with pytest.raises(ConfigError, match="--topology"):
        topology.parse(name)
    arguments = ["launch.py", "--config=tests/marl_jax/tiny_run.py", "--mode=compile", f"--topology={name}"]
    assert cli.main(arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("processor", "words"),
    [("x86_64", "for this JAX with `pip install 'jax[tpu]'`"), ("aarch64", "only available for")],
)
def test_without_the_tpu_compiler_it_says_what_is_missing(monkeypatch, processor, words):
    def none(**_):
        raise RuntimeError("JAX TPU support not installed; cannot generate TPU topology.")

    monkeypatch.setattr(topology.topologies, "get_topology_desc", none)
    monkeypatch.setattr(topology.machine, "machine", lambda: processor)
    monkeypatch.setattr(topology.machine, "system", lambda: "Linux")
    with pytest.raises(RunError, match="needs the TPU compiler, libtpu") as caught:
        topology.devices(topology.parse("v5e:4x4"))
    assert words in str(caught.value)


def test_without_a_cuda_compiler_the_program_is_that_of_a_cpu(monkeypatch):
    def none(**_):
        raise NotImplementedError("topology not implemented for cuda")

    monkeypatch.setattr(topology.topologies, "get_topology_desc", none)
    devices, note = topology.devices(topology.parse("h100:8"))
    assert len(devices) == 8 and devices[0].platform == "cpu" and "There is no CUDA compiler" in note


def test_attention_is_that_of_the_platform_compiled_for():
    device = jax.sharding.AbstractDevice(device_kind="NVIDIA H100", num_cores=132, platform="gpu")
    mesh = jax.sharding.AbstractMesh((8,), ("data",), axis_types=(jax.sharding.AxisType.Auto,), abstract_device=device)
    caches = {slots: jax.eval_shape(lambda n=slots: kv.empty(CONFIGS["llama"], 2, n)) for slots in (64, 100, 128)}
    assert [default_kernel(64, caches.get(n)) for n in (0, 64, 100, 128)] == ["xla", "xla", "xla", "loop"]
    with jax.sharding.use_abstract_mesh(mesh):
        assert [default_kernel(64, caches.get(n)) for n in (0, 128)] == ["cudnn", "cudnn"]
    alone = jax.sharding.AbstractMesh((1,), ("data",), abstract_device=device)
    with jax.sharding.use_abstract_mesh(alone):
        assert [default_kernel(64, caches.get(n)) for n in (100, 128)] == ["cudnn", "pallas"]
        assert default_kernel(96, caches[128]) == "cudnn"


def test_a_model_whose_tokenizer_is_elsewhere_gets_another_one(monkeypatch, tmp_path):
    monkeypatch.setenv("MARL_JAX_WEIGHTS", str(tmp_path))
    config = tiny_run.get_config().model
    config.name, config.weights, config.shape = "qwen2.5-7b-instruct", "", {}
    finder = Finder()
    cfg, place, tokenizer = finder(config)
    assert (cfg.vocab_size, place, tokenizer.name) == (152_064, None, "bytes")
    assert len(finder.notes) == 1 and "that of bytes is used instead" in finder.notes.pop()


def test_another_tokenizer_reads_the_tokens_of_images(monkeypatch, tmp_path):
    monkeypatch.setenv("MARL_JAX_WEIGHTS", str(tmp_path))
    config = tiny_run.get_config().model
    config.name, config.weights, config.shape = "qwen2.5-vl-7b", "", {}
    cfg, _, tokenizer = Finder()(config)
    tower, published = cfg.vision, registry.get(config.name).config.vision
    assert tower is not None and published is not None
    ids = [tower.start_id, tower.image_id, tower.image_id, tower.end_id]
    assert len(set(ids)) == 3 and tokenizer.encode(tokenizer.decode(ids)) == ids
    own = {name: getattr(published, name) for name in ("image_id", "start_id", "end_id")}
    assert dataclasses.replace(tower, **own) == published


# ---------------------------------------------------------------------------------------------------- the whole command


def test_the_command_prints_a_table_and_fills_the_page(made, monkeypatch, tmp_path, capsys):
    config, found = made
    monkeypatch.setattr(forecasts, "forecast", lambda config, devices, finder, half: found)
    monkeypatch.setattr(largest, "search", lambda first, *_, **__: (first, True, [first]))
    forecasts.main(config, tmp_path, "cpu:8")
    assert "largest batch that fits: rollout.num_envs 16" in capsys.readouterr().out
    (file,) = tmp_path.glob("*.json")
    assert file.name == "compile-cpu-8.json"
    page = "".join(f"<!-- {name} -->\nold\n<!-- end -->\n" for name in ("memory", "traffic", "cost_model", "check"))
    filled = tables.fill(page, tables.load([str(file)]))
    assert "old" not in filled and "| PPO, tiny, all weights | cpu:8: fsdp 8 | 16 |" in filled
    assert tables.fill(filled, tables.load([str(file)])) == filled
    with pytest.raises(RunError, match="0 tables"):
        tables.fill("no tables", [])


def test_the_published_page_is_made_of_the_published_results():
    docs = Path(__file__).resolve().parents[3] / "docs"
    page = (docs / "scale.md").read_text()
    assert tables.fill(page, tables.load([str(docs / "scale.json")])) == page
