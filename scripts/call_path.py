"""Count the files and functions between `launch.py` and the gradient.

    python scripts/call_path.py                                          # tic-tac-toe with PPO, arithmetic with GRPO
    python scripts/call_path.py --config=experiments/sudoku.py:at_grpo --config.rollout.num_envs=16

Runs one training step of each config and records the call stack whenever one of the `LANDMARKS` is called: functions
that build the model, the optimizer and the rollout, the forward pass, a step of the game or an episode of the task, the
advantages, the loss, and the optimizer step. Counts the functions of this repository on these stacks, which are those
that a reader follows. `--list` prints them.
"""

from __future__ import annotations

import collections
import os
import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parents[1]
LANDMARKS = {  # (folder, name of a function): description
    ("models/model.py", "build"): "model",
    ("marl_jax/learning/", "make_optimizer"): "optimizer",
    ("marl_jax/algorithms/", "rollout"): "rollout",
    ("models/", "forward"): "forward pass",
    ("envs/games/", "step"): "game",
    ("envs/tasks/", "play"): "task",
    ("marl_jax/algorithms/", "compute_advantages"): "advantages",
    ("marl_jax/algorithms/", "loss"): "loss",
    ("marl_jax/learning/", "apply_gradients"): "optimizer step",
    ("marl_jax/devices/aot", "__call__"): "call of a compiled program",
}
SMALL = (
    "steps=1",
    "optim.warmup=0",
    "eval.every=0",
    "checkpoint.best_metric=",
    "log.games=0",
    "log.tensorboard=False",
    "mesh.data=1",
)
GAME = ("--config=experiments/tic_tac_toe_selfplay.py", "--config.rollout.num_envs=16")
TASK = ("--config=experiments/arithmetic.py", "--config.task.n_episodes=16", "--config.task.max_num_seqs=16")


class CallPath:
    """A profiler that collects the functions on the stacks of the landmarks, in order."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.seen: collections.Counter[str] = collections.Counter()

    def __call__(self, frame: FrameType, event: str, _) -> None:
        """Record the stack if a landmark is called; see `sys.setprofile`."""
        if event != "call" or (name := frame.f_code.co_name) not in NAMES:
            return
        file = self._file(frame)
        matching = (what for (folder, own), what in LANDMARKS.items() if own == name and file.startswith(folder))
        landmark = next(matching, "")
        if not landmark or self.seen[landmark] >= 200:  # the same stacks repeat
            return
        self.seen[landmark] += 1
        stack = []
        current: FrameType | None = frame
        while current is not None:
            file = self._file(current)
            if file and not current.f_code.co_name.startswith("<"):
                stack.append((file, current.f_code.co_qualname))
            current = current.f_back
        self.functions |= dict.fromkeys(reversed(stack))

    def _file(self, frame: FrameType) -> str:
        """Return the path of a frame's file within the repository, or ""."""
        file = frame.f_code.co_filename
        inside = file.startswith(f"{ROOT}{os.sep}") and not file.startswith((f"{ROOT}/.", f"{ROOT}/scripts/"))
        return file.removeprefix(f"{ROOT}{os.sep}") if inside else ""


NAMES = {name for _, name in LANDMARKS}


def trace(arguments: tuple[str, ...]) -> CallPath:
    """Run one training step with launch.py and return the recorded functions."""
    import launch

    path = CallPath()
    with tempfile.TemporaryDirectory() as folder:
        flags = [*arguments, *(f"--config.{field}" for field in SMALL), f"--workdir={folder}/run"]
        threading.setprofile(path)
        sys.setprofile(path)
        try:
            status = launch.main(["launch.py", *flags])
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
    if status:
        raise SystemExit(status)
    return path


def main() -> None:
    """Print the counts of each config."""
    sys.path.insert(0, str(ROOT))
    arguments = [argument for argument in sys.argv[1:] if argument != "--list"]
    for given in (tuple(arguments),) if arguments else (GAME, TASK):
        path = trace(given)
        files = dict.fromkeys(file for file, _ in path.functions)
        print(f"{given[0].removeprefix('--config=')}: {len(files)} files, {len(path.functions)} functions")
        if "--list" in sys.argv:
            for file in files:
                print(f"  {file}: {', '.join(name for own, name in path.functions if own == file)}")


if __name__ == "__main__":
    main()
