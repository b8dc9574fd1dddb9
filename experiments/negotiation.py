r"""Negotiation over items with scripted or learning partners, whose strategies may change.

    python launch.py --config=experiments/negotiation.py                                     # the embedded model
    python launch.py --config=experiments/negotiation.py:single+qwen2.5-coder-0.5b           # on a GPU
    python launch.py --config=experiments/negotiation.py:multi_switch+qwen2.5-coder-0.5b
    python launch.py --config=experiments/negotiation.py:multi_learning+smollm2
    python launch.py --config=experiments/negotiation.py:prompt+qwen2.5-coder-0.5b --mode=eval

The learner divides books, hats and balls with a partner by messages and binding offers. Forms: `prompt` (for
`--mode=eval`), `single` (one proposal, which a fair partner accepts or not), `multi_fixed`, `multi_pool`,
`multi_switch` (the default: fair, then greedy, then deceptive) and `multi_learning`; each optionally with +MODEL
(`configs/partnered.py`). Evaluations play against all scripted partners (docs/partners.md).

    --config.agents.partner=http://127.0.0.1:8000/v1#main  # for multi_learning; docs/remote.md
    --config.task.params.goal=cooperative          # or adversarial; the learner's own points by default
    --config.task.params.source=casino             # or dealornodeal, from $MARL_JAX_DATA

The embedded model is not pretrained, so it makes no offers and learns nothing; the run only shows that everything
works. Two steps and an evaluation take about 30 seconds of CPU time.
"""

from configs import partnered

SEATS = ("learner", "partner")
TURNS = 3


def get_config(form: str | None = None):
    """Configure negotiations with three messages per seat."""
    config = partnered.partnered(
        "negotiation", form, partners=("fair", "greedy", "deceptive"), seats=SEATS, completions=(1, TURNS),
        single=dict(partners=("fair",), turns=1, starts="learner"), learning=dict(form="model"),
        params=dict(turns=TURNS, test_turns=TURNS), small=dict(n_train=64, n_validation=16, n_test=16),
        max_new_tokens=100, max_length=1024,
    )  # fmt: skip
    config.name = "negotiation"
    return config
