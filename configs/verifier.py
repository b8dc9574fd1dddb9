"""Verifiers of a task's answers: labelling and training."""

from ml_collections import ConfigDict

from configs import algorithms, defaults, variants

TASKS = {  # form -> (task, its parameters, its parameters for the embedded model)
    "gsm8k": ("math", dict(dataset="gsm8k"), dict(dataset="sample")),
    "math": ("math", dict(dataset="math"), dict(dataset="sample")),
    "anli": ("nli", dict(), dict()),
    "arithmetic": ("arithmetic", dict(), dict(levels=(1,), n_examples=200)),
}
ADAPTER_LR = 1e-4


def verifier(form: str | None) -> ConfigDict:
    """Configure a verifier of one of TASKS, written TASK, MODEL or TASK+MODEL.

    A pretrained model has LoRA.
    """
    task, model = parts(form)
    name, params, small = TASKS[task]
    config = defaults.get_config()
    config.steps = 250
    config = variants.choose(config, model)
    config.algo = algorithms.verifier()
    config.optim.update(dict(schedule="cosine", warmup=10, critic_lr=0.0))
    config.eval.update(dict(every=50))
    config.checkpoint.update(dict(every=50, best_metric="balanced/auc_by_question"))
    defaults.use_task(config, name, **(params if model else small))
    if model is None:
        # Sized for two CPU cores and a model without pretraining: everything is small.
        config.steps = 20
        config.task.update(dict(n_episodes=64, max_new_tokens=4, max_num_seqs=16, max_length=512))
        config.algo.update(dict(questions=16, held_out=8, samples=4, per_side=2, completions=8, gold=True))
        config.eval.every = config.checkpoint.every = 10
        return config
    config.task.update(dict(n_episodes=2048, max_new_tokens=512, max_num_seqs=256, max_length=1024, time_limit=600.0))
    if not config.model.lora.rank:
        config.model.lora.rank = 32
    config.model.param_dtype = "bfloat16"
    config.optim.update(dict(lr=ADAPTER_LR, critic_lr=1e-3))
    config.algo.grad_accum_steps = max(config.algo.grad_accum_steps, 4)
    return config


def parts(form: str | None) -> tuple[str, str | None]:
    """Split a form into task and model; None is the embedded model.

    A model alone has the task gsm8k.
    """
    return variants.split_form(form or "arithmetic", TASKS, "gsm8k")
