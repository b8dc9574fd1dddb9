"""Config fields of games and tasks, their rewards, and who plays against whom."""

from __future__ import annotations

from marl_jax.fields import OPEN, SHARES, SWITCH, TEXT, TEXTS, Field, choice, integer, number

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
