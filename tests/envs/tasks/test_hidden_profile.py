"""Hidden-profile questions: their structure, the exact bound of one view, episodes and bad replies."""

import re
from collections import Counter

import pytest

from envs.tasks.debate.prompts import NAMES
from envs.tasks.hidden_profile.questions import (
    TOPICS,
    counts,
    everything,
    favourites,
    listed,
    mentioned,
    pooled,
    shared,
    splits,
    unshared,
    with_answer,
)
from envs.tasks.hidden_profile.task import FINAL, HiddenProfile, read_choice
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS

SIZES = [(2, 4), (3, 3), (4, 5)]
QUESTION = {
    "key": "k", "topic": "flat", "options": ["A", "B", "C"], "answer": "B", "lure": "A",
    "views": [
        [["A", "lift"], ["A", "pool"], ["A", "gym"], ["C", "attic"], ["C", "solar"], ["B", "cellar"], ["B", "sauna"]],
        [["A", "lift"], ["A", "pool"], ["A", "gym"], ["C", "attic"], ["C", "solar"], ["B", "garden"], ["B", "alarm"]],
    ],
}  # fmt: skip


def questions(seats, options, n=40):
    return splits(seats, options, 0, n, 4, 4)["train"]


def facts_in(text):
    return {
        (option, word) for option, words in re.findall(r"^([A-F]): (.*)$", text, re.M) for word in words.split(", ")
    }


def perfect(seat, messages, k):
    """Copy all known facts into the message, and choose by all facts that were seen or read."""
    text = messages[-1]["content"]
    facts = facts_in(text)
    if "Do not answer yet" in text:
        return "\n".join(
            f"{o}: {', '.join(w for p, w in sorted(facts) if p == o)}" for o in sorted({o for o, _ in facts})
        )
    return f"{FINAL} {favourites(facts)[0]}"


# ---------------------------------------------------------------------------------------------------- structure


@pytest.mark.parametrize(("seats", "options"), SIZES)
def test_shared_facts_and_every_view_are_wrong_by_construction(seats, options):
    for question in questions(seats, options):
        answer, lure, views = question["answer"], question["lure"], question["views"]
        assert favourites(everything(question)) == [answer] != [lure]
        assert favourites(shared(question)) == [lure] and len(views) == seats
        for seat, view in enumerate(views):
            number = counts(view)
            assert favourites(view) == [lure] and set(number) == set(question["options"])
            assert len({n for option, n in number.items() if option != lure}) == 1
            assert {option for option, _ in unshared(question, seat)} == {answer}
        words = [word for _, word in everything(question)]
        assert len(set(words)) == len(words) and set(words) <= set(TOPICS[question["topic"]].split())


@pytest.mark.parametrize(("seats", "options"), SIZES)
def test_one_view_fits_every_answer_but_the_lure_equally_well(seats, options):
    """Exchanging the answer keeps the view and the numbers of facts, on which alone the probability depends."""
    for question in questions(seats, options):
        for seat in range(seats):
            others = [
                with_answer(question, seat, option) for option in question["options"] if option != question["lure"]
            ]
            assert len({other["answer"] for other in others}) == options - 1
            for other in others:
                assert sorted(other["views"][seat]) == sorted(question["views"][seat])
                assert favourites(everything(other)) == [other["answer"]] and favourites(shared(other)) == [
                    question["lure"]
                ]
                assert Counter(counts(everything(other)).values()) == Counter(counts(everything(question)).values())
                sizes = [[counts(view)[other["answer"]] for view in one["views"]] for one in (other,)]
                assert sizes == [[counts(view)[question["answer"]] for view in question["views"]]]


def test_splits_are_disjoint_repeatable_and_balanced():
    parts = splits(2, 4, 0, 400, 50, 50)
    keys = [{row["key"] for row in parts[part]} for part in SPLITS]
    assert [len(one) for one in keys] == [400, 50, 50] and not keys[0] & keys[1] | keys[0] & keys[2] | keys[1] & keys[2]
    fingerprint = parts["test"].fingerprint
    splits.cache_clear()
    assert (
        splits(2, 4, 0, 400, 50, 50)["test"].fingerprint
        == fingerprint
        != splits(2, 4, 1, 400, 50, 50)["test"].fingerprint
    )
    answers = Counter(row["answer"] for row in parts["train"])
    assert set(answers) == set("ABCD") and min(answers.values()) > 70
    with pytest.raises(ValueError, match="part is 'dev'"):
        HiddenProfile(n_train=4, n_validation=4, n_test=4).examples("dev")


def test_mentioned_facts_are_whole_words_in_any_case():
    facts = [["A", "pool"], ["A", "bar"], ["B", "garden"]]
    assert mentioned(facts, "A has a POOL; barn, gardens.") == [["A", "pool"]]


def test_pooled_facts_are_those_of_others_times_the_share_of_true_ones():
    own = "A: lift, pool, gym = 3\nB: cellar, sauna = 2\nC: attic, solar = 2\n#### A"
    assert pooled(QUESTION, 0, own) == 0 and pooled(QUESTION, 1, own) == 1  # Ada's list has all that Ben does not know
    some = own.replace("sauna", "sauna, garden")
    assert pooled(QUESTION, 0, some) == 0.5
    assert pooled(QUESTION, 0, some.replace("gym", "alarm, gym")) == 0.5 * 8 / 9  # an advantage of B listed for A
    everywhere = "".join(f"{o}: {', '.join(word for _, word in everything(QUESTION))}\n" for o in "ABC")
    assert pooled(QUESTION, 0, everywhere) == pytest.approx(1 / 3)
    assert pooled(QUESTION, 0, "") == pooled(QUESTION, 0, "B") == 0
    assert listed(QUESTION, "**B**: Garden\n- b: alarm, alarms, dragon") == {("B", "alarm")}


# ---------------------------------------------------------------------------------------------------- episodes


@pytest.mark.parametrize(("seats", "options"), SIZES)
def test_a_perfect_team_answers_every_question(seats, options):
    kwargs = dict(seats=seats, options=options, n_train=8, n_validation=4, n_test=4, message_limit=2000)
    team, seat, complete = (HiddenProfile(form=form, **kwargs) for form in ("team", "seat", "all"))
    for question in team.examples("train"):
        outcome, ask = play(team.for_evaluation(), question, perfect)
        assert outcome.success == 1 and outcome.answer == question["answer"] and outcome.problem() is None
        expected = {"right": 1, "right_before": 0, "lure_before": 1, "unshared_mentioned": 1, "shared_mentioned": 1}
        assert {name: outcome.metrics[name] for name in expected} == expected
        assert len(ask.replies) == 3 * seats
        outcome, _ = play(seat, question, perfect)
        assert outcome.success == 0 and outcome.metrics["lure"] == 1 and "right_before" not in outcome.metrics
        assert play(complete, question, perfect)[0].success == 1


def test_seats_see_their_own_facts_and_the_messages_of_others():
    seen = {}

    def answer(seat, messages, k):
        seen.setdefault(seat, []).append(messages[-1]["content"])
        return f"from {NAMES[seat]}" if "Do not answer" in messages[-1]["content"] else "#### B"

    play(HiddenProfile(), QUESTION, answer)
    for seat, other in ((0, 1), (1, 0)):
        assert facts_in(seen[seat][0]) == {tuple(fact) for fact in QUESTION["views"][seat]} == facts_in(seen[seat][1])
        assert f"{NAMES[other]} may know other advantages" in seen[seat][0] and "wrote" not in seen[seat][0]
        assert f"{NAMES[other]} wrote:\nfrom {NAMES[other]}" in seen[seat][1] and "You wrote:" in seen[seat][1]


def test_messages_are_rewarded_by_the_answers_of_their_readers():
    """Only Ada's second message leads Ben to the answer; Ada always answers wrongly."""

    def answer(seat, messages, k):
        text = messages[-1]["content"]
        if "Do not answer" in text:
            return ("nothing", "B: cellar")[k] if seat == 0 else "nothing"
        return "#### B" if seat == 1 and "cellar" in text else "#### A"

    outcome, ask = play(HiddenProfile(progress=0.0), QUESTION, answer, candidates=2)
    paid = [(seat, reply.rewards.team, reply.rewards.agent) for seat, _, reply in ask.replies]
    assert paid[:4] == [(0, 0, 0), (0, 1, 0), (1, 0, 0), (1, 0, 0)] and len(paid) == 4 + 8
    assert outcome.success == 0.25  # a tie of A and B in half of the histories
    assert outcome.metrics["unshared_mentioned"] == 1 / 8 and outcome.metrics["lure"] == 0.75


def test_programs_unite_what_a_seat_knows_and_has_read():
    """The sandbox gives a program no facts, so one that reads none of the messages chooses the lure."""
    seen = {}

    def answer(seat, messages, k):
        text = messages[-1]["content"]
        if "Do not answer yet" in text:
            return perfect(seat, messages, k)
        seen[seat, "wrote:" in text] = text
        facts = {option: sorted(w for o, w in facts_in(text) if o == option) for option in "ABC"}
        return f"```python\nfacts = {facts}\nprint('{FINAL}', max(facts, key=lambda o: len(facts[o])))\n```"

    task = HiddenProfile(options=3, answer="program", sandbox="process", wall=10.0)
    outcome, ask = play(task.for_evaluation(), QUESTION, answer)
    assert outcome.success == 1 and outcome.metrics["lure_before"] == 1 and "pooled" not in outcome.metrics
    assert [reply.rewards.agent for *_, reply in ask.replies if reply.text.startswith("```")][-2:] == [1, 1]
    assert "`own` and `ben`" in seen[0, True] and "You wrote" not in seen[0, True] and "cellar" not in seen[1, False]
    for program, counted in (
        ("none", "no_program"),
        ("```python\n1 / 0\n```", "not_run"),
        ("```python\n1\n```", "no_answer"),
    ):
        outcome, ask = play(task, QUESTION, lambda *_, program=program: program)
        assert outcome.metrics[counted] == 1 and ask.replies[-1][2].rewards.process == -0.5


def test_lists_that_combine_facts_earn_a_part_of_the_reward():
    def answer(seat, messages, k):
        if "Do not answer" in messages[-1]["content"]:
            return "B: garden, alarm"
        return f"A: lift\nB: {'garden, alarm' if seat == 0 else 'cellar'}\n#### {'C' if seat == 0 else 'B'}"

    outcome, ask = play(HiddenProfile(progress=0.4), QUESTION, answer)
    assert [reply.rewards.agent for *_, reply in ask.replies[2:]] == pytest.approx([0.4, 0.6 + 0.4 / 2])
    assert [reply.rewards.team for *_, reply in ask.replies[:2]] == pytest.approx([0.8, 0.4])
    assert outcome.metrics["pooled"] == 0.75 and outcome.metrics["right"] == outcome.success == 0.5


@pytest.mark.parametrize(
    ("text", "answer", "kind", "reason"),
    [
        ("so\n#### B", "B", "right", ""), ("#### **b**.", "B", "right", ""), ("#### A\n#### (C)", "C", "wrong", ""),
        ("B", None, "no_answer", "there is no ####"), ("####", None, "no_answer", "no option follows ####"),
        ("#### F", None, "unknown_option", "the answer is 'F', but must be one of: A, B, C"),
        ("#### Because of B", None, "unknown_option", "the answer is 'Because'"),
    ],
)  # fmt: skip
def test_answers_are_read_after_the_last_marker(text, answer, kind, reason):
    choice = read_choice(text, QUESTION)
    assert (choice.answer, choice.kind) == (answer, kind) and reason in choice.reason


@pytest.mark.parametrize(
    ("message", "reply", "counted"),
    [("", "#### B", "message_empty"), ("garden" * 100, "#### B", "message_too_long"), ("ok", "B", "no_answer"),
     ("ok", "#### Z", "unknown_option")],
)  # fmt: skip
def test_bad_replies_are_counted(message, reply, counted):
    outcome, ask = play(
        HiddenProfile(), QUESTION, lambda seat, m, k: message if "Do not answer" in m[-1]["content"] else reply
    )
    assert outcome.metrics[counted] == 1 and outcome.metrics["unshared_mentioned"] == 0 and outcome.problem() is None
    bad = counted.startswith("message")
    assert [reply.rewards.process for *_, reply in ask.replies] == [-0.5 * bad] * 2 + [-0.5 * (not bad)] * 2
    assert outcome.success == bad and outcome.answer == ("B" if bad else None)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(form="duo"), "form is 'duo', but must be one of: team, seat, all"),
        (dict(seats=5), "seats is 5, but must be between 2 and 4"), (dict(options=2), "options is 2"),
        (dict(turns=0), "turns is 0"), (dict(continuation="worst"), "continuation is 'worst'"),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        HiddenProfile(**params)
