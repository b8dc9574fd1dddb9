"""Kuhn poker self-play with exact exploitability at every evaluation.

    python launch.py --config=experiments/kuhn.py

One policy plays both seats. Expect an exploitability of 0.02 chips after 200 updates, from 0.43, in one to five minutes
on two CPU cores (docs/results.md).

The default is PPO with a magnet. `:ppo`, `:role`, `:magnet_role`, `:psro` and `:league` are the other forms of
`configs/poker.py`.
`:smollm2` and the others of `configs/variants.py` (also `:ppo+smollm2`) use a pretrained model. `:sft` imitates the
equilibrium bot.
"""

from configs import poker


def get_config(form: str | None = None):
    """Configure self-play on Kuhn poker."""
    shape = dict(d_model=32, n_layers=1, n_heads=2, n_kv_heads=2, d_ff=64)  # enough for twelve information sets
    return poker.poker("kuhn", form, steps=200, turns=12, entropy=(0.15, 0.03), chips=1.0, shape=shape)
