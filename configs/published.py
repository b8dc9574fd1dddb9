"""Algorithms exactly as published, each function named after its paper: `config.algo = published.dapo(16)`.

Our own defaults (`configs/algorithms.py`) differ: groups whose rewards are all equal are left out of the mean, the
variance is divided by K rather than K - 1, and `tis_clip` corrects for a sampler that rounds otherwise. Here such
groups stay in the mean as zeros unless the paper drops them, and nothing is corrected. The number of updates per
rollout is the paper's where it gives one. The learning rate does not depend on the share of informative completions,
and no update is rejected.
"""

from ml_collections import ConfigDict

from configs import algorithms


def grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """GRPO, Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300): one update per rollout, KL estimate k3 in the loss."""
    return _exactly(group_size, dict(std_ddof=1, kl_coef=0.04, minibatches=1), changes)


def rloo(group_size: int = 4, **changes) -> ConfigDict:
    """RLOO, Ahmadian et al. 2024 (Back to Basics, arXiv 2402.14740).

    REINFORCE on whole answers, each against the mean of the others; no division by their length, the KL in the reward.
    """
    own = dict(group_std=False, group_baseline="leave_one_out", ratio="product", minibatches=1)
    return _exactly(group_size, own | dict(kl_coef=0.03, kl_kind="k1", kl_in="reward"), changes)


def dr_grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """Dr. GRPO, Liu et al. 2025 (Understanding R1-Zero-Like Training, arXiv 2503.20783).

    No division by the standard deviation; sums over tokens, divided by the limit of tokens for all answers alike.
    """
    return _exactly(group_size, dict(group_std=False, loss_agg="constant"), changes)


def dapo(group_size: int | None = None, **changes) -> ConfigDict:
    """DAPO, Yu et al. 2025 (arXiv 2503.14476): higher upper clip, mean over all tokens, overlong penalty, refill.

    Dynamic sampling replaces groups whose rewards are all equal, before the overlong penalty. The released code
    samples at most 10 batches per update, here the first and 9 more (`refill`), and ends with an error if they do not
    fill the batch. Here training continues on the informative groups; `refill=0` samples one batch.
    """
    own = dict(std_ddof=1, clip_high=0.28, loss_agg="token", filter_zero_std_groups=True, overlong="penalty")
    return _exactly(group_size, own | dict(minibatches=16, refill=9), changes)


def gspo(group_size: int | None = None, **changes) -> ConfigDict:
    """GSPO, Zheng et al. 2025 (arXiv 2507.18071): one ratio per answer, its geometric mean, with a narrow clip."""
    return _exactly(group_size, dict(std_ddof=1, ratio="sequence", clip_low=3e-4, clip_high=4e-4), changes)


UNGUARDED = dict(guard="off")
"""Settings that switch off this project's check of every update."""

MAPORL_OPTIM = dict(lr=1e-5, b1=0.9, b2=0.95)
"""The optimizer of MAPoRL, AdamW under LoRA: `config.optim.update(published.MAPORL_OPTIM)`."""


def maporl(turns: int = 3, released: bool = False, **changes) -> ConfigDict:
    """MAPoRL, Park et al. 2025 (arXiv 2502.18439), on debates of `turns` turns, of which all but the first learn.

    The task's reward of an answer already holds what it leads to, so every answer is a stream of its own (gamma 0): GAE
    runs over its tokens, the value behind the last is 0, and the KL is charged token by token. The critic reads the
    question and the answer, without the debate. The released code differs in the weight of the KL (`released`); its
    value head is not trained, here it is. How many minibatches they take is not stated; ours is the default.
    """
    own = dict(
        gamma=0.0, gae="token", lam=0.95, gamma_token=1.0, clip_low=0.2, clip_high=0.2, value_clip=0.2, value_coef=0.1,
        epochs=4, entropy_coef=0.0, kl_coef=2e-3 if released else 2e-4, kl_in="reward", kl_kind="k1", whiten="turn",
        critic="head", critic_reads="completion", train_turns=tuple(range(1, turns)), tis_clip=0.0, **UNGUARDED,
    )  # fmt: skip
    return algorithms.ppo(**own | changes)


def _exactly(group_size: int | None, own: dict, changes: dict) -> ConfigDict:
    common = dict(tis_clip=0.0, filter_zero_std_groups=False, entropy_coef=0.0, epochs=1)
    common |= dict(signal_frac=0.0, minibatch_groups=False, **UNGUARDED)
    return algorithms.grpo(group_size, **common | own | changes)
