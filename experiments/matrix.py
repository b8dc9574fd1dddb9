"""Matrix games: what each method can represent, in half a minute on two CPU cores.

    python launch.py --config=experiments/matrix.py
    python launch.py --config=experiments/matrix.py:vdn
    python launch.py --config=experiments/matrix.py:qmix+qtran

The default is QMIX in the two-step game. The other methods are `:vdn`, `:coma`, `:maddpg` and `:mappo`; the other games
of `envs/games/matrix/rules.py` follow a plus sign, and `+per_role` at the end gives each seat its own policy. VDN and
QMIX explore uniformly: in the two-step game, VDN earns 7 and QMIX 8; in QTRAN's matrix both earn 0 of 8.
"""

from configs import cooperative


def get_config(form: str | None = None):
    """Configure a method and a matrix game, METHOD[+GAME][+per_role]."""
    method, *more = (form or "qmix").split("+")
    roles = [word for word in more if word == cooperative.PER_ROLE]
    presets = [word for word in more if word not in roles] or ["two_step"]
    config = cooperative.cooperative("matrix", "+".join([method, *roles]), preset="+".join(presets))
    config.name = "matrix"
    config.steps = 150
    config.model.shape.update(dict(d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=64))
    config.rollout.update(dict(num_envs=64, unroll_length=8))
    if method in ("vdn", "qmix"):
        config.algo.update(dict(epsilon=1.0, lam=0.0))
    config.optim.update(dict(lr=3e-3, warmup=2))
    config.eval.update(dict(every=50, games=64))
    return config
