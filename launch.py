"""Command-line entry point: parse and validate a config, then start a mode.

    python launch.py --config=experiments/tic_tac_toe_selfplay.py
    python launch.py --config=tic_tac_toe_selfplay                          # the same, by name
    python launch.py --config=experiments/hanabi_selfplay.py:smollm2 --config.optim.lr=1e-5 --workdir=runs/mine
    python launch.py --workdir=runs/mine --mode=report
    python launch.py --config=experiments/plan_path.py --mode=config        # print all fields

Installing the package (`pip install -e .`) adds the same command as `marl-jax`, which works in any folder.
"""

import sys

from marl_jax.cli import run

if __name__ == "__main__":
    sys.exit(run())
