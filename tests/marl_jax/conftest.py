"""Shared by the tests of several packages: a model of another family, and teams with it."""

import jax
import pytest

from configs import algorithms, defaults, models
from models.chat_templates import BUILTIN
from models.config import ModelConfig
from models.model import build
from models.tokenizers import Tokenizer
from models.tokenizers.bpe import CONTROL, NORMAL, byte_characters, byte_level_bpe
from models.tokenizers.tokenizer import build as build_tokenizer
from models.weights.export import export
from tests.marl_jax.tiny_play import SHAPE
from tests.marl_jax.tiny_puzzle import PARAMS


def other_tokenizer() -> Tokenizer:
    """Bytes in another order, and the executor's question in one token."""
    tokens = ["<|pad|>", "<|end|>", *reversed(byte_characters()), "E:"]
    types = [CONTROL] * 2 + [NORMAL] * 257
    rust = byte_level_bpe(tokens, types, merges=[("E", ":")], pre="whole")
    return build_tokenizer("pairs", rust, BUILTIN["chatml"], eos_id=1, pad_id=0)


@pytest.fixture(scope="session")
def other_model(tmp_path_factory):
    """The Hugging Face folder of a model of another family, shape and vocabulary than `tiny`."""
    cfg = ModelConfig(
        "llama", vocab_size=260, d_model=24, n_layers=1, n_heads=3, n_kv_heads=3, head_dim=8, d_ff=32,
        max_positions=256, eos_ids=(1,),
    )  # fmt: skip
    params = build(cfg).init(jax.random.key(7))
    return export(tmp_path_factory.mktemp("models") / "other", cfg, params, tokenizer=other_tokenizer())


@pytest.fixture(scope="session")
def team_config(other_model):
    """Make the config of a run of Plan-Path by a planner that is `tiny` and an executor that is `other_model`."""

    def config(algo: str = "at_grpo", **policies):
        c = defaults.get_config()
        c.name = "tiny_team"
        c.mesh.data = 1
        c.env = defaults.environment("plan_path", roles="two", **PARAMS)
        c.env.update(dict(text="brief", style="plain"))
        c.model.shape = SHAPE
        c.agents = dict(planner="planner", executor="executor")
        other = models.model("smollm2-135m", weights=str(other_model), dtype="float32", remat="none")
        c.policies = dict(planner=defaults.policy(), executor=defaults.policy(model=other))
        for name, changes in policies.items():
            c.policies[name].update(changes)
        c.algo = algorithms.ppo() if algo == "ppo" else getattr(algorithms, algo)(2)
        c.algo.update(dict(epochs=1, minibatches=1, tis_clip=0.0))
        if algo != "ppo":
            c.algo.filter_zero_std_groups = False
        c.steps = 2
        c.optim.warmup = 1
        c.rollout.update(dict(num_envs=8, unroll_length=20 if algo == "grpo" else 4))
        c.eval.update(dict(every=2, games=8, opponents=(), swap_roles=True))
        c.checkpoint.every = 1
        c.log.update(dict(games=1, games_every=2, tensorboard=False, progress=False))
        return c

    return config
