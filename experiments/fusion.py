"""Fusion of a sound and a table: a question whose answer needs both (docs/media.md).

    python launch.py --config=experiments/fusion.py                              # both inputs, interleaved with text
    python launch.py --config=experiments/fusion.py:prepended                    # both before the text
    python launch.py --config=experiments/fusion.py:cross_attention              # learned queries read both
    python launch.py --config=experiments/fusion.py:interleaved+sound            # the sound alone; the table is hidden
    python launch.py --config=experiments/fusion.py:interleaved+both+picture     # the table is a drawing
    python launch.py --config=experiments/fusion.py:interleaved+both+table+tone  # say the number of the tone

A form is METHOD[+INPUTS[+BOARD[+QUESTIONS]]]: `interleaved`, `prepended` or `cross_attention`; `both`, `sound` or
`table`; `table` or `picture`; and `mixed` (the default), `value`, `tone` or `row`. The model has about 0.2 M parameters
and is trained from scratch by imitation of the right answer, on tables whose values may repeat. With one input, the
chance is 1 of 6 if they do not (`--config.env.params.repeats=False`, and `benchmarks/fusion.py`).
"""

from configs import algorithms, defaults, models

METHODS = ("interleaved", "prepended", "cross_attention")
INPUTS = {"both": "", "sound": "table", "table": "sound"}  # the hidden input
BOARDS = ("table", "picture")
QUESTIONS = ("mixed", "value", "tone", "row")


def get_config(form: str | None = None):
    """Configure a method of fusion, the inputs, the table and the questions."""
    choices = (METHODS, tuple(INPUTS), BOARDS, QUESTIONS)
    words = (form or "interleaved").split("+")
    words += ("interleaved", "both", "table", "mixed")[len(words) :]
    for word, known in zip(words, choices, strict=False):
        if word not in known:
            raise ValueError(f"form is {form!r}, but {word!r} must be one of: {', '.join(known)}")
    if len(words) != len(choices):
        raise ValueError(f"form is {form!r}, but must be METHOD[+INPUTS[+BOARD[+QUESTIONS]]]")
    method, inputs, board, questions = words
    config = algorithms.imitate(defaults.get_config(), lr=3e-3)
    config.name = "fusion"
    config.model = models.tiny_media(cross_attention=method == "cross_attention")
    config.model.shape.qk_norm = True  # attention is sharp from the start
    params = dict(rows=6, repeats=True, questions=questions, hidden=INPUTS[inputs], board=board)
    config.env = defaults.environment("lookup", **params)
    config.env.update(dict(text="brief", style="plain", observation="image"))
    config.env.media_order = "prepended" if method == "prepended" else "interleaved"
    config.rollout.update(dict(num_envs=256, unroll_length=1))
    config.steps = 600
    config.optim.schedule = "constant"
    config.eval.update(dict(every=100, games=1024, opponents=()))
    return config
