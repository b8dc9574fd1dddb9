"""Algorithms as published: `config.algo = published.dapo(16, max_new_tokens=1024)`.

Each function is named after its paper. The defaults of this project (`configs/algorithms.py`) differ: groups whose
rewards are all equal are left out of the mean, the variance is divided by K rather than K - 1, and `tis_clip` corrects
for a sampler that rounds differently. Here such groups stay in the mean as zeros unless the paper drops them, and
nothing is corrected. The number of updates per rollout is the paper's if it gives one. The learning rate does not
depend on the fraction of informative completions, and no update is rejected.
"""

from ml_collections import ConfigDict

from configs import algorithms


def grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """Configure GRPO, Shao et al. 2024 (DeepSeekMath, arXiv 2402.03300).

    There is one update per rollout, and the KL estimate k3 is in the loss.
    """
    return _exactly(group_size, dict(std_ddof=1, kl_coef=0.04, minibatches=1), changes)


def rloo(group_size: int = 4, **changes) -> ConfigDict:
    """Configure RLOO, Ahmadian et al. 2024 (Back to Basics, arXiv 2402.14740).

    REINFORCE on entire completions, each against the mean of the others. There is no division by the length, and the
    KL is in the reward.
    """
    own = dict(group_std=False, group_baseline="leave_one_out", ratio="product", minibatches=1)
    return _exactly(group_size, own | dict(kl_coef=0.03, kl_kind="k1", kl_in="reward"), changes)


def dr_grpo(group_size: int | None = None, **changes) -> ConfigDict:
    """Configure Dr. GRPO, Liu et al. 2025 (Understanding R1-Zero-Like Training, arXiv 2503.20783).

    There is no division by the standard deviation. Losses are sums over tokens, divided by the same token limit for all
    completions.
    """
    return _exactly(group_size, dict(group_std=False, loss_agg="constant"), changes)


def dapo(group_size: int | None = None, max_new_tokens: int = 20_480, **changes) -> ConfigDict:
    """Configure DAPO, Yu et al. 2025 (arXiv 2503.14476).

    It has a higher upper clip, a mean over all tokens, an overlong penalty and dynamic sampling, which replaces groups
    whose rewards are all equal before the overlong penalty. The released code samples at most 10 batches per update,
    here the first and 9 more (`refill`), and ends with an error if they do not fill the batch. Here training continues
    on the informative groups; `refill=0` samples one batch.

    Args:
        group_size: Completions per prompt.
        max_new_tokens: Token limit of a completion. The overlong penalty grows over the last fifth of it, as in the
            paper (4,096 of 20,480 tokens).
        **changes: Further fields of the algorithm.
    """
    own = dict(std_ddof=1, clip_high=0.28, loss_agg="token", filter_zero_std_groups=True, overlong="penalty")
    own |= dict(overlong_buffer=max_new_tokens // 5, minibatches=16, refill=9)
    return _exactly(group_size, own, changes)


def gspo(group_size: int | None = None, **changes) -> ConfigDict:
    """Configure GSPO, Zheng et al. 2025 (arXiv 2507.18071).

    The ratio of a completion is the geometric mean over its tokens, with a narrow clip.
    """
    return _exactly(group_size, dict(std_ddof=1, ratio="sequence", clip_low=3e-4, clip_high=4e-4), changes)


UNGUARDED = dict(guard="off")
"""Settings that turn off this project's check of every update."""

MAPORL_OPTIM = dict(lr=1e-5, b1=0.9, b2=0.95)
"""The optimizer of MAPoRL, AdamW under LoRA: `config.optim.update(published.MAPORL_OPTIM)`."""


def maporl(turns: int = 3, released: bool = False, **changes) -> ConfigDict:
    """Configure MAPoRL, Park et al. 2025 (arXiv 2502.18439), for debates of `turns` turns.

    All turns but the first learn. The task's reward of an answer already contains its effects, so the return of every
    answer is separate (gamma 0): GAE runs over its tokens, the value after the last token is 0, and the KL is charged
    per token. The critic reads the question and the answer, without the debate. The released code has another KL
    coefficient (`released`). Its value head is not trained; here it is. The paper does not state the number of
    minibatches; ours is the default.
    """
    own = dict(
        gamma=0.0, gae="token", lam=0.95, gamma_token=1.0, clip_low=0.2, clip_high=0.2, value_clip=0.2, value_coef=0.1,
        epochs=4, entropy_coef=0.0, kl_coef=2e-3 if released else 2e-4, kl_in="reward", kl_kind="k1", whiten="turn",
        critic="head", critic_reads="completion", train_turns=tuple(range(1, turns)), tis_clip=0.0, **UNGUARDED,
    )  # fmt: skip
    return algorithms.ppo(**own | changes)


AT_GRPO_OPTIM = dict(lr=1e-6, weight_decay=0.01, max_grad_norm=1.0)
"""The optimizer of AT-GRPO with all weights trained: `config.optim.update(published.AT_GRPO_OPTIM)`."""


def at_grpo(group_size: int = 4, **changes) -> ConfigDict:
    """Configure AT-GRPO, Zhao et al. 2025 (Stronger Together, arXiv 2510.11062).

    The best of 4 candidates is continued, and the team reward of a candidate is that of its step. The loss is a
    mean over all tokens, with two minibatches and without a KL. The paper samples at temperature 1.
    """
    own = dict(continuation="best", team_term="immediate", std_ddof=1, clip_low=0.2, clip_high=0.2, kl_coef=0.0)
    return algorithms.at_grpo(group_size, **_common() | own | dict(loss_agg="token", minibatches=2) | changes)


def coma(**changes) -> ConfigDict:
    """Configure COMA, Foerster et al. 2018 (arXiv 1705.08926).

    One update per rollout without a clipped ratio: with a single step, the importance ratio is 1. The exploration of
    the paper, a probability floor that decays, is an entropy bonus here.
    """
    own = dict(gamma=0.99, lam=0.8, epochs=1, minibatches=1, tis_clip=0.0, **UNGUARDED)
    return algorithms.coma(**own | changes)


def maddpg(**changes) -> ConfigDict:
    """Configure MADDPG, Lowe et al. 2017 (arXiv 1706.02275), with straight-through Gumbel-softmax.

    The released code has discount 0.95, targets that move by 0.01 per update and one-step targets. It replays earlier
    transitions; here every update uses the present rollout.
    """
    own = dict(gradient="gumbel", gamma=0.95, lam=0.0, target_decay=0.99, epochs=1, minibatches=1, entropy_coef=0.0)
    return algorithms.maddpg(**own | changes)


def _exactly(group_size: int | None, own: dict, changes: dict) -> ConfigDict:
    return algorithms.grpo(group_size, **_common() | own | changes)


def _common() -> dict:
    common = dict(tis_clip=0.0, filter_zero_std_groups=False, entropy_coef=0.0, epochs=1)
    return common | dict(signal_frac=0.0, minibatch_groups=False, **UNGUARDED)
