"""Config fields of a run with their defaults, rules and help texts.

    config.<group>.<field>      GROUPS
    config.<field>              RUN
    config.algo.<field>         fields of the algorithm named by `algo.name` (`marl_jax/algorithms`)
    config.policies.<name>.…    POLICY, and MODEL for a policy with a separate model

A run has one environment: either `env.name` names a game or `task.name` names a task, and the other is "". Names of
games, tasks, models, algorithms and bots are plain strings here because the registries import JAX and this module
does not. `validate.py` looks them up.
"""

from __future__ import annotations

from typing import Any

from ml_collections import ConfigDict

from marl_jax import fields
from marl_jax.fields import (
    OPEN,
    SEED,
    SHARES,
    STEP,
    SWITCH,
    TEXT,
    TEXTS,
    Field,
    Rule,
    choice,
    integer,
    number,
    some_of,
)  # fmt: skip
from marl_jax.schema.conditions import CONDITIONS

LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
_FLOATS = choice("float32", "bfloat16")
_SHARDS = Rule("an integer >= 1, or -1 for the remaining devices", lambda x: x == -1 or integer(1).holds(x))

RUN = {
    "name": Field("", TEXT, "Name of the experiment; '' uses the name of its file"),
    "seed": Field(0, SEED, "Random seed"),
    "steps": Field(200, integer(1), "Number of training steps"),
    "stop_when": Field(
        "",
        CONDITIONS,
        "Conditions on training metrics that end the run once they hold for three consecutive updates, e.g. "
        "'success>=0.99'",
    ),
    "alarm": Field(
        "warn",
        choice("off", "warn", "rollback", "stop"),
        "Reaction to a training collapse or stall; rollback: return to the last good checkpoint at half the learning "
        "rate, at most twice",
    ),
    "first_stage": Field(
        {}, OPEN, "Config changes for a first training stage that the run starts from; {}: no first stage"
    ),
    "plugins": Field(
        (), TEXTS, "Modules to import first; they may register games, tasks, algorithms, bots or model families"
    ),
}

# ---------------------------------------------------------------------------------------------------- environments

ENV = {
    "name": Field("tic_tac_toe", TEXT, "Name of the game; '' if the environment is a task"),
    "params": Field({}, OPEN, "Parameters of the game"),
    "text": Field(
        "full",
        choice("full", "brief", "compact"),
        "Prompt format; full: rules and position in words; brief: few characters, for byte tokenizers; compact: about "
        "one token per fact",
    ),
    "observation": Field(
        "text",
        choice("text", "image", "both"),
        "Form of the position in prompts; image: a picture or other media instead of the board, for models with their "
        "encoders; both: the media before the text",
    ),
    "media_order": Field(
        "interleaved",
        choice("interleaved", "prepended"),
        "Place of several media in prompts; interleaved: where their text would be; prepended: all before the text",
    ),
    "message_tokens": Field(
        0,
        integer(0, 64),
        "Number of soft tokens that a listener reads at the end of its prompt, computed from the speaker's prompt; "
        "0: no soft messages",
    ),
    "message": Field(
        "soft",
        choice("soft", "detached", "shuffled", "frozen"),
        "Kind of soft messages; detached: the speaker gets no gradients; shuffled: of another game; frozen: random "
        "constants",
    ),
    "reasoning": Field(
        False, SWITCH, "Whether the prompt asks for reasoning before the move; requires rollout.completion=free"
    ),
    "style": Field("chat", choice("chat", "plain"), "Prompt wrapping; chat: the model's chat template; plain: none"),
    "context": Field(
        "turn",
        choice("turn", "history"),
        "Prompt contents; turn: rules and current position; history: the conversation so far plus the new turn",
    ),
    "history_tokens": Field(
        0,
        integer(0, 1 << 21),
        "Training row length in tokens if context=history; 0: room for two first prompts and a seat's usual turns",
    ),
    "turn_tokens": Field(
        0,
        integer(0, 1 << 21),
        "Training row length in tokens after the rules if context=turn; longer rows are dropped; 0: the longest prompt "
        "fits",
    ),
    "history_turns": Field(
        32, integer(1, 1 << 16), "Number of completions after which a conversation restarts if context=history"
    ),
    "symmetry": Field(False, SWITCH, "Whether to apply a random game symmetry per episode and seat (Other-Play)"),
}

TASK = {
    "name": Field("", TEXT, "Name of the task; '' if the environment is a game"),
    "params": Field({}, OPEN, "Parameters of the task"),
    "split": Field("train", choice("train", "validation", "test"), "Dataset split to train on"),
    "n_episodes": Field(64, integer(1, 1 << 20), "Number of episodes per training step"),
    "time_limit": Field(60.0, number(0, above=True), "Time limit of an episode in seconds, excluding compilation"),
    "max_new_tokens": Field(256, integer(1, 1 << 17), "Maximum number of tokens per completion"),
    "max_num_seqs": Field(64, integer(1, 1 << 16), "Maximum number of sequences decoded at the same time"),
    "max_length": Field(2048, integer(2, 1 << 21), "Maximum number of tokens per conversation"),
    "tool_format": Field(
        "auto",
        choice("auto", "hermes", "llama3", "fenced"),
        "Format of tool calls; auto chooses hermes or llama3 by the chat template, fenced also reads JSON without tags",
    ),
}

REWARD = {
    "team": Field(1.0, number(), "Weight of team rewards"),
    "agent": Field(1.0, number(), "Weight of individual agent rewards"),
    "process": Field(1.0, number(), "Weight of process rewards, which score single steps"),
    "dense": Field(True, SWITCH, "Whether rewards arrive at each step; False sums them at the end of the episode"),
}

CURRICULUM = {  # at difficulty level g of n, puzzles are drawn from the easiest g/n of the pool
    "enabled": Field(False, SWITCH, "Whether training starts with easy puzzles and moves to harder ones"),
    "difficulty_levels": Field(5, integer(2, 1000), "Number of difficulty levels; the last one draws from all puzzles"),
    "start": Field(1, integer(1), "First difficulty level"),
    "up": Field(0.8, number(0, 1, above=True), "Fraction of solved games at which the difficulty level rises by one"),
    "down": Field(0.2, number(0, 1), "Fraction of solved games below which the difficulty level falls by one"),
    "window": Field(256, integer(1, 1 << 20), "Number of games between decisions about the difficulty level"),
}

LEVEL_REPLAY = {  # of puzzles, see docs/level_replay.md
    "method": Field(
        "",
        choice("", "plr", "robust_plr", "accel"),
        "Source of training levels; plr: a buffer of informative levels and new ones; robust_plr: new levels only get "
        "a score; accel: robust, and new levels are edits of replayed ones; '': the pool",
    ),
    "score": Field(
        "learnability",
        choice("learnability", "regret"),
        "Score of a level; learnability: p (1 - p) for the success rate p; regret: optimal minus mean return",
    ),
    "capacity": Field(128, integer(1, 1 << 16), "Number of levels of the buffer"),
    "candidates": Field(64, integer(1, 1 << 16), "Number of new levels at a time"),
    "replay_frac": Field(0.5, number(0, 1, above=True), "Fraction of games that start on a level of the buffer"),
    "edits": Field(3, integer(1, 64), "Number of edits of a level with method=accel"),
}

OPPONENTS = {  # in competitive games during training
    "self_play_frac": Field(1.0, number(0, 1), "Fraction of games against the current policy"),
    "pool_size": Field(0, integer(0, 1024), "Number of past policies kept as opponents; 0: none"),
    "snapshot_every": Field(25, integer(1), "Number of steps between snapshots for the opponent pool"),
    "prioritized": Field(True, SWITCH, "Whether stronger past policies are sampled more often"),
    "bots": Field((), TEXTS, "Bots to train against, e.g. ('random',)"),
    "bot_frac": Field(0.0, number(0, 1), "Fraction of games against bots"),
    "members": Field(
        (), TEXTS, "Runs whose policies fill the opponent pool instead of past policies, as FOLDER or FOLDER@STEP"
    ),
    "shares": Field((), SHARES, "Relative frequency of each run of opponents.members; () for equal frequencies"),
}

POPULATION = {  # a run that trains one member after the other, see docs/populations.md
    "method": Field(
        "",
        choice("", "psro", "league"),
        "How a population is trained; psro: each member responds to a mixture of the earlier ones; league: a main "
        "policy and two exploiters; '': one policy, no population",
    ),
    "meta_solver": Field(
        "nash",
        choice("nash", "least_exploitable"),
        "Mixture of the members; nash: Nash equilibrium of choosing a member; least_exploitable: mixture against which "
        "best responses gain least, in games that can be enumerated",
    ),
    "rounds": Field(8, integer(1, 1000), "Number of rounds after the first member"),
    "steps": Field(60, integer(1), "Number of training steps of each member after the first"),
    "self_play_frac": Field(0.35, number(0, 1), "Fraction of the games of a league's main policy against itself"),
}

# --------------------------------------------------------------------------------------------- models and learning

LORA = {
    "rank": Field(0, integer(0, 1024), "Rank of the LoRA adapters; 0 trains all weights"),
    "alpha": Field(32.0, number(0, above=True), "LoRA scale; adapters are multiplied by alpha / rank"),
    "targets": Field(LORA_TARGETS, some_of(*LORA_TARGETS), "Projections with a LoRA adapter"),
}

MODEL = {
    "name": Field("tiny", TEXT, "Name of a registered model"),
    "weights": Field("", TEXT, "Hugging Face folder or GGUF file; '' downloads the weights, 'random' initializes them"),
    "init_from": Field("", TEXT, "Run to start from, as FOLDER or FOLDER@STEP; STEP is newest, best or a number"),
    "shape": Field({}, OPEN, "Changes to models.config.ModelConfig for a model with random weights"),
    "dtype": Field("bfloat16", _FLOATS, "Dtype of the computation"),
    "param_dtype": Field("float32", _FLOATS, "Dtype of the master weights, or of the frozen base model with LoRA"),
    "remat": Field("full", choice("none", "dots", "full"), "Activations to rematerialize in the backward pass"),
    "unroll": Field(
        0, integer(0, 4096), "Number of layers per iteration of the scan over layers; 0: all on GPUs, one elsewhere"
    ),
}

POLICY = {
    "frozen": Field(False, SWITCH, "Whether the policy plays without being trained"),
}

ROLLOUT = {
    "num_envs": Field(256, integer(1, 1 << 20), "Number of parallel games"),
    "unroll_length": Field(
        16, integer(1, 1 << 16), "Number of turns per parallel game in a rollout; finished games restart"
    ),
    "temperature": Field(1.0, number(0, above=True), "Sampling temperature during training"),
    "max_new_tokens": Field(8, integer(1, 1 << 17), "Maximum number of tokens per completion if completion=free"),
    "completion": Field(
        "constrained",
        choice("constrained", "free"),
        "Completion format; constrained: the name of a legal move; free: any text, parsed afterwards",
    ),
    "parse_failure_reward": Field(-1.0, number(), "Process reward of a free completion that names no legal move"),
    "in_flight_updates": Field(
        False, SWITCH, "Whether running completions of tasks get new weights; makes resuming inexact"
    ),
}

SAMPLING = {  # for tasks and serving, see `marl_jax.sampling.batcher.Batcher`
    "memory_frac": Field(0.3, number(0, 1, above=True), "Maximum fraction of device memory for the KV cache"),
    "page_size": Field(16, integer(8, 64), "Number of tokens per KV cache page; a power of two"),
    "fixed_shapes": Field(
        "auto",
        choice("auto", "true", "false"),
        "Whether completions are bitwise independent of load and arrival order; auto: on CPUs without in-flight "
        "updates",
    ),
}

OPTIM = {  # AdamW
    "lr": Field(1e-3, number(0, above=True), "Learning rate"),
    "critic_lr": Field(0.0, number(0), "Learning rate of the value head or critic; 0: same as lr"),
    "schedule": Field(
        "linear", choice("constant", "linear", "cosine"), "Learning rate schedule, from lr down to min_lr_ratio * lr"
    ),
    "min_lr_ratio": Field(0.0, number(0, 1), "Final learning rate as a fraction of lr"),
    "warmup": Field(10, integer(0), "Number of steps over which the learning rate rises from 0"),
    "weight_decay": Field(0.0, number(0), "Decoupled weight decay"),
    "b1": Field(0.9, number(0, 0.9999), "Decay of Adam's first moment"),
    "b2": Field(0.95, number(0, 0.99999), "Decay of Adam's second moment"),
    "eps": Field(1e-8, number(0, above=True), "Epsilon added to the square root of Adam's second moment"),
    "max_grad_norm": Field(1.0, number(0), "Maximum gradient norm; 0 disables clipping"),
    "adam_state_dtype": Field("float32", choice("float32", "bfloat16", "int8"), "Dtype of Adam's moments"),
}

# ------------------------------------------------------------------------------------ evaluation, play and machines

EVAL = {
    "every": Field(50, integer(0), "Number of steps between evaluations; 0: never"),
    "games": Field(
        512,
        integer(1, 1 << 20),
        "Number of games per opponent, alternating seats; for tasks, maximum number of examples",
    ),
    "samples": Field(
        1, integer(1, 1 << 16), "Number of episodes per example of a task; more than 1 requires eval.temperature > 0"
    ),
    "opponents": Field(
        ("random",),
        TEXTS,
        "Bots, run folders or remote models (URL#MODEL) to play against; for tasks, remote models only",
    ),
    "swap_roles": Field(False, SWITCH, "Whether to also evaluate with each role played by the policy of the next role"),
    "best_of": Field(
        1,
        integer(1, 1024),
        "Number of candidate moves for an extra evaluation that plays the one with the highest value; 1 disables it",
    ),
    "temperature": Field(0.0, number(0), "Sampling temperature; 0: greedy"),
    "confidence": Field(0.95, number(0.5, 0.9999), "Confidence level of the intervals"),
    "step": Field("newest", STEP, "Checkpoint to load outside of training"),
    "seed": Field(1, SEED, "Random seed of the evaluation"),
    "split": Field(
        "test",
        choice("validation", "test"),
        "Dataset split for --mode=eval; evaluations during training always use validation",
    ),
    "test": Field(
        "never",
        choice("never", "last", "always"),
        "Evaluations of the training of a task that also cover the test split, which selects no checkpoint",
    ),
}

SEARCH = {
    "rounds": Field(10, integer(1, 1000), "Number of rounds of the first editor; others get as many tokens"),
    "examples": Field(64, integer(1, 1 << 20), "Number of validation questions that score a workflow"),
    "editors": Field(
        ("policy", "random"), TEXTS, "Editors of workflows; 'policy', 'random' or remote models (URL#MODEL)"
    ),
}

PLAY = {
    "opponent": Field(
        "", TEXT, "Bot ('bot' is the strongest one), run folder or URL#MODEL to play against; '': this run"
    ),
    "seat": Field(0, integer(-1), "Seat of the user; -1 to watch"),
    "temperature": Field(0.0, number(0), "Sampling temperature of the opponent; 0: greedy"),
    "seed": Field(0, SEED, "Random seed of the game"),
}

REMOTE = {  # for remote models as agents and judges, see `marl_jax/serving/remote_models.py`
    "cache": Field(
        "run",
        TEXT,
        "Place of known responses by request; run: in the run folder; '': none; otherwise a file, which runs may share",
    ),
    "max_cost": Field(
        0.0, number(0), "Maximum cost of all requests of the run, in the unit of the prices; 0: no limit"
    ),
    "price_in": Field(0.0, number(0), "Price of a million prompt tokens"),
    "price_out": Field(0.0, number(0), "Price of a million completion tokens"),
    "requests_per_minute": Field(
        0, integer(0), "Maximum number of requests per minute, including retries; 0: no limit"
    ),
    "drift": Field(
        "stop",
        choice("stop", "log"),
        "Reaction to another model or system_fingerprint in a response than in earlier ones; stop: save and stop",
    ),
    "key_env": Field(
        "OPENAI_API_KEY", TEXT, "Environment variable with the API key of endpoints; no key if it is unset"
    ),
    "deadline": Field(120.0, number(0, above=True), "Time limit of a request in seconds, including retries"),
    "connections": Field(32, integer(1, 4096), "Maximum number of concurrent requests per endpoint"),
}

JUDGE = {  # for tasks, see `envs/tasks/judges/referee.py`
    "name": Field(
        "",
        TEXT,
        "Judge that rewards training episodes; '': none; rule: the task's own score; URL of a reward server; "
        "URL#MODEL of an endpoint; or a frozen policy of the run",
    ),
    "version": Field("", TEXT, "Version that the reward server must have; '' accepts any"),
    "criterion": Field(
        "correctness", TEXT, "Criterion of comparisons: fairness, coherence, creativity, relevance or correctness"
    ),
    "against": Field(
        "reference",
        choice("reference", "partner"),
        "Text that the learner's is compared with; reference: a reference completion; partner: that of the context "
        "agent",
    ),
    "weight": Field(1.0, number(0), "Weight of the probability to be better in the reward"),
    "rule_weight": Field(0.0, number(0), "Weight of the task's own reward"),
    "max_tokens": Field(
        64, integer(1, 1 << 17), "Maximum number of tokens per reply of a judge that is a language model"
    ),
    "time_limit": Field(60.0, number(0, above=True), "Time limit of a comparison in seconds"),
}

SERVE = {  # for --mode=serve and --mode=serve_reward
    "host": Field("127.0.0.1", TEXT, "Address to listen on; addresses other than loopback require a key"),
    "port": Field(8000, integer(0, 65535), "Port to listen on; 0 picks a free one"),
    "key_env": Field(
        "MARL_JAX_KEY", TEXT, "Environment variable with the API key that clients must send; no key if it is unset"
    ),
    "workers": Field(
        0, integer(0, 64), "Number of HTTP worker processes; 0 handles HTTP in the process with the models"
    ),
    "max_body": Field(8.0, number(0, above=True), "Maximum size of a request in MiB"),
    "max_requests": Field(
        256, integer(1, 1 << 16), "Maximum number of concurrent requests; excess requests get HTTP 429"
    ),
    "max_completions": Field(
        4096, integer(1), "Maximum number of completions per request: prompts times n, or conversations to score"
    ),
    "max_messages": Field(4096, integer(1), "Maximum number of messages per conversation of a request"),
    "max_request_tokens": Field(
        1 << 22,
        integer(1),
        "Maximum number of tokens per request, of all prompts and completions; excess gets HTTP 413",
    ),
    "image_hosts": Field(
        (), TEXTS, "Hosts from which https URLs of images in messages are fetched; (): images must be data: URLs"
    ),
    "time_limit": Field(600.0, number(0, above=True), "Time limit of a request in seconds"),
    "drain": Field(30.0, number(0), "Time in seconds for running requests to finish when the server stops"),
    "models": Field(
        (), TEXTS, "Models to serve, each as NAME=PLACE (see docs/serving.md); (): the policies of this run"
    ),
    "runs": Field((), TEXTS, "Run folders, or folders that contain runs, to show on the web page (see docs/page.md)"),
    "max_num_seqs": Field(64, integer(1, 1 << 16), "Maximum number of sequences decoded at the same time"),
    "max_length": Field(4096, integer(2, 1 << 21), "Maximum number of tokens per conversation, capped by the model"),
    "max_new_tokens": Field(
        1024, integer(1, 1 << 17), "Default maximum number of tokens per completion if the request has none"
    ),
    "session_idle": Field(3600.0, number(0, above=True), "Time in seconds after which an idle session ends"),
    "traces": Field(True, SWITCH, "Whether to write sessions to traces.jsonl in the run folder"),
}

CHECKPOINT = {
    "every": Field(50, integer(1), "Number of steps between checkpoints"),
    "keep": Field(2, integer(1, 10_000), "Number of recent checkpoints to keep, in addition to the best one"),
    "best_metric": Field(
        "", TEXT, "Evaluation metric that selects the best checkpoint, e.g. 'random/win_rate'; '': none"
    ),
    "best_mode": Field("max", choice("max", "min"), "Whether the best checkpoint has the highest or the lowest metric"),
    "nan_limit": Field(5, integer(1), "Number of consecutive skipped updates that ends the run"),
}

MESH = {
    "data": Field(-1, _SHARDS, "Number of data-parallel model replicas; -1 uses the remaining devices"),
    "fsdp": Field(
        1, _SHARDS, "Number of shards of parameters, optimizer state and batch; -1 uses the remaining devices"
    ),
    "tensor": Field(1, _SHARDS, "Number of tensor-parallel shards of heads and feed-forward layers"),
    "sampling": Field(
        "same",
        choice("same", "replicated", "tensor"),
        "Weight sharding during sampling; same: as in training; replicated: full copy per device; tensor: tensor axis "
        "only",
    ),
}

DISTRIBUTED = {
    "enabled": Field(
        False, SWITCH, "Whether to run with several processes; TPU pods and SLURM are detected automatically"
    ),
    "coordinator": Field("", TEXT, "Address of process 0, as HOST:PORT"),
    "processes": Field(0, integer(0), "Number of processes"),
    "index": Field(-1, integer(-1), "Index of this process"),
    "timeout": Field(
        60, integer(1), "Time in seconds without a heartbeat from another process after which the run ends"
    ),
}

LOG = {
    "every": Field(1, integer(1), "Number of steps between rows of metrics.jsonl"),
    "tensorboard": Field(True, SWITCH, "Whether to write TensorBoard event files"),
    "wandb": Field(False, SWITCH, "Whether to log to Weights & Biases"),
    "progress": Field(True, SWITCH, "Whether to show a progress bar"),
    "games_every": Field(25, integer(1), "Number of steps between games written to logs/ and games.jsonl"),
    "games": Field(2, integer(0, 1 << 14), "Number of games to write each time"),
    "max_megabytes": Field(64, integer(1), "Maximum size of a log file in megabytes; later games are not written"),
    "profile": Field(False, SWITCH, "Whether to profile a few steps; same as --profile"),
}

AGENTS = Field(
    {"all": "main"},
    OPEN,
    "Player of each seat ('seat_0'), role or 'all': a policy, 'bot:NAME', a remote model (URL#MODEL; tasks only), or a "
    "frozen run folder or registered model",
)
ALGO_NAME = Field("ppo", TEXT, "Name of the algorithm, which determines the other fields of algo")

GROUPS = {
    "env": ENV, "task": TASK, "model": MODEL, "model.lora": LORA, "rollout": ROLLOUT, "sampling": SAMPLING,
    "optim": OPTIM, "opponents": OPPONENTS, "population": POPULATION, "reward": REWARD, "curriculum": CURRICULUM,
    "level_replay": LEVEL_REPLAY, "eval": EVAL, "search": SEARCH, "play": PLAY, "remote": REMOTE, "judge": JUDGE,
    "serve": SERVE, "checkpoint": CHECKPOINT, "mesh": MESH, "distributed": DISTRIBUTED, "log": LOG,
}  # fmt: skip

FIELDS: dict[str, Field] = {
    **RUN,
    "agents": AGENTS,
    "algo.name": ALGO_NAME,
    **{f"policies.*.{name}": field for name, field in POLICY.items()},
    **{f"{group}.{name}": field for group, members in GROUPS.items() for name, field in members.items()},
}
"""Every field by its dotted name; `*` matches any policy name."""

OPEN_GROUPS = tuple(f"{name}." for name, field in FIELDS.items() if field.rule is OPEN)
"""Prefixes of fields that are not listed in `FIELDS`, such as game parameters."""


def group(name: str, /, **changes: Any) -> ConfigDict:
    """Return a group with its defaults, including nested groups."""
    members = fields.defaults(fields.with_defaults(GROUPS[name], **changes))
    inner = {other.rpartition(".")[2]: group(other) for other in GROUPS if other.rpartition(".")[0] == name}
    return ConfigDict(members | inner)


def policy() -> ConfigDict:
    """Return the default config of a policy.

    With `model` {} the policy is an adapter on the run's model, or a copy of it. Otherwise it has a separate model.
    """
    return ConfigDict({"model": {}, **fields.defaults(POLICY)})


def defaults() -> ConfigDict:
    """Return the default config of a run; `algo` has only its name."""
    outer = {name: group(name) for name in GROUPS if "." not in name}
    names = dict(agents=AGENTS.default, policies=dict(main=policy()), algo=dict(name=ALGO_NAME.default))
    return ConfigDict(fields.defaults(RUN) | names | outer)


def field_name(name: str) -> str:
    """Return the key of `FIELDS` for a dotted name.

    Policy names become `*`, and the fields of a policy's model are those of `model`.
    """
    parts = name.split(".")
    if parts[0] == "policies" and parts[2:3] == ["model"] and len(parts) > 3:
        return ".".join(parts[2:])
    return ".".join(["policies", "*", *parts[2:]]) if parts[0] == "policies" and len(parts) > 2 else name
