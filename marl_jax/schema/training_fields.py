"""Config fields of models, rollouts, the optimizer and devices."""

from __future__ import annotations

from marl_jax.fields import OPEN, SWITCH, TEXT, Field, Rule, choice, integer, number, some_of

LORA_TARGETS = ("q", "k", "v", "o", "gate", "up", "down")
_FLOATS = choice("float32", "bfloat16")
_SHARDS = Rule("an integer >= 1, or -1 for the remaining devices", lambda x: x == -1 or integer(1).holds(x))

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
        0,
        integer(0, 4096),
        "Layers per iteration of the scan over layers; 0: on GPUs all, or 4 with `model.remat=full`; elsewhere 1",
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
