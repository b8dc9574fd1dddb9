"""Rewards of coder and tester, as pure functions of what the sandbox found.

`paper` rewards each role by itself (AT-GRPO's code task), `cure` the programs and tests of one problem against each
other (CURE, arXiv 2506.03136). Groups are normalised, and dropped where all are equal, by the learner.
"""

from __future__ import annotations

from collections.abc import Sequence

PRESETS = ("paper", "cure")

BUILD, RUN, GOLD = 0.1, 0.1, 0.8
VALID, GOOD = 0.2, 0.8


def paper_coder(built: bool, ran: bool, share: float) -> tuple[float, float]:
    """(process, agent): 0.1 if the program is Python and 0.1 if it runs; 0.8 × share of the gold tests that pass."""
    return BUILD * built + RUN * (built and ran), GOLD * share


def paper_tester(right: Sequence[bool], caught: Sequence[bool]) -> tuple[float, float]:
    """(process, agent) of an answer with test cases: 0.2 if there are any; 0.8 × share right × share caught.

    right   for every case, whether it is right: the gold solution passes it
    caught  for every wrong program, whether a right case rejects it; a wrong case rejects good programs as well, so
            that what it catches does not count. Without wrong programs all are caught.
    """
    if not right:
        return 0.0, 0.0
    share_right = sum(right) / len(right)
    share_caught = sum(caught) / len(caught) if caught else 1.0
    return VALID, GOOD * share_right * (share_caught if any(right) else 0.0)


def cure_coder(share: float) -> float:
    """The share of the gold tests that pass."""
    return share


def cure_test(passes: Sequence[bool], right: Sequence[bool]) -> float | None:
    """The reward of one test case, from n programs of one problem.

    passes  whether each program passes the case
    right   whether each program passes all gold tests

    If every right program passes it: the share of wrong programs that it rejects. Otherwise: minus the share of wrong
    ones that it lets through. Without wrong programs +1 and -1; without right ones None, as nothing is known.
    """
    if not any(right):
        return None
    good = all(p for p, r in zip(passes, right, strict=True) if r)
    wrong = [p for p, r in zip(passes, right, strict=True) if not r]
    if not wrong:
        return 1.0 if good else -1.0
    through = sum(wrong) / len(wrong)
    return 1.0 - through if good else -through


def cure_tester(cases: Sequence[Sequence[bool]], right: Sequence[bool]) -> float:
    """The reward of an answer with several cases: their mean; passes of each case as for `cure_test`.

    An answer without a case is one that no program passes. Without right programs the reward is 0 for all answers, and
    their group has nothing to compare.
    """
    rewards = [cure_test(passes, right) for passes in cases or [[False] * len(right)]]
    known = [reward for reward in rewards if reward is not None]
    return sum(known) / len(known) if known else 0.0
