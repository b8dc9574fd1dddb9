"""Algorithms: the fields each reads. All of them have the same fields, so that switching is one line."""

from ml_collections import ConfigDict


def ppo() -> ConfigDict:
    """PPO: GAE over an agent's own turns, clipped ratio per token, a trained value head."""
    return ConfigDict(
        dict(
            name="ppo",
            gamma=1.0,  # per turn of the agent
            gamma_token=1.0,  # per token, where `gae` is token
            lam=0.95,
            gae="turn",  # turn: one advantage for all tokens of a turn; token: GAE over the tokens inside it
            clip_low=0.2,
            clip_high=0.2,
            dual_clip=0.0,  # bound on the loss of negative advantages; 0 is off
            value_clip=0.2,  # 0 is off
            value_coef=0.5,
            kl_coef=0.0,  # to the policy at the start of the run (under LoRA: the base with adapters off)
            kl_kind="k3",
            kl_in="loss",  # loss or reward
            entropy_coef=0.01,
            epochs=2,
            minibatches=4,
            grad_accum_steps=1,  # parts of a minibatch whose gradients are summed before one update
            critic="head",
            whiten=True,  # advantages per agent
            loss_agg="token",  # token: mean over tokens; sequence: mean of means; constant: sum over a fixed length
            ratio="token",  # token, or sequence (GSPO)
            tis_clip=2.0,  # truncated importance sampling of stale samples; 0 is off
            group_size=1,  # K candidates of one prompt
            group_std=True,  # divide group advantages by their spread; False is Dr.GRPO
            group_baseline="mean",  # mean, or leave_one_out (RLOO)
            normalise="group",  # spread taken per group, or per agent over the batch (Dr. MAS)
            filter_zero_std_groups=True,  # leave out groups whose rewards are all equal
            continuation="best",  # AT-GRPO: the candidate an episode goes on with
            team_term="immediate",  # AT-GRPO: immediate or lookahead
            overlong="none",  # free answers that reach rollout.max_new_tokens: none, mask (no loss) or penalty
            overlong_buffer=2,  # tokens before the limit over which the penalty grows from 0 to 1
            pack=0,  # short samples share rows of so many times the longest (free answers only); 0 is off
            share_prefix=False,  # K answers of one prompt share its forward and backward pass
        )
    )


def grpo(group_size: int = 8) -> ConfigDict:
    """GRPO: K whole episodes from one start, advantages within the group, no critic."""
    config = ppo()
    config.update(
        dict(
            name="grpo",
            group_size=group_size,
            critic="none",
            epochs=1,
            whiten=False,
            loss_agg="sequence",
            entropy_coef=0.0,
        )
    )
    return config


def at_grpo(group_size: int = 4) -> ConfigDict:
    """AT-GRPO: K candidates from the same prompt at every turn of every agent, one of them continued."""
    config = grpo(group_size)
    config.update(dict(name="at_grpo", share_prefix=True))
    return config


def dapo(group_size: int = 8) -> ConfigDict:
    """DAPO: GRPO with a higher upper clip, a mean over tokens, equal groups dropped, a price for over-long answers."""
    config = grpo(group_size)
    config.update(dict(clip_high=0.28, loss_agg="token", filter_zero_std_groups=True, overlong="penalty"))
    return config


def dr_grpo(group_size: int = 8) -> ConfigDict:
    """Dr.GRPO: no division by the spread, sum over a constant length."""
    config = grpo(group_size)
    config.update(dict(group_std=False, loss_agg="constant"))
    return config


def gspo(group_size: int = 8) -> ConfigDict:
    """GSPO: one ratio per sequence, with its much narrower clip."""
    config = grpo(group_size)
    config.update(dict(ratio="sequence", clip_low=3e-4, clip_high=4e-4))
    return config


def rloo(group_size: int = 4) -> ConfigDict:
    """RLOO: each sample against the mean of the others."""
    config = grpo(group_size)
    config.update(dict(group_std=False, group_baseline="leave_one_out"))
    return config


def dr_mas(group_size: int = 8) -> ConfigDict:
    """Dr. MAS: the spread of advantages taken per agent over the batch, so that agents learn at one pace."""
    config = grpo(group_size)
    config.update(dict(normalise="agent"))
    return config
