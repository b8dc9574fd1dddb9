"""Model cards of exported policies: figures, prompt, settings and licence, as README.md."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import jax
from ml_collections import ConfigDict

from envs.adapters.tasks import TaskEnv
from marl_jax.agents.answers import Constrained
from marl_jax.agents.team import Backbone
from marl_jax.running.metrics import read_json_lines
from marl_jax.setup import GameSetup, TaskSetup
from models import registry as models

RUN_CONFIG = "run_config.json"
"""Config of the run, next to the model's own config.json."""


@dataclasses.dataclass(frozen=True)
class PromptExample:
    """A prompt as the policy reads it, and how to answer.

    Attributes:
        text: The prompt, including the chat template.
        answer: Sentences that say what the policy answers.
    """

    text: str
    answer: str


def model_card(
    setup: GameSetup | TaskSetup, backbone: Backbone, policy: str, step: int, workdir: Path, legal: float | None
) -> str:
    """Write the card of a policy.

    Args:
        setup: Parts of the run.
        backbone: Model of the policy.
        policy: Name of the policy.
        step: Step of the checkpoint.
        workdir: Folder of the run.
        legal: Fraction of legal answers without the mask, or None.
    """
    c = setup.config
    environment = c.env.name or c.task.name
    base = models.get(backbone.config.name).hub_id
    example = game_example(setup, backbone) if isinstance(setup, GameSetup) else task_example(setup, backbone)
    head = ["---", *([f"base_model: {base}"] if base else []), "library_name: transformers"]
    head += [f"tags: [marl_jax, reinforcement-learning, {c.algo.name}]", "---"]
    parts = [
        "\n".join(head),
        f"# {c.name or workdir.name}, policy {policy}",
        f"A policy for `{environment}`, trained with marl_jax: {c.algo.name}, "
        f"step {step} of {c.steps}, seed {c.seed}. `{RUN_CONFIG}` has all settings of the run.",
        "## Figures",
        figures(workdir, step, legal),
        "## Prompt",
        "The policy was trained on prompts of exactly this form, and others may give other results. " + example.answer,
        fenced(example.text),
        "## Settings",
        settings(c, backbone),
        "## Licence",
        f"The weights are derived from [{base}](https://huggingface.co/{base}), whose licence applies to them."
        if base and backbone.place is not None
        else "The weights were trained from a random initialization, so no other model's licence applies.",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def game_example(setup: GameSetup, backbone: Backbone) -> PromptExample:
    """Return the first prompt of a game."""
    game, prompt = setup.game, backbone.game_prompt
    state = game.reset(jax.random.key(0))
    text = prompt.opening_text(state, int(game.player(state)))
    names = ", ".join(f"`{name.strip()}`" for name in prompt.text.names)
    if not isinstance(backbone.policy.answers, Constrained):
        return PromptExample(text, f"It answers with text that names an action: {names}.")
    limit = f"{backbone.policy.width} token{'s' if backbone.policy.width > 1 else ''}"
    answer = (
        f"It answers with the name of an action: {names}. Generate at most {limit}. In "
        "training, only names of legal actions were sampled, and nothing was learned about the tokens after a name."
    )
    return PromptExample(text, answer)


def task_example(setup: TaskSetup, backbone: Backbone) -> PromptExample:
    """Return the first prompt of a task, without one if its programs write the prompts."""
    task = setup.task
    if task.serves:
        return PromptExample("", "Programs wrote them, in the format of the tokenizer's chat template.")
    with TaskEnv(task) as env:
        messages, info = env.reset(seed=0, options={"example": 0})
    answer = f"It answers as the role {info['role']}, with at most {setup.config.task.max_new_tokens} tokens."
    return PromptExample(backbone.tokenizer.chat(messages), answer)


def figures(workdir: Path, step: int, legal: float | None) -> str:
    """Return a table of the last evaluation up to a step, and the legal answers."""
    rows = [row for row in read_json_lines(workdir / "eval.jsonl") if row["step"] <= step]
    last = max((row["step"] for row in rows), default=None)
    lines = ["There was no evaluation."]
    if last is not None:
        lines = [f"Evaluation at step {last}, with confidence intervals:", ""]
        lines += ["| against | games | metric | value | interval |", "| --- | ---: | --- | ---: | --- |"]
    for row in (row for row in rows if row["step"] == last):
        for name in (name for name in row if f"{name}_low" in row and row[name] is not None):
            interval = f"{row[f'{name}_low']:.3f} to {row[f'{name}_high']:.3f}"
            lines.append(f"| {row['opponent']} | {row.get('games', '')} | {name} | {row[name]:.3f} | {interval} |")
    if legal is not None:
        lines += ["", f"Legal answers of greedy decoding without a mask, in random positions: {legal:.1%}."]
    return "\n".join(lines)


def settings(c: ConfigDict, backbone: Backbone) -> str:
    """Return a table of the settings that describe a run best."""
    rows = {
        "model": backbone.config.name,
        "lora.rank": backbone.config.lora.rank,
        "algorithm": c.algo.name,
        "optim.lr": c.optim.lr,
        "rollout.temperature": c.rollout.temperature,
    }
    if c.env.name:
        rows |= {"env.params": c.env.params.to_dict(), "env.text": c.env.text, "env.style": c.env.style}
    else:
        rows |= {"task.params": c.task.params.to_dict(), "task.max_length": c.task.max_length}
    return "\n".join(["| setting | value |", "| --- | --- |", *(f"| `{k}` | `{v}` |" for k, v in rows.items())])


def fenced(text: str) -> str:
    """Return a text as a code block, or "" if it is empty."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{fence}text\n{text}\n{fence}" if text else ""
