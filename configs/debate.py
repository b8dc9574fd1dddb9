"""Debates in their forms: an algorithm, a way to share parameters, and a model.

All forms that learn sample the same number of completions per step. PPO plays QUESTIONS debates of 2 agents and 3
turns. GRPO plays as many, GROUP of each question. AT-GRPO plays GROUP times fewer, with GROUP candidates per turn. A
single agent answers as many questions as a step of debates has completions.

Sizes are those of MAPoRL (arXiv 2502.18439): 256 questions per step, 2 agents in training and 3 in evaluation, 3 turns,
completions of at most 300 tokens, LoRA, 50 steps.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ml_collections import ConfigDict

from configs import algorithms, defaults, models, published, tasks, variants

QUESTIONS, STEPS = 256, 50
AGENTS, EVAL_AGENTS, TURNS, SMALL_TURNS = 2, 3, 3, 2
GROUP = tasks.GROUP
TEMPERATURE = 0.7
"""Sampling temperature of evaluations. With greedy decoding, agents that share a policy would all say the same."""
ADAPTER = dict(rank=32, alpha=64.0)
ADAPTER_LR = 1e-4

NAMES = ("ada", "ben")
"""Agents that are trained. Further agents in evaluations reuse their policies in turn."""

UNTUNED, SINGLE = "untuned", "single"
ALGORITHMS = ("ppo", "maporl", "grpo", "at_grpo", UNTUNED)
PACKED = ("ppo", "grpo")
"""Algorithms that pack several chats into a row if all agents share a policy."""
PARAMETERS = ("shared", "per_agent", "per_turn", "first_turn_apart", "per_agent_turn", "pair")
WORDS = (*ALGORITHMS, *PARAMETERS, SINGLE)


def debate(dataset: str, form: str | None, small: str, max_length: int = 4096) -> ConfigDict:
    """Configure a debate over a dataset in one of its forms.

    A form is a list of words with + between them, in any order. All words are optional:

    - `ppo`, `grpo`, `at_grpo`: The algorithm; PPO is the default.
    - `maporl`: PPO as in the paper: later turns learn, four epochs (`published.maporl`).
    - `untuned`: No training, for `--mode=eval`.
    - `single`: One agent and one turn: reinforcement learning without a debate.
    - `shared`: One policy for all agents and turns (the default).
    - `per_agent`: A policy for each agent.
    - `per_turn`: A policy for each turn, for all agents.
    - `first_turn_apart`: A policy for the first turn, another for the later ones.
    - `per_agent_turn`: A policy for each agent and turn.
    - `pair`: A base model for each agent: Ada has the model of the run, Ben SmolLM2.
    - MODEL: A model of `configs/variants.py`; the embedded one by default.

    Args:
        dataset: Dataset of questions.
        form: The form.
        small: Dataset of the embedded model.
        max_length: Maximum number of tokens in a conversation.
    """
    algorithm, parameters, single, model = parts(form)
    config = defaults.get_config()
    agents, turns = (1, 1) if single else (AGENTS, TURNS if model else SMALL_TURNS)
    config.algo = _algorithm(algorithm, turns)
    config.steps = STEPS
    config.optim.update(dict(lr=1e-3, schedule="constant", warmup=5))
    config.eval.update(dict(every=25, games=256, temperature=TEMPERATURE))
    config.checkpoint.update(dict(every=25, best_metric="self/success"))
    config = variants.choose(config, model)
    config.algo.entropy_coef = 0.0
    defaults.use_task(config, "debate", **params(
        dataset if model else small, agents=agents, eval_agents=1 if single else EVAL_AGENTS, turns=turns
    ))  # fmt: skip
    questions = QUESTIONS
    config.task.update(dict(max_new_tokens=300, max_num_seqs=1024, max_length=max_length, time_limit=900.0))
    if model is None:
        # Sized for two CPU cores and a model without pretraining.
        questions, config.steps, config.optim.warmup = GROUP, 2, 0
        config.task.update(dict(max_new_tokens=4, max_num_seqs=16, max_length=1024, time_limit=120.0))
        config.eval.games = 4
    else:
        adapters(config.model)
        config.optim.lr = max(config.optim.lr, ADAPTER_LR)
        if algorithm == "maporl":
            config.optim.update(published.MAPORL_OPTIM)
        config.algo.grad_accum_steps = max(config.algo.grad_accum_steps, 8)  # rows are complete chats
        if algorithm in PACKED and parameters == "shared":
            config.algo.pack = 4 if single else 2
    config.task.n_episodes = episodes(questions, algorithm, single, TURNS if model else SMALL_TURNS)
    share(config, parameters, turns)
    return config


def params(dataset: str, **changes: Any) -> dict[str, Any]:
    """Return all parameters of a debate, so that flags can change each of them.

    AT-GRPO continues with a random candidate. With the best one, agents would hardly ever meet a wrong answer.
    """
    return dict(
        dataset=dataset, agents=AGENTS, eval_agents=EVAL_AGENTS, turns=TURNS, stop_at_consensus=False, scorer="gold",
        scorer_version="", verifier_lines=False, preset="paper", credit="influence", gamma=-1.0, alpha0=0.0,
        alpha1=0.0, beta0=0.0, beta1=0.0, format_penalty=-1.0, min_words=0, continuation="random",
    ) | changes  # fmt: skip


def episodes(questions: int, algorithm: str, single: bool, turns: int) -> int:
    """Return the number of episodes per step that gives all forms equal budgets.

    Every form samples as many completions as `questions` debates have.
    """
    candidates = GROUP if algorithm == "at_grpo" else 1
    return questions * (AGENTS * turns if single else 1) // candidates


def answers_of(config: Mapping[str, Any]) -> int:
    """Return the number of completions in training, if no debate ends early."""
    task, algo = config["task"], config["algo"]
    candidates = algo["group_size"] if algo["name"] == "at_grpo" else 1
    return config["steps"] * task["n_episodes"] * task["params"]["agents"] * task["params"]["turns"] * candidates


def share(config: ConfigDict, parameters: str, turns: int = TURNS) -> None:
    """Assign policies to agents and turns.

    The policies are adapters on one base, or copies of the embedded model.
    """
    if parameters == "shared":
        return
    if parameters == "per_turn":
        agents = {at("all", turn): f"turn_{turn + 1}" for turn in range(turns)}
    elif parameters == "first_turn_apart":
        agents = {"all": "first", at("all", 1): "later"}
    elif parameters == "per_agent_turn":
        agents = {at(name, turn): f"{name}_turn_{turn + 1}" for name in NAMES for turn in range(turns)}
    else:
        agents = {name: name for name in NAMES}
    config.agents = ConfigDict(agents)
    config.policies = ConfigDict({name: defaults.policy() for name in dict.fromkeys(agents.values())})
    if parameters == "pair":
        config.policies.ben.model = _other(config.model)


def adapters(model: ConfigDict) -> None:
    """Add LoRA on every projection over a bf16 base, unless the model has adapters."""
    if not model.lora.rank:
        model.lora.update(ADAPTER)
        model.param_dtype = "bfloat16"


def _other(model: ConfigDict) -> ConfigDict:
    """Return the second model of a pair.

    It is SmolLM2, or a model of half the width if the first one is the embedded model.
    """
    if model.name == "tiny":
        other = models.tiny()
        other.shape.d_model = model.shape.d_model // 2
        return other
    other = models.smollm2()
    adapters(other)
    return other


def at(name: str, turn: int) -> str:
    """Return the key of `config.agents` for a name from a turn on, counted from 0."""
    return f"{name}@{turn}" if turn else name


def parts(form: str | None) -> tuple[str, str, bool, str | None]:
    """Split a form into algorithm, parameter sharing, whether it is single, and model.

    The model is None for the embedded one.
    """
    words = [word for word in (form or "").split("+") if word]
    kinds = (ALGORITHMS, PARAMETERS, (SINGLE,), tuple(variants.VARIANTS))
    chosen: list[str] = []
    for kind in kinds:
        given = [word for word in words if word in kind]
        if len(given) > 1:
            raise ValueError(f"form {form!r} has {' and '.join(given)}, but must have only one of them")
        chosen += given or [""]
    if unknown := [word for word in words if word not in chosen]:
        known = f"{', '.join(WORDS)}, and the models {', '.join(variants.VARIANTS)}"
        raise ValueError(f"form {form!r} has {unknown[0]!r}, but words must be one of: {known}")
    algorithm, parameters, single, model = chosen
    if single and algorithm == "maporl":
        raise ValueError(f"form {form!r} has 'maporl' with one turn, but its first turn does not learn; use ppo")
    if single and parameters not in ("", "shared"):
        raise ValueError(f"form {form!r} has {parameters!r} with one agent and one turn, but must have 'shared'")
    return algorithm or "ppo", parameters or "shared", bool(single), None if model in ("", "tiny") else model


def _algorithm(name: str, turns: int) -> ConfigDict:
    """Return the config of the algorithm.

    The reward of an answer contains its effect on later turns, so PPO has a discount of 0 between turns. The reward is
    given at the last token. With lam=1 every token gets it at once; with less, early tokens get little of it until the
    critic has learned to predict it.
    """
    if name == "ppo":
        return algorithms.ppo(
            gamma=0.0, gae="token", lam=1.0, epochs=1, minibatches=2, value_coef=0.1, kl_coef=2e-4, kl_in="reward",
            kl_kind="k1", whiten="turn",
        )  # fmt: skip
    if name == "maporl":
        return published.maporl(turns)
    return tasks.ALGORITHMS["at_grpo" if name == "at_grpo" else "grpo"]()
