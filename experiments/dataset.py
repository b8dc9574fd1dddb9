r"""Your own data: a JSONL file with reward functions (GRPO), completions (SFT) or pairs (DPO).

    python launch.py --config=experiments/dataset.py:grpo+smollm2 --config.task.params.data=train.jsonl \
        --config.task.params.prompt='{question}' --config.task.params.rewards=my_rewards.py:right
    python launch.py --config=experiments/dataset.py:sft+smollm2 --config.task.params.data=train.jsonl \
        --config.task.params.prompt='{question}' --config.task.params.completion='{answer}'
    python launch.py --config=experiments/dataset.py:grpo+smollm2 --config.model.init_from=runs/dataset-sft+smollm2 ...
    python launch.py --config=experiments/dataset.py:dpo+smollm2 --config.algo.data=pairs.jsonl

Forms: `grpo` (the default), `at_grpo` (candidates for each step of a workflow), `ppo`, `sft`, `dpo`, `ipo` or
`reward_model`, a model, or both with + between them. A model is a variant of `configs/variants.py`, the name of a
registered model, or the path of a Hugging Face folder or GGUF file. Without one, the embedded model is trained, which
is not pretrained: the run then only shows that everything works.

Each line of the file is a JSON object. `prompt` and `completion` are templates with its fields in braces. Reward
functions are MODULE:FUNCTION, FILE.py:FUNCTION or names that a plugin has registered; `docs/tasks.md` describes them.
A tenth of the rows each is kept for validation, on which the best checkpoint is chosen, and for test (`--mode=eval`),
unless there are files for them: `--config.task.params.data="{'train': 'train.jsonl', 'test': 'test.jsonl'}"`. Lines of
pairs have prompt, chosen and rejected (`docs/preference.md`).

Prompts have at most 768 tokens and completions 256; task.max_length and task.max_new_tokens change that. A step samples
8 completions each for 16 prompts, imitates 16 completions, or compares 32 pairs.
"""

from configs import algorithms, defaults, models, variants

GROUP, PROMPTS = 8, 16
ALGORITHMS = {
    "grpo": lambda: algorithms.grpo(GROUP, minibatches=2),
    "at_grpo": lambda: algorithms.at_grpo(GROUP, minibatches=2),
    "ppo": lambda: algorithms.ppo(epochs=1, minibatches=2),
    "sft": lambda: algorithms.sft(minibatches=2, loss_agg="token"),
    "dpo": algorithms.dpo,
    "ipo": algorithms.ipo,
    "reward_model": algorithms.reward_model,
}
PAIRS = ("dpo", "ipo", "reward_model")
REFERENCES = {"sft": {"completion": "{completion}"}, **{name: {"completion": "{chosen}"} for name in PAIRS}}


def get_config(form: str | None = None):
    """Configure a dataset by flags."""
    first, _, rest = (form or "grpo").partition("+")
    name, model = (first, rest) if first in ALGORITHMS else ("grpo", form or "")
    config = defaults.get_config()
    config.steps = 200
    config.optim.update(dict(lr=1e-3, schedule="constant", warmup=5))
    if model in ("", *variants.VARIANTS):
        config = variants.choose(config, model or None)
    else:
        local = "/" in model or model.endswith(".gguf")
        config.model = models.model("tiny", weights=model) if local else models.model(model)
        config.optim.lr = 2e-5
    kept = {"grad_accum_steps": config.algo.grad_accum_steps}
    if name in ("grpo", "at_grpo", "ppo"):
        kept |= {"entropy_coef": 0.0, "tis_clip": config.algo.tis_clip}
    config.algo = ALGORITHMS[name]()
    config.algo.update(kept)
    defaults.use_task(config, "dataset", **REFERENCES.get(name, {}))
    episodes = PROMPTS * GROUP if name in ("grpo", "ppo") else PROMPTS
    config.task.update(dict(n_episodes=episodes, max_new_tokens=256, max_num_seqs=64, max_length=1024))
    config.eval.update(dict(every=20, games=128))
    config.checkpoint.update(dict(every=20, best_metric="self/success"))
    config.log.games_every = 20
    if name in PAIRS:
        config.task.params.data = config.algo.get_ref("data")  # one file: pairs to learn from, prompts to answer
        config.checkpoint.best_metric = "pairs/accuracy"
    if model in ("", "tiny"):
        config.task.update(dict(max_new_tokens=16, max_num_seqs=32, max_length=512))
        config.eval.games = 32
    config.name = "dataset"
    return config
