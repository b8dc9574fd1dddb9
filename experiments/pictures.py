"""Games as pictures: Plan-Path and Sokoban, read as text, as an image, or as both.

    python launch.py --config=experiments/pictures.py                              # Plan-Path from pictures alone
    python launch.py --config=experiments/pictures.py:plan_path+text               # the same model, the board as text
    python launch.py --config=experiments/pictures.py:sokoban+image+at_grpo
    python launch.py --config=experiments/pictures.py:plan_path+image+sft          # the imitation alone

A form is GAME, GAME+OBSERVATION or GAME+OBSERVATION+ALGORITHM: `plan_path` (5x5) or `sokoban` (5x5 with its walls);
`text`, `image` or `both`; and `ppo` (the default) or `at_grpo` after an imitation of the solver in a first stage, or
`sft` for that stage alone. The model `tiny-vl` has an encoder of images, trained from scratch like the rest. Expect
93 to 94 % of held-out Plan-Path levels after 1,500 steps of imitation and again after 60 updates of PPO, from pictures
(docs/vision.md).
"""

from configs import algorithms, defaults, models, variants

GAMES = {
    "plan_path": dict(size=5, budget=12, n_train=2048, n_test=256),
    "sokoban": dict(size=5, budget=12, n_train=200, n_test=64, shaping_reward=1.0),
}
OBSERVATIONS = ("text", "image", "both")
ALGORITHMS = ("ppo", "at_grpo", "sft")


def get_config(form: str | None = None):
    """Configure a game with a form of its observation, imitation first."""
    game, observation, algorithm = _parts(form)
    config = defaults.get_config()
    config.name = "pictures"
    config.model = models.tiny_vl()
    config.env = defaults.environment(game, **GAMES[game])
    config.env.update(dict(text="brief", style="plain", observation=observation))
    config.rollout.update(dict(num_envs=256, unroll_length=12))
    if algorithm == "at_grpo":
        config.algo = algorithms.at_grpo(4, continuation="random", minibatches=2, clip_high=0.28)
        config.rollout.num_envs = 64
    else:
        config.algo.update(dict(epochs=1, minibatches=4))
    config.algo.update(dict(entropy_coef=0.02, tis_clip=0.0))
    config.steps = 100
    config.optim.update(dict(lr=3e-4, schedule="constant", warmup=5))
    config.eval.update(dict(every=50, games=256, opponents=()))
    config.checkpoint.update(dict(every=50, best_metric="self/success"))
    # At 2e-3, the rate of text, the policy from pictures was still uniform after 90 steps.
    config.first_stage = algorithms.imitation_stage(steps=400, lr=5e-4, rollout=dict(num_envs=64, unroll_length=8))
    return variants.only_first_stage(config) if algorithm == "sft" else config


def _parts(form: str | None) -> tuple[str, str, str]:
    """Split a form into game, observation and algorithm."""
    words = (form or "plan_path").split("+")
    words += ("image", "ppo")[len(words) - 1 :]
    for word, known in zip(words, (tuple(GAMES), OBSERVATIONS, ALGORITHMS), strict=False):
        if word not in known:
            raise ValueError(f"form is {form!r}, but {word!r} must be one of: {', '.join(known)}")
    if len(words) != 3:
        raise ValueError(f"form is {form!r}, but must be GAME, GAME+OBSERVATION or GAME+OBSERVATION+ALGORITHM")
    return words[0], words[1], words[2]
