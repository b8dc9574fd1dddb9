"""Leduc poker self-play with exact exploitability at every evaluation.

    python launch.py --config=experiments/leduc.py

One policy plays both seats. Expect an exploitability of 0.44 chips after 200 updates, from 2.43, in eight minutes on
two busy CPU cores (docs/results.md).

Suits have no effect and are not shown, which gives 288 information sets; `--config.env.params.suits=true` shows them,
which gives 936. The forms are those of `experiments/kuhn.py`; populations are described in docs/populations.md.

    python launch.py --config=experiments/leduc.py:psro   # a population: 0.30 after four responses
"""

from configs import poker


def get_config(form: str | None = None):
    """Configure self-play on Leduc poker."""
    shape = dict(d_model=48, n_layers=1, n_heads=3, n_kv_heads=3, d_ff=96)
    return poker.poker("leduc", form, steps=200, turns=16, entropy=(0.2, 0.08), chips=0.25, shape=shape, suits=False)
