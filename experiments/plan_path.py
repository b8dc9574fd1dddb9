"""Plan-Path: find the way through a grid, alone or as planner and executor.

    python launch.py --config=experiments/plan_path.py                      # two roles, one policy, AT-GRPO
    python launch.py --config=experiments/plan_path.py:at_grpo_apart        # a model for each role
    python launch.py --config=experiments/plan_path.py:roles --mode=eval    # the untrained model
    python launch.py --config=experiments/plan_path.py:roles_sft            # imitates shortest paths

Forms: `single` and `roles` (for `--mode=eval`), `grpo` and `roles_grpo` (groups of complete episodes), and groups of
candidates for one prompt: `at_grpo` (one policy for both roles), `at_grpo_lora` (an adapter for each role),
`at_grpo_apart` (a model for each role). A model may follow (`smollm2`, `qwen2.5-coder-0.5b`, `qwen3-1.7b`, `qwen3-8b`,
…): `:at_grpo+smollm2` plays on 8x8, `:at_grpo+smollm2+small` on 5x5 like the embedded one.

`sft` and `roles_sft` imitate the solver first, and `--config.model.init_from=FOLDER` continues from there;
`experiments/tables/planning.py` compares the forms. Expect about 68 % of held-out 5x5 grids after 20 steps of imitation
and 200 updates of `at_grpo`, in a few minutes on one CPU core (random moves: 19 %; docs/results.md).
"""

from configs import planning


def get_config(form: str | None = None):
    """Configure Plan-Path: 5x5 for the embedded model, 8x8 for others."""
    small = planning.is_small(form)
    config = planning.puzzle("plan_path", form, moves=12 if small else 24, size=5 if small else 8)
    config.name = "plan_path"
    return config
