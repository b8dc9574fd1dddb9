r"""Knowledge retrieval: a searcher brings passages, and the learner answers with citations.

    python launch.py --config=experiments/retrieval.py                                       # the embedded model
    python launch.py --config=experiments/retrieval.py:single+qwen2.5-coder-0.5b             # on a GPU
    python launch.py --config=experiments/retrieval.py:multi_switch+qwen2.5-coder-0.5b
    python launch.py --config=experiments/retrieval.py:multi_learning+smollm2
    python launch.py --config=experiments/retrieval.py:prompt+qwen2.5-coder-0.5b --mode=eval

Questions are those of SQuAD (`python -m envs.tasks.data.prepare squad`), and otherwise those of a built-in sample.
Forms: `prompt` (for `--mode=eval`), `single` (the search engine without a searcher), `multi_fixed`, `multi_pool`,
`multi_switch` (the default: helpful, then distracting, then misleading) and `multi_learning` (a second policy
searches); each optionally with +MODEL (`configs/partnered.py`). Evaluations have all scripted searchers
(docs/partners.md).

    --config.task.params.goal=adversarial          # a searcher that learns is rewarded for wrong answers
    --config.task.params.dataset=hotpotqa          # questions that need two passages

The embedded model is not pretrained, so it writes no answers and learns nothing; the run only shows that everything
works. Two steps and an evaluation take about 30 seconds of CPU time.
"""

from configs import partnered

SEATS = ("writer", "searcher")
TURNS = 2


def get_config(form: str | None = None):
    """Configure questions with two completions of the writer."""
    config = partnered.partnered(
        "retrieval", form, partners=("helpful", "distracting", "misleading"), seats=SEATS, completions=(TURNS, TURNS),
        single=dict(partners=("plain",)), learning=dict(form="model"), params=dict(dataset="squad", turns=TURNS),
        small=dict(dataset="sample"), max_new_tokens=100, max_length=4096,
    )  # fmt: skip
    config.name = "retrieval"
    return config
