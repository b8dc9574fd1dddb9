"""Rewards of coder and tester as pure functions of grading results.

The preset `paper` rewards each role on its own (the code task of AT-GRPO). The preset `cure` rewards the programs and
test cases of one problem against each other (CURE, arXiv 2506.03136). The learner normalizes groups and drops those in
which all rewards are equal.
"""

from __future__ import annotations

from collections.abc import Sequence

PRESETS = ("paper", "cure")

BUILD, RUN, GOLD = 0.1, 0.1, 0.8
VALID, GOOD = 0.2, 0.8


def paper_coder(built: bool, ran: bool, share: float) -> tuple[float, float]:
    """Return the (process, agent) rewards of a program.

    The process reward is 0.1 for valid Python plus 0.1 if it runs. The agent reward is 0.8 times the share of gold
    tests that pass.
    """
    return BUILD * built + RUN * (built and ran), GOLD * share


def paper_tester(right: Sequence[bool], caught: Sequence[bool]) -> tuple[float, float]:
    """Return the (process, agent) rewards of a completion with test cases.

    The process reward is 0.2 if there are any cases. The agent reward is 0.8 × share of correct cases × share of wrong
    programs caught.

    Args:
        right: For each case, whether it is correct, meaning that the gold solution passes it.
        caught: For each wrong program, whether a correct case rejects it. Incorrect cases do not count, because they
            reject correct programs as well. If there are no wrong programs, the share is 1.
    """
    if not right:
        return 0.0, 0.0
    share_right = sum(right) / len(right)
    share_caught = sum(caught) / len(caught) if caught else 1.0
    return VALID, GOOD * share_right * (share_caught if any(right) else 0.0)


def cure_coder(share: float) -> float:
    """Return the share of gold tests that pass."""
    return share


def cure_test(passes: Sequence[bool], right: Sequence[bool]) -> float | None:
    """Return the reward of one test case, given the programs of one problem.

    If every correct program passes the case, the reward is the share of wrong programs that it rejects. Otherwise it is
    minus the share of wrong programs that pass it. Without wrong programs the reward is +1 or -1.

    Args:
        passes: Whether each program passes the case.
        right: Whether each program passes all gold tests.

    Returns:
        The reward, or None if no program is correct.
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
    """Return the mean reward of the test cases in a completion.

    A completion without a case is treated as a case that no program passes. Without correct programs all completions
    get reward 0, so their group provides no learning signal.

    Args:
        cases: For each case, whether each program passes it.
        right: Whether each program passes all gold tests.
    """
    rewards = [cure_test(passes, right) for passes in cases or [[False] * len(right)]]
    known = [reward for reward in rewards if reward is not None]
    return sum(known) / len(known) if known else 0.0
