"""Over-optimization of a reward model: gold score against the KL from the initial policy.

    python -m benchmarks.overoptimization                                     # the embedded model, two CPU cores
    python -m benchmarks.overoptimization --model=smollm2 --seeds=3           # one GPU
    python -m benchmarks.overoptimization --collect                           # the figure of the runs so far

A rule is the gold score. Completions of the initial policy are sampled, all pairs of a prompt with different gold
scores are labelled by the rule, and a reward model is trained on them. Then GRPO maximizes the score of the reward
model, with little and with more KL penalty, while the gold score is only recorded. Over-optimization begins at the KL
where the smoothed gold score is highest, if it falls after that by more than its noise.

The rule of the embedded model, whose completions are bytes, is the number of different lowercase letters, out of 8; for
other models it is the number of different words, out of 40. The page, the figure and overoptimization.json are written
to --workdir. The same command continues where it was stopped.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import random
import re
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from envs.tasks.scorer_client import ScorerClient
from experiments.tables import records, verified
from experiments.tables.charts import Curve, curve_chart
from experiments.tables.runner import Page, Session, Table, main, markdown_table
from experiments.tables.runs import Run

ADDRESS = "MARL_JAX_REWARD_MODEL"
"""Environment variable with the address of the reward model."""
SUBJECTS = ("a dog", "the sea", "a train", "winter", "a letter", "my garden", "an old house", "the moon", "a storm")
PAIRS = 4000
WINDOW = 9
ROWS = {"free": "KL coefficient 0.0001", "kept": "KL coefficient 0.05"}
KL = {"free": 0.0001, "kept": 0.05}
SMALL = dict(questions=300, reward_steps=150, steps=150)
LARGE = dict(questions=300, reward_steps=100, steps=150)
EDGE = 1e-6


def letters(completion: str) -> float:
    """Return the number of different lowercase letters, out of 8."""
    return min(len(set(re.findall("[a-z]", completion))) / 8, 1.0)


def words(completion: str) -> float:
    """Return the number of different words, out of 40."""
    return min(len(set(re.findall(r"[^\W\d_]+", completion.lower()))) / 40, 1.0)


async def proxy(prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
    """Return the log-odds of the reward model's scores."""
    chats = [
        [{"role": "user", "content": prompt}, {"role": "assistant", "content": text}]
        for prompt, text in zip(prompts, completions, strict=True)
    ]
    scores = [min(max(score, EDGE), 1 - EDGE) for score in await ScorerClient(os.environ[ADDRESS]).score(chats)]
    return [math.log(score / (1 - score)) for score in scores]


# ------------------------------------------------------------------------------------------------------------- runs


def plan(session: Session) -> Iterator[Run]:
    """Yield labelling, the reward model and its test, and the policies."""
    folder, model = session.folder, session.flags.model
    size = LARGE if model else SMALL
    steps = session.flags.steps or size["steps"]
    gold = f"benchmarks.overoptimization:{'words' if model else 'letters'}"
    experiment = f"--config=experiments/dataset.py:{session.form('grpo')}"
    common = [
        experiment, f"--config.task.params.data={folder / 'prompts.jsonl'}", *session.passed,
        "--config.task.params.prompt={prompt}", f"--config.task.max_new_tokens={64 if model else 16}",
    ]  # fmt: skip
    label = [
        *common, "--mode=label", "--config.algo.name=verifier", f"--config.algo.questions={size['questions']}",
        "--config.algo.held_out=1", "--config.algo.samples=8", f"--config.task.params.rewards=gold={gold}",
    ]  # fmt: skip
    labels = lambda: prompts(folder, 2 * size["questions"])  # noqa: E731
    yield Run("labels", label, lambda at: (at / "labelled" / "summary.json").exists(), around=labels)
    rewards = [
        *common, "--config.algo.name=reward_model", "--config.algo.n_pairs=64",
        f"--config.steps={size['reward_steps']}",
        f"--config.task.params.rewards=gold={gold}", f"--config.optim.lr={1e-5 if model else 3e-3}",
        "--config.eval.every=50", "--config.checkpoint.best_metric=pairs/accuracy",
    ]  # fmt: skip
    pairs = folder / "labels" / "pairs.jsonl"
    yield Run("reward_model", rewards, records.trained(size["reward_steps"]), ("labels",),
              around=lambda: labelled_pairs(folder / "labels", pairs, words if model else letters))  # fmt: skip
    test = ("--mode=eval",)
    yield Run("accuracy", test, records.evaluated, ("reward_model",), folder="reward_model")
    for row in [row for _, row in session.wanted]:
        for seed in range(session.flags.seeds):
            policy = [
                *common, *session.seeded(seed), f"--config.steps={steps}", f"--config.algo.kl_coef={KL[row]}",
                f"--config.task.params.rewards=('benchmarks.overoptimization:proxy','gold={gold}')",
                "--config.task.params.weights=(1.0,0.0)", "--config.task.params.success=gold", "--config.eval.every=0",
                "--config.checkpoint.best_metric=",
            ]  # fmt: skip
            yield Run(f"{row}-{seed}", policy, records.trained(steps), ("accuracy",),
                      around=lambda: served(folder / "reward_model"))  # fmt: skip


@contextlib.contextmanager
def prompts(folder: Path, n: int) -> Iterator[list[str]]:
    """Write the prompts, which all runs read."""
    rows = [{"prompt": f"Write {3 + i // len(SUBJECTS)} lines about {SUBJECTS[i % len(SUBJECTS)]}."} for i in range(n)]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    yield []


@contextlib.contextmanager
def labelled_pairs(folder: Path, path: Path, gold) -> Iterator[list[str]]:
    """Write pairs of labelled completions by their gold score, and yield their flag."""
    rows = records.lines_of(folder / "labelled" / "train.jsonl", ())
    pairs = []
    for row in rows[1:]:
        texts = {answer["text"] for answer in row["answers"] if answer["text"].strip()}
        for a, b in itertools.combinations(sorted(texts, key=gold, reverse=True), 2):
            if gold(a) > gold(b):
                pairs.append({"prompt": row["messages"], "chosen": a, "rejected": b})
    pairs = random.Random(0).sample(pairs, min(PAIRS, len(pairs)))
    path.write_text("".join(json.dumps(pair) + "\n" for pair in pairs), encoding="utf-8")
    yield [f"--config.algo.data={path}"]


@contextlib.contextmanager
def served(folder: Path) -> Iterator[list[str]]:
    """Serve the reward model while a policy is trained."""
    with verified.scorer(folder) as flags:
        os.environ[ADDRESS] = flags[0].partition("scorer=")[2]
        yield []


# ------------------------------------------------------------------------------------------------------------- page


class Optimum(NamedTuple):
    """The highest smoothed gold score.

    Attributes:
        kl: KL at which it is reached.
        gold: The score.
        last: Smoothed gold score at the highest KL.
        begins: Whether the score falls after it by more than twice its noise.
    """

    kl: float
    gold: float
    last: float
    begins: bool


def optimum(points: Sequence[tuple[float, float]], window: int = WINDOW) -> Optimum | None:
    """Find where over-optimization begins; None for fewer points than a window.

    Args:
        points: KL and gold score of every update.
        window: Number of points of the moving mean, in the order of the KL.
    """
    if len(points) < window:
        return None
    ordered = sorted(points)
    means = smooth(ordered, window)
    best = max(range(len(means)), key=lambda i: means[i][1])
    middle = window // 2
    noise = statistics.pstdev(y - means[i][1] for i, (_, y) in enumerate(ordered[middle : middle + len(means)]))
    fall = means[best][1] - means[-1][1]
    return Optimum(*means[best], means[-1][1], fall > 2 * noise / math.sqrt(window) + 1e-9)


def smooth(ordered: Sequence[tuple[float, float]], window: int) -> list[tuple[float, float]]:
    """Return moving means of points in the order of the KL."""
    parts = [ordered[i : i + window] for i in range(len(ordered) - window + 1)]
    return [(statistics.fmean(x for x, _ in part), statistics.fmean(y for _, y in part)) for part in parts]


def page(session: Session) -> Page | None:
    """Return the accuracy of the reward model, and the scores of every policy."""
    folder = session.folder
    panels: dict[str, list[Curve]] = {"gold score": [], "probability by the reward model": []}
    rows, results = [], []
    for _, row in session.wanted:
        for seed in range(session.flags.seeds):
            updates = session.read(_updates, folder / f"{row}-{seed}", default=[])
            best = optimum([(one["kl"], one["task/reward_gold"]) for one in updates])
            if best is None:
                continue
            scores = [(one["kl"], 1 / (1 + math.exp(-one["task/reward_proxy"]))) for one in updates]
            gold = smooth(sorted((one["kl"], one["task/reward_gold"]) for one in updates), WINDOW)
            for title, points in zip(panels, (gold, smooth(sorted(scores), WINDOW)), strict=True):
                panels[title].append(Curve(ROWS[row], [round(x, 2) for x, _ in points], [y for _, y in points]))
            result = {
                "row": ROWS[row], "seed": seed, "updates": len(updates), **best._asdict(),
                "first_gold": gold[0][1], "proxy_first": smooth(sorted(scores), WINDOW)[0][1],
                "proxy_last": smooth(sorted(scores), WINDOW)[-1][1], "last_kl": gold[-1][0],
            }  # fmt: skip
            results.append(result)
            begins = f"{best.kl:.3f}" if best.begins else "not reached"
            rows.append([ROWS[row], seed, len(updates), f"{result['first_gold']:.3f}", f"{best.gold:.3f}", begins,
                         f"{best.last:.3f} at {gold[-1][0]:.3f}"])  # fmt: skip
    if not rows:
        return None
    accuracy = session.read(_accuracy, folder / "reward_model")
    content = {"model": session.model(), "accuracy": accuracy, "policies": results}
    (folder / "overoptimization.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    heads = ["", "seed", "updates", "gold at the start", "highest gold", "falls after a KL of", "gold at the end (KL)"]
    lines = [f"# Over-optimization with {session.model()}", ""]
    if accuracy:
        lines += [
            f"Accuracy of the reward model on {accuracy['games']} held-out pairs: {accuracy['accuracy']:.3f}.",
            "",
        ]
    lines += ["The KL is that of a token from the initial policy.", "", *markdown_table(heads, rows)]
    return Page(lines, drawing=curve_chart(panels, "KL"))


def _updates(folder: Path) -> list[dict[str, Any]]:
    rows = records.lines_of(folder / "metrics.jsonl", ("step",))
    return [row for row in rows if {"kl", "task/reward_gold", "task/reward_proxy"} <= set(row)]


def _accuracy(folder: Path) -> Mapping[str, Any] | None:
    rows = records.read_json(folder / "evaluation.json")["rows"] if records.evaluated(folder) else []
    return next(
        ({name: row[name] for name in ("accuracy", "accuracy_low", "accuracy_high", "games")} for row in rows), None
    )


TABLE = Table("overoptimization", 1, __doc__, {"policy": ROWS}, plan, page)

if __name__ == "__main__":
    sys.exit(main(TABLE))
