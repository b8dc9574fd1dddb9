"""Every field of a run, with its default; an experiment starts here and changes what it needs.

`marl_jax/config/validate.py` has one rule per field and refuses values and combinations that cannot work.
"""

from ml_collections import ConfigDict

from configs import algorithms, meshes, models


def get_config() -> ConfigDict:
    """The default run: tic-tac-toe self-play with the embedded `tiny` model and PPO."""
    return ConfigDict(
        dict(
            name="",  # of the experiment; "" is the name of its file
            seed=0,
            steps=200,  # updates; a run that has done them all says so and stops
            env=environment("tic_tac_toe"),
            model=models.tiny(),
            # Who plays which seat: "all", or single seats ("seat_0") and roles ("planner"), to the name of a policy, or
            # to a bot: "bot:random".
            agents=dict(all="main"),
            # A policy is an adapter on the model above, or a copy of it, or a model of its own.
            policies=dict(main=policy()),
            algo=algorithms.ppo(),
            rollout=rollout(),
            optim=optimiser(),
            opponents=opponents(),
            reward=dict(team=1.0, agent=1.0, process=1.0, dense=True),  # weights; dense=False pays at the end only
            curriculum=curriculum(),
            sft=demonstrations(),
            eval=evaluation(),
            play=dict(
                opponent="",  # a bot ("bot": the game's best) or the folder of a run; "" is this run's checkpoint
                seat=0,  # of the person; -1 is nobody, to watch
                temperature=0.0,  # of the opponent's answers; 0 is greedy
                seed=0,
            ),
            checkpoint=dict(
                every=50,
                keep=2,  # the newest so many; the best by `best_metric` is kept besides
                best_metric="",  # a figure of the evaluation, e.g. "random/win_rate"; "" keeps the newest only
                best_mode="max",
                nan_limit=5,  # so many skipped updates in a row end the run
            ),
            mesh=meshes.automatic(),
            distributed=dict(
                enabled=False,  # several processes; on TPU pods and under SLURM the rest is found by itself
                coordinator="",  # host:port of process 0
                processes=0,
                index=-1,
                timeout=60,  # seconds without a word from another process before the run ends
            ),
            log=dict(
                every=1,  # steps between rows of metrics.jsonl
                tensorboard=True,
                wandb=False,
                progress=True,
                games_every=25,  # steps between games written to logs/ and games.jsonl
                games=2,  # how many of them each time
                max_megabytes=64,  # of one log file; further games are left out
                profile=False,  # trace a few steps; --profile sets it
            ),
        )
    )


def environment(name: str, **params) -> ConfigDict:
    """A game by name; `params` go to the game itself."""
    return ConfigDict(
        dict(
            name=name,
            params=params,
            text="full",  # full: in words; compact: about a token per fact; brief: a few characters, for byte models
            style="chat",  # chat: the model's own chat template; plain: the text alone
            context="turn",  # every prompt has the rules and the present position
            symmetry=False,  # Other-Play: a random symmetry of the game for every episode and seat
        )
    )


def policy(**changes) -> ConfigDict:
    """One policy: its model or adapter, and whether it learns."""
    return ConfigDict(
        dict(
            model={},  # a model of its own, e.g. models.smollm2(); {}: an adapter on the experiment's, or a copy of it
            adapter="",  # name of its LoRA adapter; "" is the name of the policy
            frozen=False,
        )
        | changes
    )


def rollout() -> ConfigDict:
    """How games are played to gather samples."""
    return ConfigDict(
        dict(
            games=256,  # at once, one row each
            turns=16,  # moves of each row in one rollout; rows play game after game
            temperature=1.0,
            max_new_tokens=8,  # of a free answer
            answer="constrained",  # constrained: a name of a legal move; free: any text until a stop, then parsed
            parse_failure_reward=-1.0,  # process reward of a free answer that names no legal move
        )
    )


def optimiser() -> ConfigDict:
    """AdamW with a schedule."""
    return ConfigDict(
        dict(
            lr=1e-3,
            critic_lr=0.0,  # of the value head or critic; 0 is `lr`
            schedule="linear",  # constant, linear or cosine, down to `min_lr_ratio` of lr at the last step
            min_lr_ratio=0.0,
            warmup=10,
            weight_decay=0.0,
            b1=0.9,
            b2=0.95,
            eps=1e-8,
            max_grad_norm=1.0,
            adam_state_dtype="float32",  # dtype of Adam's moments: float32, bfloat16 or int8
        )
    )


def opponents() -> ConfigDict:
    """Who sits opposite in competitive games while training."""
    return ConfigDict(
        dict(
            self_play_frac=1.0,  # share of games against the present self
            pool_size=0,  # past selves kept; 0 is no pool
            snapshot_every=25,
            prioritised=True,  # past selves that win more often are met more often
            bots=(),  # names of bots to meet, e.g. ("random",)
            bot_frac=0.0,
        )
    )


def curriculum() -> ConfigDict:
    """Puzzles while training: at grade g of n, levels are drawn from the easiest g/n of the pool."""
    return ConfigDict(
        dict(
            enabled=False,
            grades=5,  # n; at the last, all levels are drawn, as without a curriculum
            start=1,
            up=0.8,  # one grade up when this share of the last `window` games was solved …
            down=0.2,  # … and one down below this share
            window=256,
        )
    )


def demonstrations() -> ConfigDict:
    """Supervised training on what a bot plays, `--mode=sft`: a warm start for `model.init_from` of another run."""
    return ConfigDict(
        dict(
            steps=100,
            games=128,  # at once; each step sees `turns` moves of every game, in `minibatches` updates
            turns=8,
            minibatches=4,
            lr=1e-3,
            schedule="linear",  # as in `optim`, whose other fields hold here too
            warmup=5,
            bot="",  # who is imitated; "" is the game's best bot
            noise=0.1,  # share of moves that are random instead, so that what a bot never gets into is seen too
        )
    )


def evaluation() -> ConfigDict:
    """Matches played every n steps, and by `--mode=eval`."""
    return ConfigDict(
        dict(
            every=50,
            games=512,  # per opponent, seats in turn
            opponents=("random",),  # bots, or folders of other runs; a cooperative game plays with itself besides
            swap_roles=False,  # also let every role be played by the policy of the next one
            temperature=0.0,  # 0 is greedy
            confidence=0.95,
            step=-1,  # checkpoint to evaluate by --mode=eval: -1 the newest, -2 the best
            seed=1,
        )
    )
