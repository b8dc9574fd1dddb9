"""Stories: the rule against hand-computed scores, co-authors, rewards and bad contributions."""

import pytest

from envs.tasks.scripted import play
from envs.tasks.story import briefs
from envs.tasks.story.coauthors import CO_AUTHORS
from envs.tasks.story.scoring import is_linked, problem_of, repetition, score
from envs.tasks.story.task import Story
from envs.tasks.task import SPLITS

SMALL = dict(n_train=20, n_validation=10, n_test=10)
BRIEF = {
    "key": "k", "characters": ["Mira", "Tom"], "words": ["lantern", "bridge"], "ending": "home",
    "opening": "Late one evening Mira came to an old mill.",
}  # fmt: skip
PERFECT = ("Mira held up a lantern.", "Tom waited on the bridge for Mira.", "Mira and Tom finally walked home.")


def write(made, *texts, step=0):
    """Play with the learner's sentences in order."""
    sent = iter(texts)
    return play(made, BRIEF, lambda seat, messages, k: next(sent), step=step)


# ---------------------------------------------------------------------------------------------------- rule


def test_scores_equal_values_computed_by_hand():
    told = [(-1, BRIEF["opening"]), (0, "Mira saw a lantern."), (1, "It rained."), (0, "Mira saw a lantern at home.")]
    measured = score(BRIEF, told)
    # Of the learner's 2 + 4 sequences of three words, the first two of the second sentence are repeated.
    assert measured["repetition"] == pytest.approx(2 / 6) and measured["words"] == 0.5
    assert measured["characters"] == 0.5 and measured["ending"] == 1 and measured["linked"] == 1
    assert measured["score"] == pytest.approx((0.5 + 0.5 + 1 + 1 + 4 / 6) / 5)
    assert repetition([], []) == 0 and repetition(["Go, go, go, go."], [[]]) == 0.5
    assert score(BRIEF, told[:1])["score"] == 0


def test_sentences_are_linked_by_content_words_only():
    assert is_linked("The mill was dark.", [BRIEF["opening"]]) and is_linked("MIRA!", [BRIEF["opening"]])
    assert not is_linked("It was to an and of the.", [BRIEF["opening"]]) and not is_linked("A bird sang.", [])


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the sentence is empty"),
        ("...", "the sentence is empty"),
        ("One. Two.", "exactly one sentence"),
        ("No end", "exactly one sentence"),
        ("One. and more", "exactly one sentence"),
        ("word " * 31 + ".", "has 31 words, but must have at most 30"),
        ('She said "no!"', ""),
        (" He paid 3.50 for it?! ", ""),
    ],
)
def test_contributions_must_be_one_sentence(text, problem):
    assert (problem in problem_of(text, 30)) if problem else problem_of(text, 30) == ""


# ---------------------------------------------------------------------------------------------------- episodes


def test_a_perfect_story_has_the_full_score_and_the_goal_decides_the_reward():
    for goal, reward in (("cooperative", (1, 0)), ("adversarial", (0, 1))):
        outcome, ask = write(Story(turns=3, partners=("silent",), goal=goal), *PERFECT)
        assert outcome.success == 1 and outcome.reason == "complete" and outcome.metrics["repetition"] == 0
        assert [(r.rewards.team, r.rewards.agent) for *_, r in ask.replies] == [(0, 0), (0, 0), reward]


def test_a_learner_that_relies_on_a_helpful_co_author_loses_when_the_co_author_switches():
    made = Story(turns=3, partners=("helpful", "repeating"), schedule="switch", switch_at=(1,))
    lazy = ("Mira looked around.", "Tom nodded to Mira.", "Mira went home.")
    before, after = (write(made, *lazy, step=step)[0] for step in (0, 1))
    assert before.metrics["words"] == 1 and after.metrics["words"] == 0 and before.success > after.success
    assert "success_vs_helpful" in before.metrics and "success_vs_repeating" in after.metrics


def test_a_repeating_co_author_does_not_count_as_the_learners_repetition():
    outcome, _ = write(Story(turns=3, partners=("repeating",)), *PERFECT)
    assert outcome.metrics["repetition"] == 0 and outcome.success == 1


def test_invalid_contributions_are_left_out_counted_and_cost_a_penalty():
    seen = []

    def answer(seat, messages, k):
        seen.append(messages[-1]["content"])
        return "" if len(seen) < 3 else "One. Two."

    outcome, ask = play(Story(turns=3, partners=("plain",)), BRIEF, answer)
    assert outcome.metrics["invalid"] == 1 and outcome.success == 0
    assert [r.rewards.process for *_, r in ask.replies] == [-0.1] * 3
    assert "mill" in seen[0] and "Write the last sentence." in seen[2] and "You write 3 more sentences." in seen[0]


def test_two_models_write_and_the_hostile_one_earns_what_the_story_lacks():
    seen = {}

    def answer(seat, messages, k):
        seen[seat] = list(messages)
        return "A bird sang." if seat else "Mira looked home."

    made = Story(form="model", goal="adversarial", partners=("derailing",), turns=2)
    outcome, ask = play(made, BRIEF, answer)
    rewards = {seat: reply.rewards.agent for seat, _, reply in ask.replies}
    assert rewards == {0: pytest.approx(outcome.success), 1: pytest.approx(1 - outcome.success)}
    assert CO_AUTHORS["derailing"].prompt in seen[1][0]["content"] and "A bird sang." in seen[0][-1]["content"]
    assert "Mira looked home." in seen[1][-1]["content"]


def test_briefs_are_disjoint_and_evaluations_have_all_co_authors():
    parts = briefs.splits(0, (200, 20, 20))
    keys = [{row["key"] for row in parts[part]} for part in SPLITS]
    assert [len(one) for one in keys] == [200, 20, 20] and not keys[0] & keys[1] | keys[0] & keys[2]
    made = Story(form="model", **SMALL).for_evaluation()
    assert [row["partner"] for row in made.examples("test")] == list(CO_AUTHORS) * 2 and made.roles == ("learner",)
    with pytest.raises(ValueError, match="partners contains 'kind', but must contain only: helpful"):
        Story(partners=("kind",))
