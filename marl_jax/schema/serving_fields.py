"""Config fields of the batcher, served models and remote models."""

from __future__ import annotations

from marl_jax.fields import SWITCH, TEXT, TEXTS, Field, choice, integer, number

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
