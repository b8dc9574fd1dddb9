"""A referential game: learned messages of a speaker, against a named message and no channel.

    python launch.py --config=experiments/referential.py            # a soft message of one token
    python launch.py --config=experiments/referential.py:named      # one of two named messages

The speaker sees one of 16 cards, and the listener names it. Forms: `none` (no channel, best 1/16), `named` (a choice of
two messages, best 2/16), `soft` (one soft token, best 1) and its controls `shuffled`, `frozen` and `detached`
(docs/communication.md). A number after a plus sign sets the number of soft tokens, as in `soft+4`.
"""

from configs import algorithms, defaults

FORMS = ("none", "named", "soft", "detached", "shuffled", "frozen")


def get_config(form: str | None = None):
    """Configure the game with one form of communication and the embedded model."""
    kind, _, tokens = (form or "soft").partition("+")
    if kind not in FORMS or (tokens and (not tokens.isdigit() or kind in FORMS[:2])):
        raise ValueError(f"form is {form!r}, but must be one of {', '.join(FORMS)}, with +TOKENS after a soft one")
    config = defaults.get_config()
    config.name = "referential"
    config.env = defaults.environment("referential", cards=16, messages=2 if kind == "named" else 0)
    config.env.update(dict(text="brief", style="plain"))
    if kind not in FORMS[:2]:
        config.env.update(dict(message_tokens=int(tokens or 1), message=kind))
    config.algo = algorithms.ppo()
    config.algo.update(dict(epochs=1, minibatches=4, entropy_coef=0.01, tis_clip=0.0))
    config.model.shape.update(dict(d_model=32, n_layers=2, n_heads=2, n_kv_heads=2, d_ff=64))
    config.rollout.update(dict(num_envs=128, unroll_length=4))
    config.steps = 150
    config.optim.update(dict(lr=3e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=25, games=1024, opponents=()))
    config.checkpoint.update(dict(every=50, best_metric="self/success"))
    return config
