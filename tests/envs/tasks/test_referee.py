"""What tasks give a judge to compare, and the rewards of its verdicts."""

import pytest

from envs.tasks.dataset_task import DatasetTask
from envs.tasks.judges import Judge, Referee
from envs.tasks.negotiation.task import Negotiation
from envs.tasks.scripted import play
from envs.tasks.story.task import Story

pytestmark = pytest.mark.quick


class Fixed(Judge):
    """A judge that gives the learner's text a probability of 0.75 and keeps the comparisons."""

    def __init__(self, p=0.75):
        super().__init__("fixed")
        self.p, self.read = p, []

    async def compare(self, prompt, first, second, criterion="correctness"):
        self.read.append((prompt, first, second, criterion))
        return await super().compare(prompt, first, second, criterion)

    async def prefer(self, prompt, first, second, criterion):
        return 1 - self.p if first in [other for _, _, other, _ in self.read] else self.p


def agents(ask, seat):
    return [reply.rewards.agent for who, _, reply in ask.replies if who == seat][-1]


@pytest.mark.parametrize("against", ["reference", "partner"])
def test_a_story_is_compared_with_a_reference_or_with_the_other_author(against):
    judge, task = Fixed(), Story(form="model", goal="adversarial", turns=2)
    assert against in task.contests
    sentences = {0: "Anna saw a boat.", 1: "The dog slept."}
    referee = Referee(judge, "coherence", against, weight=2.0)
    outcome, ask = play(task, task.examples("train")[0], lambda seat, *_: sentences[seat], judge=referee)
    prompt, own, other, criterion = judge.read[0]
    brief = task.examples("train")[0]
    assert brief["opening"] in prompt and all(word in prompt for word in brief["words"]) and criterion == "coherence"
    if against == "partner":
        assert (own, other) == ("Anna saw a boat.\nAnna saw a boat.", "The dog slept.")
    else:
        assert own == "Anna saw a boat.\nThe dog slept.\nAnna saw a boat." and len(other.splitlines()) == 3
        assert all(word in other for word in [*brief["characters"], brief["ending"]])
        assert outcome.metrics["judge_agreement"] == 0  # the rule prefers the reference
    assert agents(ask, 0) == 1.5 and agents(ask, 1) == 0.5 and outcome.metrics["judge_p"] == 0.75
    assert outcome.success == play(task, brief, lambda seat, *_: sentences[seat])[0].success


def test_both_sides_of_a_negotiation_are_compared():
    judge, task = Fixed(), Negotiation(form="model", starts="learner", turns=1)
    context = task.examples("train")[0]
    nothing = " ".join(f"{item}=0" for item in context["items"])
    texts = {0: f"Take\nall.\nOFFER {nothing}", 1: "Thanks.\nACCEPT"}
    outcome, ask = play(task, context, lambda seat, *_: texts[seat], judge=Referee(judge, "fairness", "partner"))
    _, own, other, _ = judge.read[0]
    assert own == f"Take all. OFFER {nothing}\nResult: 0% of the points that it could get."
    assert other == "Thanks. ACCEPT\nResult: 100% of the points that it could get."
    assert agents(ask, 0) == 0.75 and agents(ask, 1) == 0.25
    assert outcome.success == 0 and outcome.metrics["judge_agreement"] == 0
    rule = play(task, context, lambda seat, *_: texts[seat], judge=Referee(None, against="partner"))[1]
    assert agents(rule, 0) == 0 and agents(rule, 1) == 1


def test_every_candidate_of_a_dataset_is_compared_with_its_reference():
    rows = [{"prompt": f"{i} + {i}?", "completion": str(2 * i)} for i in range(10)]
    judge, task = Fixed(), DatasetTask(rows, completion="{completion}", continuation="first")
    assert task.contests == ("reference",) and DatasetTask(rows, rewards=lambda completion: 1.0).contests == ()
    example, texts = task.examples("train")[0], ["no", "", "right"]
    texts[2] = example["completion"]
    referee = Referee(judge, weight=1.0, rule_weight=10.0)
    outcome, ask = play(task, example, lambda seat, messages, k: texts[k], candidates=3, judge=referee)
    assert [one[1:3] for one in judge.read] == [(text, texts[2]) for text in texts]
    assert [r.rewards.team for _, _, r in ask.replies] == [0.75, 0.0, 10.5]
    assert outcome.success == 0 and {"reward_exact", "judge_p"} <= set(outcome.metrics)
