"""Rewards in debates: every formula and every row of both tables, with numbers computed by hand."""

import dataclasses

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from envs.tasks.debate import credit
from envs.tasks.debate.credit import PRESETS, Credit, is_malformed, majority, pay, pay_candidate, repeats, returns

R, W = True, False
SIZES = dict(alpha0=0.1, alpha1=0.2, beta0=0.4, beta1=0.8)
PAPER = dataclasses.replace(PRESETS["paper"], **SIZES)
RELEASED = dataclasses.replace(PRESETS["released"], **SIZES)


@st.composite
def tables(draw, values, max_turns=4, min_agents=1, max_agents=5):
    """values[t][a]."""
    agents = draw(st.integers(min_agents, max_agents))
    return draw(st.lists(st.lists(values, min_size=agents, max_size=agents), min_size=1, max_size=max_turns))


SCORES = tables(st.floats(0, 1))
VERDICTS = tables(st.booleans(), min_agents=2)
GAMMA = st.floats(0, 1)

# ------------------------------------------------------------------------------------------------------------ returns


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        # Weights 1, ½, ¼; means of the turns 0.5, 0.25, 0.75; all divided by 1.75, then 1.5, then 1.
        ("influence", [[(1 + 0.125 + 0.1875) / 1.75, 0.3125 / 1.75], [(0.5 + 0.375) / 1.5, 0.375 / 1.5], [0.5, 1]]),
        ("cumulative", [[(1 + 0.25 + 0.125) / 1.75, 0.25 / 1.75], [(0.5 + 0.25) / 1.5, 0.5 / 1.5], [0.5, 1]]),
        ("immediate", [[1, 0], [0.5, 0], [0.5, 1]]),
        ("last", [[0.5, 1], [0.5, 1], [0.5, 1]]),
        ("last_mean", [[0.75, 0.75], [0.75, 0.75], [0.75, 0.75]]),
    ],
)
def test_returns_by_hand(kind, expected):
    found = returns([[1, 0], [0.5, 0], [0.5, 1]], kind, 0.5)
    assert found == [pytest.approx(row) for row in expected]


@given(SCORES, GAMMA)
def test_returns_are_averages_of_scores(scores, gamma):
    low, high = min(map(min, scores)), max(map(max, scores))
    for kind in credit.KINDS:
        for row in returns(scores, kind, gamma):
            assert all(low - 1e-9 <= value <= high + 1e-9 for value in row)


@given(SCORES, GAMMA)
def test_limits_in_which_kinds_are_the_same(scores, gamma):
    immediate = returns(scores, "immediate", gamma)
    for kind in ("influence", "cumulative"):
        assert returns(scores, kind, 0.0) == immediate == scores
        assert returns(scores, kind, gamma)[-1] == pytest.approx(scores[-1])
    alone = [row[:1] for row in scores]
    assert returns(alone, "influence", gamma) == [pytest.approx(row) for row in returns(alone, "cumulative", gamma)]
    assert [row[0] for row in returns(alone, "last", gamma)] == [row[0] for row in returns(alone, "last_mean", gamma)]


@given(SCORES, GAMMA, st.randoms(use_true_random=False))
def test_the_order_of_the_other_agents_does_not_matter(scores, gamma, rng):
    order = list(range(1, len(scores[0])))
    rng.shuffle(order)
    shuffled = [[row[0], *(row[a] for a in order)] for row in scores]
    for kind in credit.KINDS:
        one, other = returns(scores, kind, gamma), returns(shuffled, kind, gamma)
        assert [row[0] for row in one] == pytest.approx([row[0] for row in other])


@given(SCORES, st.floats(0.01, 1), st.data())
def test_earlier_answers_are_paid_for_what_the_others_come_to(scores, gamma, data):
    """Raising a later score of another agent raises the influence-aware return and no cumulative one."""
    assume(len(scores) > 1 and len(scores[0]) > 1)
    t = data.draw(st.integers(1, len(scores) - 1))
    better = [list(row) for row in scores]
    better[t][1] += 0.5
    for kind, gains in (("influence", True), ("cumulative", False)):
        before, after = returns(scores, kind, gamma), returns(better, kind, gamma)
        assert (after[t - 1][0] > before[t - 1][0]) == gains and after[t][0] == before[t][0]


# ------------------------------------------------------------------------------------------------------------- tables

# Three agents, of which the first is rewarded: its answers at both turns, and those of the others, who agree.
ALPHA = [  # own t → t+1, majority at t, bonuses of the paper and the released code on the answer at t+1
    ((R, W), R, -0.2, -0.2),
    ((R, W), W, -0.1, -0.1),
    ((W, R), W, +0.1, +0.2),
    ((W, R), R, +0.2, +0.1),
    ((R, R), W, 0, 0),
    ((W, W), R, 0, 0),
]
BETA = [  # majority t → t+1, own at t, bonuses of both on the answer at t
    ((R, W), R, -0.8, +0.4),
    ((R, W), W, -0.4, +0.8),
    ((W, R), W, +0.4, -0.4),
    ((W, R), R, +0.8, -0.8),
    ((R, R), W, 0, 0),
    ((W, W), R, 0, 0),
]


@pytest.mark.parametrize(("own", "most", "paper", "released"), ALPHA)
def test_every_row_of_the_first_table(own, most, paper, released):
    right = [[own[0], most, most], [own[1], most, most]]
    assert credit.bonuses(right, PAPER)[1][0] == pytest.approx(paper)
    assert credit.bonuses(right, RELEASED)[1][0] == pytest.approx(released)


@pytest.mark.parametrize(("most", "own", "paper", "released"), BETA)
def test_every_row_of_the_second_table(most, own, paper, released):
    """The released code has no bonus at the first turn, so the change is at the second."""
    right = [[own, most[0], most[0]], [own, most[0], most[0]], [own, most[1], most[1]]]
    assert [row[0] for row in credit.bonuses(right, PAPER)] == pytest.approx([0, paper, 0])
    assert [row[0] for row in credit.bonuses(right, RELEASED)] == pytest.approx([0, released, 0])
    assert credit.bonuses(right[1:], PAPER)[0][0] == pytest.approx(paper)
    assert credit.bonuses(right[1:], RELEASED)[0][0] == 0


def test_one_agent_has_no_majority_beside_it_but_the_released_code_pays_it():
    right = [[R], [W], [R], [R]]
    assert credit.bonuses(right, PAPER) == [[0], [0], [0], [0]]
    assert credit.bonuses(right, RELEASED) == [[0], [-0.2], [0.2], [0]]


@pytest.mark.parametrize("preset", [PAPER, RELEASED])
def test_a_tie_among_the_others_fires_nothing(preset):
    right = [[R, R, W], [W, R, W], [R, W, R], [W, R, R]]
    assert [row[0] for row in credit.bonuses(right[:3], preset)] == [0, 0, 0]
    assert majority(right[0], 0) == "" and majority(right[3], 0) == "R" and majority([R], 0) == ""


@given(VERDICTS, st.sampled_from([PAPER, RELEASED]), st.randoms(use_true_random=False))
def test_bonuses_are_bounded_and_know_no_order_of_the_others(right, preset, rng):
    found = credit.bonuses(right, preset)
    assert all(abs(value) <= 1.0 + 1e-9 for row in found for value in row)  # α1 + β1
    order = list(range(1, len(right[0])))
    rng.shuffle(order)
    shuffled = [[row[0], *(row[a] for a in order)] for row in right]
    assert [row[0] for row in credit.bonuses(shuffled, preset)] == [row[0] for row in found]
    steady = [right[0]] * len(right)
    assert not any(value for row in credit.bonuses(steady, preset) for value in row)


@given(VERDICTS)
def test_right_and_wrong_are_opposite_but_for_their_sizes(right):
    """With equal sizes, swapping right and wrong only changes the sign of the paper's tables."""
    equal = Credit(alpha0=0.1, alpha1=0.1, beta0=0.3, beta1=0.3)
    flipped = [[not r for r in row] for row in right]
    for one, other in zip(credit.bonuses(right, equal), credit.bonuses(flipped, equal), strict=True):
        assert one == pytest.approx([-value for value in other])


# ------------------------------------------------------------------------------------------------------------- format


def test_the_released_penalty_drags_a_team_and_ours_does_not():
    """A peer scores −10 at the middle turn: (1 + 0.3 · (1 − 10)/2 + 0.09) / 1.39 = −0.19 for an agent that is right."""
    scores, right = [[1, 1], [1, 0], [1, 1]], [[R, R], [R, W], [R, R]]
    malformed = [[False, False], [False, True], [False, False]]
    paid = pay(PRESETS["released"], scores, right, malformed)
    assert paid.returns[0][0] == pytest.approx(-0.187, abs=1e-3) and paid.format == [[0, 0]] * 3
    ours = pay(dataclasses.replace(PRESETS["paper"], gamma=0.3), scores, right, malformed)
    assert ours.returns[0][0] == pytest.approx((1 + 0.15 + 0.09) / 1.39)
    assert ours.format == [[0, 0], [0, pytest.approx(-0.1)], [0, 0]]


@given(SCORES, st.data())
def test_our_penalty_is_its_authors_alone(scores, data):
    flags = [[data.draw(st.booleans()) for _ in row] for row in scores]
    right = [[score > 0.5 for score in row] for row in scores]
    clean = [[False] * len(row) for row in scores]
    paid, fine = pay(PAPER, scores, right, flags), pay(PAPER, scores, right, clean)
    assert paid.returns == fine.returns and paid.bonuses == fine.bonuses
    assert paid.format == [[-0.1 * flag for flag in row] for row in flags]


def test_candidates_are_paid_for_themselves():
    paid = pay_candidate(PAPER, 0.75, R, False, [W, W, W], 0)
    assert (paid.returns, paid.bonuses, paid.format) == (0.75, 0.1, 0)
    paid = pay_candidate(RELEASED, 0.75, R, True, [W, W, W], 0)
    assert (paid.returns, paid.bonuses, paid.format) == (-10, 0.2, 0)
    assert pay_candidate(PAPER, 0.0, W, True, None, 2).format == -0.1


@pytest.mark.parametrize(
    ("text", "repeating"),
    [
        ("no no no", False),
        ("no no no no", True),
        ("I say yes yes yes but yes", False),
        ("so a b a b a b a b then", True),
        ("a b a b a b a", False),
        ("a a b a a b a a b", False),
        (" ".join(map(str, range(20))) + " ", False),
        ((" ".join(map(str, range(20))) + " ") * 4, True),
        ((" ".join(map(str, range(21))) + " ") * 9, False),
        ("the sum is 10000 \\boxed{10000}", False),
        ("", False),
    ],
)
def test_repetitions(text, repeating):
    assert repeats(text.split()) == repeating


@given(st.lists(st.sampled_from("abc"), max_size=24))
def test_repetitions_are_those_of_a_plain_search(words):
    plain = any(
        words[i : i + n] * 4 == words[i : i + 4 * n]
        for n in range(1, len(words) // 4 + 1)
        for i in range(len(words) - 4 * n + 1)
    )
    assert repeats(words) == plain


def test_malformed_answers():
    assert is_malformed("The answer is 5", None)
    assert is_malformed(r"\boxed{5}", "5", min_words=2) and not is_malformed(r"so \boxed{5}", "5", min_words=2)
    assert is_malformed(r"ha ha ha ha \boxed{5}", "5") and not is_malformed(r"\boxed{5}", "5")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "fair"}, "credit is 'fair', but must be one of: influence"),
        ({"gamma": 1.5}, "gamma is 1.5"),
    ],
)
def test_credit_without_meaning_is_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Credit(**changes)
