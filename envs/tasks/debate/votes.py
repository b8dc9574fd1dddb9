"""The vote of a debate, and metrics of debates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envs.tasks.replies import Verdict


def winners(answers: Sequence[str | None]) -> list[str | None]:
    """Return the most frequent answers in the order of the agents, several for a tie.

    A missing answer (None) counts like any other, but loses a tie against an answer.
    """
    counts = Counter(answers)
    most = max(counts.values())
    top = [answer for answer, n in counts.items() if n == most]
    return [answer for answer in top if answer is not None] or top


def vote(verdicts: Sequence[Verdict]) -> float:
    """Return how right the vote is, from 0 to 1.

    A right answer that ties with n − 1 others gives 1/n.
    """
    top = winners([v["answer"] for v in verdicts])
    right = {v["answer"] for v in verdicts if v["right"] and v["answer"] is not None}
    return len(right & set(top)) / len(top)


def agree(answers: Sequence[str | None]) -> bool:
    """Return whether all agents give the same answer."""
    return None not in answers and len(set(answers)) == 1


def consensus(turns: Sequence[Sequence[str | None]]) -> bool:
    """Return whether a debate is over after these turns.

    It is over when all agents agree, or when a single agent repeats its last answer.
    """
    if len(turns[-1]) > 1:
        return agree(turns[-1])
    return len(turns) > 1 and agree([turns[-2][0], turns[-1][0]])


def metrics(verdicts: Sequence[Sequence[Verdict]], turns: int) -> dict[str, float]:
    """Compute the metrics of a debate of at most `turns` turns.

    - `accuracy_turn_t`: Fraction of agents that are right.
    - `vote_turn_t`: How right a vote after that turn would be.
    - `agreement_turn_t`: Whether all agents give the same answer.
    - `right_to_wrong` …: Fraction of all pairs of an agent's consecutive answers.
    - `parse_failure`: Fraction of answers that cannot be read.

    If a debate ends early, agents keep their answers.

    Args:
        verdicts: [t][a].
        turns: Maximum number of turns.
    """
    verdicts = [*verdicts, *[verdicts[-1]] * (turns - len(verdicts))]
    result = {}
    for t, row in enumerate(verdicts):
        result[f"accuracy_turn_{t + 1}"] = sum(bool(v["right"]) for v in row) / len(row)
        result[f"vote_turn_{t + 1}"] = vote(row)
        result[f"agreement_turn_{t + 1}"] = float(agree([v["answer"] for v in row]))
    changes = Counter(
        (bool(one["right"]), bool(other["right"]))
        for now, then in zip(verdicts, verdicts[1:], strict=False)
        for one, other in zip(now, then, strict=True)
    )
    if changes:
        words = {True: "right", False: "wrong"}
        for before in words:
            for after in words:
                result[f"{words[before]}_to_{words[after]}"] = changes[before, after] / changes.total()
    answers = [v["answer"] for row in verdicts for v in row]
    result["parse_failure"] = answers.count(None) / len(answers)
    return result
