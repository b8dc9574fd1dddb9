"""Config fields of evaluations, play, checkpoints and logs."""

from __future__ import annotations

from marl_jax.fields import SEED, STEP, SWITCH, TEXT, TEXTS, Field, choice, integer, number

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

CHECKPOINT = {
    "every": Field(50, integer(1), "Number of steps between checkpoints"),
    "keep": Field(2, integer(1, 10_000), "Number of recent checkpoints to keep, in addition to the best one"),
    "best_metric": Field(
        "", TEXT, "Evaluation metric that selects the best checkpoint, e.g. 'random/win_rate'; '': none"
    ),
    "best_mode": Field("max", choice("max", "min"), "Whether the best checkpoint has the highest or the lowest metric"),
    "nan_limit": Field(5, integer(1), "Number of consecutive skipped updates that ends the run"),
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
