r"""Agents that are separate programs, with the OpenAI SDK, an agent framework or plain HTTP.

    python launch.py --config=experiments/agent_program.py                             # GRPO, the embedded model
    python launch.py --config=experiments/agent_program.py:langgraph_team+qwen2.5-0.5b # on a GPU
    python launch.py --config=experiments/agent_program.py:autogen_team+per_role+ppo \
        --config.task.params.program="ENVIRONMENT/bin/python examples/autogen_team.py"
    python launch.py --config=experiments/agent_program.py:autogen_team+per_role+sums \
        --config.task.params.program="ENVIRONMENT/bin/python examples/autogen_team.py"        # on a CPU
    python launch.py --config=experiments/agent_program.py --config.task.params.program=my_agent.py \
        --config.task.params.roles="('solver','checker')" --config.task.params.train=train.jsonl

A form is a list of words with + between them: a program of `examples/` (`openai_sdk`, the default, `ag2_team`,
`autogen_team`, `langgraph_team` or `llamaindex_team`), `per_role` for a policy per role, `grpo` (the default) or `ppo`,
and a model of `configs/variants.py`. The first lines of a program list the packages that it needs. Without data, the
problems are small arithmetic.

The embedded model is not pretrained and writes two bytes, so it cannot learn to compute; the run only shows that
everything works. With `sums`, the model and data are those of `examples/sums_model.py` in the folder `sums`: a small
model that can add, but makes mistakes, with a LoRA adapter for each policy.
"""

from ml_collections import ConfigDict

from configs import models, reasoning, tasks

PROGRAMS = {
    "openai_sdk": ("agent",),
    "ag2_team": ("solver", "verifier"),
    "autogen_team": ("solver", "verifier"),
    "langgraph_team": ("planner", "worker", "critic"),
    "llamaindex_team": ("solver", "verifier"),
}
"""Programs of `examples/` and the models that they request."""


def get_config(form: str | None = None):
    """Configure a program, an algorithm and a model."""
    words = [word for word in (form or "").split("+") if word]
    program = next((word for word in words if word in PROGRAMS), "openai_sdk")
    rest = "+".join(word for word in words if word not in (program, "per_role", "sums"))
    config = tasks.task(
        "program", rest or None, ("grpo", "ppo"), max_length=2048, small_episodes=16,
        program=f"examples/{program}.py", roles=PROGRAMS[program], train="", validation="", test="", key="",
        concurrency=32, preload=False,
    )  # fmt: skip
    config.task.time_limit = 120.0
    if config.model.name == "tiny":
        config.task.max_length, config.task.params.concurrency = 2048, 4
        config.eval.games = 8
    if "sums" in words:
        _sums(config)
    if "per_role" in words:
        reasoning.per_role(config, PROGRAMS[program])
    config.name = "agent_program"
    return config


def _sums(config: ConfigDict) -> None:
    """Use a locally trained model that writes sums of two digits."""
    lora = dict(rank=8, alpha=16.0)
    config.model = models.model("tiny", weights="sums/model", dtype="float32", remat="none", lora=lora)
    config.task.params.update({part: f"sums/{part}.jsonl" for part in ("train", "validation", "test")})
    config.task.update(dict(n_episodes=64, max_new_tokens=4, max_num_seqs=16, max_length=160))
    config.task.params.concurrency = 16
    config.steps = 60
    config.optim.lr = 3e-3
    config.eval.update(dict(every=0, games=80, temperature=1.0))
    config.checkpoint.update(dict(every=8, best_metric=""))
