"""Every field of a run with its default, what it accepts and a line of help; an algorithm brings its own fields.

    config.<group>.<field>      GROUPS
    config.<field>              RUN
    config.algo.<field>         the `fields` of the algorithm that `algo.name` names (`marl_jax/algorithms`)
    config.policies.<name>.…    POLICY, and MODEL for a policy with a model of its own

A run has one environment: `env.name` names a game or `task.name` a task, and the other is "". `validate.py` looks up
the names of games, tasks, models, algorithms and bots in their registries. Here they are texts, because the registries
need JAX and this file does not.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.fields import OPEN, SEED, STEP, SWITCH, TEXT, TEXTS, Field, Rule, choice, integer, number, some_of
from marl_jax.schema.conditions import CONDITIONS

LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
_FLOATS = choice("float32", "bfloat16")
_SHARDS = Rule("a whole number from 1 up, or -1 for the devices left", lambda x: x == -1 or integer(1).holds(x))

RUN = {
    "name": Field("", TEXT, "name of the experiment; '' is the name of its file"),
    "seed": Field(0, SEED, "of everything that is random"),
    "steps": Field(200, integer(1), "updates; a run that has done them all says so and stops"),
    "stop_when": Field(
        "",
        CONDITIONS,
        "conditions on training metrics that end the run once they hold for three updates in a row, e.g. "
        "'success>=0.99'",
    ),
    "alarm": Field(
        "warn",
        choice("off", "warn", "rollback", "stop"),
        "reaction to a collapse or a standstill; rollback: return to the last good checkpoint at half the learning "
        "rate, twice at most",
    ),
    "first_stage": Field({}, OPEN, "fields that differ in a stage before the run, from which it starts; {}: no stage"),
    "plugins": Field((), TEXTS, "modules to import first, which add games, tasks, algorithms, bots or model families"),
}

# ---------------------------------------------------------------------------------------------------------- worlds

ENV = {
    "name": Field("tic_tac_toe", TEXT, "the game; '' where the environment is a task"),
    "params": Field({}, OPEN, "parameters of the game"),
    "text": Field(
        "full",
        choice("full", "brief", "compact"),
        "full: rules and position in words; brief: few characters, for bytes; compact: about one token per fact",
    ),
    "reasoning": Field(False, SWITCH, "free answers: the question asks for reasoning before the answer"),
    "style": Field("chat", choice("chat", "plain"), "chat: the model's own chat template; plain: the text alone"),
    "context": Field(
        "turn",
        choice("turn", "history"),
        "turn: every prompt has the rules and the position; history: a conversation to which a turn adds what is new",
    ),
    "history_tokens": Field(
        0,
        integer(0, 1 << 21),
        "tokens of a row of conversations; 0: two openings and a seat's turns at their usual length",
    ),
    "turn_tokens": Field(
        0,
        integer(0, 1 << 21),
        "tokens of a row of one prompt behind the rules, where context is turn; longer ones are not learned from",
    ),
    "history_turns": Field(
        32, integer(1, 1 << 16), "answers after which a conversation begins again, where context is history"
    ),
    "symmetry": Field(False, SWITCH, "Other-Play: a random symmetry of the game for every episode and seat"),
}

TASK = {
    "name": Field("", TEXT, "the task; '' where the environment is a game"),
    "params": Field({}, OPEN, "parameters of the task"),
    "split": Field("train", choice("train", "validation", "test"), "part of the examples to train on"),
    "n_episodes": Field(64, integer(1, 1 << 20), "episodes per step"),
    "time_limit": Field(60.0, number(0, above=True), "time limit of an episode in seconds, not counting compilation"),
    "max_new_tokens": Field(256, integer(1, 1 << 17), "tokens of an answer at most"),
    "max_num_seqs": Field(64, integer(1, 1 << 16), "conversations that are answered at once"),
    "max_length": Field(2048, integer(2, 1 << 21), "tokens of a conversation at most"),
}

REWARD = {
    "team": Field(1.0, number(), "weight of what is paid to the team"),
    "agent": Field(1.0, number(), "weight of what is paid to one agent"),
    "process": Field(1.0, number(), "weight of what is paid for a step by itself"),
    "dense": Field(True, SWITCH, "False pays everything at the end of an episode"),
}

CURRICULUM = {  # at grade g of n, the levels of a puzzle are drawn from the easiest g/n of the pool
    "enabled": Field(False, SWITCH, "puzzles begin with easy levels"),
    "difficulty_levels": Field(5, integer(2, 1000), "at the last, all levels are drawn, as without a curriculum"),
    "start": Field(1, integer(1), "the first grade"),
    "up": Field(0.8, number(0, 1, above=True), "one grade up when this share of the last games was solved"),
    "down": Field(0.2, number(0, 1), "one grade down below this share"),
    "window": Field(256, integer(1, 1 << 20), "games that are counted for it"),
}

OPPONENTS = {  # who sits opposite in competitive games while training
    "self_play_frac": Field(1.0, number(0, 1), "share of games against the present self"),
    "pool_size": Field(0, integer(0, 1024), "historical opponents kept; 0 is no pool"),
    "snapshot_every": Field(25, integer(1), "steps between historical opponents"),
    "prioritized": Field(True, SWITCH, "historical opponents that win more often are met more often"),
    "bots": Field((), TEXTS, "bots to meet, e.g. ('random',)"),
    "bot_frac": Field(0.0, number(0, 1), "share of games against bots"),
}

# --------------------------------------------------------------------------------------------- models and learning

LORA = {
    "rank": Field(0, integer(0, 1024), "0 trains all weights"),
    "alpha": Field(32.0, number(0, above=True), "adapters are scaled by alpha / rank"),
    "targets": Field(LORA_TARGETS, some_of(*LORA_TARGETS), "projections that get an adapter"),
}

MODEL = {
    "name": Field("tiny", TEXT, "name in the registry of models"),
    "weights": Field("", TEXT, "a Hugging Face folder or a GGUF file; '' fetches it; 'random' starts from noise"),
    "init_from": Field("", TEXT, "FOLDER or FOLDER@STEP of a run to start from; STEP: newest, best or a number"),
    "shape": Field({}, OPEN, "fields of models.config.ModelConfig to change, for a model that starts from noise"),
    "dtype": Field("bfloat16", _FLOATS, "of the arithmetic"),
    "param_dtype": Field("float32", _FLOATS, "of the master weights; under LoRA of the frozen base"),
    "remat": Field("full", choice("none", "dots", "full"), "what is rematerialised in the backward pass"),
    "unroll": Field(0, integer(0, 4096), "layers per iteration of the learner's loop; 0: all on a GPU, one elsewhere"),
}

POLICY = {
    "frozen": Field(False, SWITCH, "it plays but does not learn"),
}

ROLLOUT = {
    "num_envs": Field(256, integer(1, 1 << 20), "games at once, one row each"),
    "unroll_length": Field(16, integer(1, 1 << 16), "moves of each row in one rollout; rows play game after game"),
    "temperature": Field(1.0, number(0, above=True), "of the answers"),
    "max_new_tokens": Field(8, integer(1, 1 << 17), "tokens of a free answer at most"),
    "completion": Field(
        "constrained",
        choice("constrained", "free"),
        "constrained: the name of a legal move; free: any text until a stop, parsed afterwards",
    ),
    "parse_failure_reward": Field(-1.0, number(), "process reward of a free answer that names no legal move"),
    "in_flight_updates": Field(False, SWITCH, "tasks: new weights also reach answers under way; resuming is not exact"),
}

SAMPLING = {  # of tasks, see `marl_jax.sampling.batcher.Batcher`
    "memory_frac": Field(0.3, number(0, 1, above=True), "share of a device's memory for keys and values, at most"),
    "page_size": Field(16, integer(8, 64), "tokens of a page of keys and values, a power of two"),
    "fixed_shapes": Field(
        "auto",
        choice("auto", "true", "false"),
        "true: answers depend on load, order and memory in no bit; auto: so on CPUs, without in-flight updates",
    ),
}

OPTIM = {  # AdamW
    "lr": Field(1e-3, number(0, above=True), "learning rate"),
    "critic_lr": Field(0.0, number(0), "of the value head or critic; 0 is `lr`"),
    "schedule": Field("linear", choice("constant", "linear", "cosine"), "from lr down to min_lr_ratio of it"),
    "min_lr_ratio": Field(0.0, number(0, 1), "the last learning rate as a share of the first"),
    "warmup": Field(10, integer(0), "steps over which the learning rate rises from 0"),
    "weight_decay": Field(0.0, number(0), "decoupled weight decay"),
    "b1": Field(0.9, number(0, 0.9999), "decay of Adam's first moment"),
    "b2": Field(0.95, number(0, 0.99999), "decay of Adam's second moment"),
    "eps": Field(1e-8, number(0, above=True), "added to the root of the second moment"),
    "max_grad_norm": Field(1.0, number(0), "gradients are clipped to this norm; 0 is off"),
    "adam_state_dtype": Field("float32", choice("float32", "bfloat16", "int8"), "dtype of Adam's moments"),
}

# ------------------------------------------------------------------------------------ evaluation, play and machines

EVAL = {
    "every": Field(50, integer(0), "steps between evaluations; 0 is never"),
    "games": Field(512, integer(1, 1 << 20), "games per opponent, seats in turn; tasks: examples at most"),
    "samples": Field(1, integer(1, 1 << 16), "tasks: episodes of each example; above 1, temperature must be above 0"),
    "opponents": Field(("random",), TEXTS, "bots, folders of runs, or remote models (URL#MODEL); tasks: remote models"),
    "swap_roles": Field(False, SWITCH, "also let every role be played by the policy of the next one"),
    "best_of": Field(
        1,
        integer(1, 1024),
        "above 1, opponents are also met with the best by value of so many moves: the own one and others drawn",
    ),
    "temperature": Field(0.0, number(0), "of the answers; 0 is greedy"),
    "confidence": Field(0.95, number(0.5, 0.9999), "of the intervals"),
    "step": Field("newest", STEP, "checkpoint that --mode=eval and --mode=export read"),
    "seed": Field(1, SEED, "of the games"),
    "split": Field(
        "test", choice("validation", "test"), "tasks: examples of --mode=eval; a run evaluates itself on validation"
    ),
}

PLAY = {
    "opponent": Field(
        "", TEXT, "a bot ('bot': the game's best), the folder of a run, or URL#MODEL; '' is this run's checkpoint"
    ),
    "seat": Field(0, integer(-1), "of the person; -1 is nobody, to watch"),
    "temperature": Field(0.0, number(0), "of the opponent's answers; 0 is greedy"),
    "seed": Field(0, SEED, "of the game"),
}

SERVE = {  # of --mode=serve and --mode=serve_reward
    "host": Field("127.0.0.1", TEXT, "address to listen on; one that other machines can reach needs a key"),
    "port": Field(8000, integer(0, 65535), "0 is any free one"),
    "key_env": Field("MARL_JAX_KEY", TEXT, "environment variable with the key that clients must send; unset: none"),
    "workers": Field(0, integer(0, 64), "processes that answer HTTP for the one with the models; 0: it does so itself"),
    "max_body": Field(8.0, number(0, above=True), "MiB of a request at most"),
    "max_requests": Field(256, integer(1, 1 << 16), "requests under way at most; more are asked to come again"),
    "time_limit": Field(600.0, number(0, above=True), "seconds in which a request is answered"),
    "drain": Field(30.0, number(0), "seconds that requests under way have when the server is stopped"),
    "models": Field((), TEXTS, "what to serve, NAME=PLACE each (docs/serving.md); () is the policies of this run"),
    "runs": Field((), TEXTS, "folders of runs, or of many of them, to be looked at on the page (docs/page.md)"),
    "max_num_seqs": Field(64, integer(1, 1 << 16), "answers that are written at once"),
    "max_length": Field(4096, integer(2, 1 << 21), "tokens of a conversation at most, within what the model can read"),
    "max_new_tokens": Field(1024, integer(1, 1 << 17), "tokens of an answer at most, unless the client says so"),
    "session_idle": Field(3600.0, number(0, above=True), "seconds after which a session that nobody uses is ended"),
    "traces": Field(True, SWITCH, "write sessions to traces.jsonl in the folder of the run"),
}

CHECKPOINT = {
    "every": Field(50, integer(1), "steps between checkpoints"),
    "keep": Field(2, integer(1, 10_000), "the newest so many; the best by `best_metric` is kept besides"),
    "best_metric": Field("", TEXT, "metric of the evaluation, e.g. 'random/win_rate'; '' keeps the newest only"),
    "best_mode": Field("max", choice("max", "min"), "whether more is better"),
    "nan_limit": Field(5, integer(1), "so many skipped updates in a row end the run"),
}

MESH = {
    "data": Field(-1, _SHARDS, "copies of the model, each with its part of the batch"),
    "fsdp": Field(1, _SHARDS, "parts of the parameters and the optimizer state; the batch is split the same way"),
    "tensor": Field(1, _SHARDS, "parts of heads and feed-forward, over neighbouring devices"),
    "sampling": Field(
        "same",
        choice("same", "replicated", "tensor"),
        "how the weights lie while answers are sampled: same as for learning; whole on every device; tensor only",
    ),
}

DISTRIBUTED = {
    "enabled": Field(False, SWITCH, "several processes; on TPU pods and under SLURM the rest is found by itself"),
    "coordinator": Field("", TEXT, "host:port of process 0"),
    "processes": Field(0, integer(0), "how many"),
    "index": Field(-1, integer(-1), "number of this process"),
    "timeout": Field(60, integer(1), "seconds without a word from another process before the run ends"),
}

LOG = {
    "every": Field(1, integer(1), "steps between rows of metrics.jsonl"),
    "tensorboard": Field(True, SWITCH, "write event files"),
    "wandb": Field(False, SWITCH, "log to Weights & Biases"),
    "progress": Field(True, SWITCH, "show a progress bar"),
    "games_every": Field(25, integer(1), "steps between games written to logs/ and games.jsonl"),
    "games": Field(2, integer(0, 1 << 14), "how many of them each time"),
    "max_megabytes": Field(64, integer(1), "of one log file; further games are left out"),
    "profile": Field(False, SWITCH, "trace a few steps; --profile sets it"),
}

AGENTS = Field(
    {"all": "main"}, OPEN, "who plays: 'all', a seat ('seat_0') or a role to the name of a policy or to 'bot:NAME'"
)
ALGO_NAME = Field("ppo", TEXT, "the algorithm; its fields stand beside the name")

GROUPS = {
    "env": ENV, "task": TASK, "model": MODEL, "model.lora": LORA, "rollout": ROLLOUT, "sampling": SAMPLING,
    "optim": OPTIM, "opponents": OPPONENTS, "reward": REWARD, "curriculum": CURRICULUM, "eval": EVAL, "play": PLAY,
    "serve": SERVE, "checkpoint": CHECKPOINT, "mesh": MESH, "distributed": DISTRIBUTED, "log": LOG,
}  # fmt: skip

FIELDS: dict[str, Field] = {
    **RUN,
    "agents": AGENTS,
    "algo.name": ALGO_NAME,
    **{f"policies.*.{name}": field for name, field in POLICY.items()},
    **{f"{group}.{name}": field for group, members in GROUPS.items() for name, field in members.items()},
}
"""Every field by its dotted name; `*` stands for the name of a policy."""

OPEN_GROUPS = tuple(f"{name}." for name, field in FIELDS.items() if field.rule is OPEN)
"""Beginnings of the names of fields that are not listed here."""


def group(name: str, /, **changes: Any) -> ConfigDict:
    """One group with its defaults, and the groups within it."""
    members = fields.defaults(fields.with_defaults(GROUPS[name], **changes))
    inner = {other.rpartition(".")[2]: group(other) for other in GROUPS if other.rpartition(".")[0] == name}
    return ConfigDict(members | inner)


def policy() -> ConfigDict:
    """One policy: an adapter on the model of the run or a copy of it; `model` is {} or a model of its own."""
    return ConfigDict({"model": {}, **fields.defaults(POLICY)})


def defaults() -> ConfigDict:
    """A run with every default; `algo` has the name alone, its fields come from the algorithm."""
    outer = {name: group(name) for name in GROUPS if "." not in name}
    names = dict(agents=AGENTS.default, policies=dict(main=policy()), algo=dict(name=ALGO_NAME.default))
    return ConfigDict(fields.defaults(RUN) | names | outer)


def field_name(name: str) -> str:
    """The key of `FIELDS` for a field: the name of a policy becomes `*`, and a policy's own model is a model."""
    parts = name.split(".")
    if parts[0] == "policies" and parts[2:3] == ["model"] and len(parts) > 3:
        return ".".join(parts[2:])
    return ".".join(["policies", "*", *parts[2:]]) if parts[0] == "policies" and len(parts) > 2 else name
