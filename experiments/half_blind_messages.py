"""Plan-Path with a half-blind executor: learned, named and no messages of a planner.

    python launch.py --config=experiments/half_blind_messages.py            # a soft message of one token
    python launch.py --config=experiments/half_blind_messages.py:none       # no channel

The goal is in the upper half of a 5x5 grid, which only the planner sees, and the start is in the lower half, which only
the executor sees. Forms: `none` (no channel), `named` (the planner names a direction before every move), `soft` (a
soft token at every move) and its controls `shuffled`, `frozen` and `detached`, and `all` (one agent that sees the
whole grid). A number after a plus sign sets the number of soft tokens, as in `soft+4`. All forms have room for the same
number of completions (docs/communication.md).
"""

from configs import algorithms, defaults

PLAIN = ("none", "named", "all")
SOFT = ("soft", "detached", "shuffled", "frozen")
MOVES = 12


def get_config(form: str | None = None):
    """Configure the game with one form of communication and the embedded model."""
    kind, _, tokens = (form or "soft").partition("+")
    if kind not in (*PLAIN, *SOFT) or (tokens and (not tokens.isdigit() or kind in PLAIN)):
        known = ", ".join((*PLAIN, *SOFT))
        raise ValueError(f"form is {form!r}, but must be one of {known}, with +TOKENS after a soft one")
    config = defaults.get_config()
    config.name = "half_blind_messages"
    roles = {} if kind == "all" else dict(roles="two", view="half", proposes=kind == "named")
    config.env = defaults.environment(
        "plan_path", size=5, divided=True, budget=MOVES, n_train=4096, n_test=1024, **roles
    )
    config.env.update(dict(text="brief", style="plain"))
    if kind in SOFT:
        config.env.update(dict(message_tokens=int(tokens or 1), message=kind))
    config.model.shape.update(dict(d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=64))
    algorithms.imitate(config)
    config.rollout.update(dict(num_envs=64, unroll_length=MOVES))
    if kind == "named":  # a move takes two completions
        config.rollout.update(dict(num_envs=32, unroll_length=2 * MOVES))
    config.steps = 150
    config.optim.update(dict(lr=3e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=150, games=1024, opponents=(), temperature=1.0))
    config.checkpoint.update(dict(every=150, best_metric="self/success"))
    return config
