r"""Story writing with a co-author, who may help, repeat or derail.

    python launch.py --config=experiments/story.py                                       # the embedded model
    python launch.py --config=experiments/story.py:single+smollm2                        # on a GPU
    python launch.py --config=experiments/story.py:multi_switch+smollm2
    python launch.py --config=experiments/story.py:multi_learning+qwen2.5-coder-0.5b
    python launch.py --config=experiments/story.py:prompt+smollm2 --mode=eval

Learner and co-author add one sentence in turn. The learner must use given characters, words and a last word, without
repeating the story. Forms: `prompt` (for `--mode=eval`), `single` (the learner writes alone), `multi_fixed`,
`multi_pool`, `multi_switch` (the default: helpful, then repeating, then derailing) and `multi_learning`; each
optionally with +MODEL (`configs/partnered.py`). Evaluations have all scripted co-authors (docs/partners.md).

    --config.task.params.goal=adversarial          # a co-author that learns is rewarded for a bad story

The embedded model is not pretrained, so it writes no sentences and learns nothing; the run only shows that everything
works. Two steps and an evaluation take about 30 seconds of CPU time.
"""

from configs import partnered

SEATS = ("learner", "coauthor")
TURNS = 4


def get_config(form: str | None = None):
    """Configure stories with four sentences of the learner."""
    config = partnered.partnered(
        "story", form, partners=("helpful", "repeating", "derailing"), seats=SEATS, completions=(TURNS, TURNS),
        single=dict(partners=("silent",)), learning=dict(form="model"), params=dict(turns=TURNS),
        small=dict(n_train=64, n_validation=16, n_test=16), max_new_tokens=60, max_length=1024,
    )  # fmt: skip
    config.name = "story"
    return config
