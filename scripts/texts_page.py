"""Write docs/texts.md: a first prompt and two events of every game in every style.

python -m scripts.texts_page
"""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np

from envs.games import registry, text
from envs.games.registry import make_text
from envs.games.text import HOW, REASONED

PAGE = pathlib.Path(__file__).resolve().parents[1] / "docs" / "texts.md"
LEVELS = dict(n_train=6, n_test=2)
FORMS = {
    "tic_tac_toe": dict(name="tic_tac_toe"),
    "connect_four": dict(name="connect_four"),
    "hanabi, two players": dict(name="hanabi"),
    "kuhn": dict(name="kuhn"),
    "leduc": dict(name="leduc"),
    "matrix": dict(name="matrix"),
    "referential": dict(name="referential", cards=4),
    "plan_path": dict(name="plan_path", size=5, mask_invalid=True, **LEVELS),
    "sokoban, two roles": dict(name="sokoban", roles="two", **LEVELS),
    "sudoku, two roles, local view": dict(name="sudoku", roles="two", view="local", mask_invalid=True, **LEVELS),
    "pursuit, local view": dict(name="pursuit", view="local"),
    "warehouse": dict(name="warehouse"),
    "warehouse, local view": dict(name="warehouse", view="local"),
    "lookup": dict(name="lookup"),
}
HEAD = f"""# Texts

This page shows the prompts of every game. `python -m scripts.texts_page` generates it, and a test checks that it is
current.

| `env.text` | prompts |
| --- | --- |
| `full` | natural language |
| `compact` | about one token per fact, with every tokenizer |
| `brief` | a few characters without rules, for byte-level models trained from scratch |

- **Conversations.** A prompt has rules, role, position and question. With `env.context=turn`, every turn has such a
  prompt. With `history`, it starts a conversation, and each later turn adds a short question and the events since the
  last turn: all moves, including the player's. The first prompt and the events determine the current position.
- **Reasoning.** With `env.reasoning=True`, for free completions of full prompts, the question is
  `{REASONED.strip()} …`
  instead of `{HOW.strip()} …`. Only a move after the mark counts, so a truncated completion names no move.
- **Notations.** Compact prompts have several notations. The one shown here uses words; its facts start with a space and
  a letter, where byte-pair tokenizers split. Another one uses signs, for bytes. The compiler checks every token
  boundary and picks the notation with the fewest tokens.

Number of tokens in Hanabi for two players (12 games of the convention bot, SmolLM2's tokenizer and chat template):

| | full | compact |
| --- | --- | --- |
| rules, read once per update | 469 | 289 |
| position and question, mean (longest) | 258 (285) | 102 (123) |
| event of an own move, mean (longest) | 92 (111) | 24 (30) |
| event of the partner's move, mean (longest) | 101 (125) | 31 (41) |
| prompt of a later turn, mean | 209 | 68 |
"""


def page() -> str:
    """Return the page."""
    return HEAD + "".join(_form(title, dict(params)) for title, params in FORMS.items())


def _form(title: str, params: dict) -> str:
    game = registry.make(params.pop("name"), **params)
    states, actions = _moves(game)
    seat = game.n_players - 1
    parts = [f"\n## {title}\n\nThe prompt of seat {seat} before seat 0 moves, then two events.\n"]
    for style in text.STYLES:
        prompt = make_text(game, style)
        opening = "\n".join(s for s in (prompt.rules, prompt.roles[seat]) if s)
        opening += ("\n" if opening else "") + prompt.observe(states[0], seat) + prompt.questions[seat]
        numbers = jax.jit(prompt.event_indices)
        events = [
            prompt.events.text(jax.device_get(numbers(before, action, after, seat)))
            for before, action, after in zip(states, actions, states[1:], strict=False)
        ]
        lines = [opening, "----", *(event.rstrip("\n") for event in events)]
        parts.append(f"\n{style}:\n\n```text\n" + "\n".join(lines) + "\n```\n")
    return "".join(parts)


def _moves(game) -> tuple[list, list]:
    """Play two moves from the start of a game, each the middle legal one."""
    step, legal_of = jax.jit(game.step), jax.jit(game.legal)
    states, actions = [jax.jit(game.reset)(jax.random.key(1))], []
    for _ in range(2):
        legal = np.flatnonzero(legal_of(states[-1]))
        actions.append(jnp.int32(legal[len(legal) // 2]))
        states.append(step(states[-1], actions[-1])[0])
    return states, actions


if __name__ == "__main__":
    PAGE.write_text(page())
