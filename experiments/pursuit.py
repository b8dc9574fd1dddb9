"""Pursuit: one policy learns the seats of two pursuers and one evader.

    python launch.py --config=experiments/pursuit.py

Half of the games are against the solver, which plays the other side perfectly. Perfect pursuers catch the evader of a
4×4 grid within six rounds from every start; evaluations report captures, payoffs and points against random and perfect
opponents.

`:shaped` adds a reward of -0.1 for every round that a move loses against perfect play. `:local` hides the evader from
pursuers that are not next to it. `:smollm2`, `:shaped+smollm2` and the others of `configs/variants.py` use a pretrained
model. `:sft` imitates the solver.
"""

from configs import defaults, variants

FORMS = {
    "play": dict(),
    "shaped": dict(lost_round_reward=-0.1),
    "local": dict(view="local"),
    variants.SFT: dict(),
}


def get_config(form: str | None = None):
    """Configure PPO on the pursuit game, against itself and the solver."""
    chosen, model = variants.split_form(form, FORMS, "play")
    config = defaults.get_config()
    config.name, config.steps = "pursuit", 150
    config.env = defaults.environment("pursuit", height=4, width=4, **FORMS[chosen])
    config.rollout.update(dict(num_envs=256, unroll_length=12))  # half of the longest game
    config.algo.update(dict(epochs=1, minibatches=8, entropy_coef=0.05, entropy_ratio=0.1))
    config.opponents.update(dict(self_play_frac=0.5, bots=("solver",), bot_frac=0.5))
    config.optim.update(dict(lr=2e-3, warmup=2))
    config.eval.update(dict(every=25, opponents=("random", "solver")))
    config.checkpoint.update(dict(every=25, best_metric="solver/payoff"))
    config = variants.choose(config, model)
    return variants.imitate(config, model) if chosen == variants.SFT else config
