"""Scripted co-authors of stories, from helpful to hostile."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable, Sequence

from envs.tasks.story.briefs import Brief
from envs.tasks.story.scoring import words_of

Write = Callable[[Brief, Sequence[str], random.Random], str]


def _helpful(brief: Brief, story: Sequence[str], rng: random.Random) -> str:
    """Name a character, and bring up a required word that is missing."""
    used = {word for text in story for word in words_of(text)}
    missing = [word for word in brief["words"] if word not in used] or brief["words"]
    return f"{rng.choice(brief['characters'])} thought of the {missing[0]}."


def _plain(brief: Brief, story: Sequence[str], rng: random.Random) -> str:
    """Continue without using any constraint."""
    return rng.choice(
        ("A cold wind rose from the hills.", "Nobody had expected that.", "It was later than anyone had thought.")
    )


def _repeating(brief: Brief, story: Sequence[str], rng: random.Random) -> str:
    """Repeat the last sentence."""
    return story[-1]


def _derailing(brief: Brief, story: Sequence[str], rng: random.Random) -> str:
    """Start another story."""
    return rng.choice(
        (
            "Meanwhile, a spaceship landed on a distant moon.",
            "Long ago, a dragon had eaten everyone in another land.",
            "By the way, potatoes are cheaper in autumn.",
        )
    )


@dataclasses.dataclass(frozen=True)
class CoAuthor:
    """A co-author.

    Attributes:
        write: Returns its next sentence; None for a co-author that is silent.
        prompt: Instruction for a language model that plays this co-author.
    """

    write: Write | None
    prompt: str


CO_AUTHORS = {
    "helpful": CoAuthor(_helpful, "Help the other author to meet the constraints."),
    "plain": CoAuthor(_plain, "Continue the story in a neutral way, without meeting any of the constraints yourself."),
    "repeating": CoAuthor(_repeating, "Repeat the last sentence in almost the same words."),
    "derailing": CoAuthor(_derailing, "Lead the story away from its characters and its subject."),
    "silent": CoAuthor(None, "Write only a full stop."),
}


def reference_story(brief: Brief, sentences: int) -> list[str]:
    """Return a story that meets the constraints, for comparisons with the learner's.

    Args:
        brief: The constraints.
        sentences: Number of sentences after the opening.
    """
    story, rng = [brief["opening"]], random.Random(f"reference {brief['key']}")
    while len(story) < sentences:
        story.append(_helpful(brief, story, rng))
    return [*story, f"In the end, {' and '.join(brief['characters'])} agreed about the {brief['ending']}."]
