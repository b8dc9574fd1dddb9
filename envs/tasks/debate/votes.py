"""The vote of a debate, and what is measured of one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from envs.tasks.replies import Verdict


def winners(answers: Sequence[str | None]) -> list[str | None]:
    """The answers that most agents give, in the order of the agents; several where they tie.

    No answer (None) is counted like any other, but leaves a tie in which there is an answer.
    """
    counts = Counter(answers)
    most = max(counts.values())
    top = [answer for answer, n in counts.items() if n == most]
    return [answer for answer in top if answer is not None] or top


def vote(verdicts: Sequence[Verdict]) -> float:
    """How right the vote is: 1 or 0, and 1/n for a right answer that ties with n − 1 others."""
    top = winners([v["answer"] for v in verdicts])
    right = {v["answer"] for v in verdicts if v["right"] and v["answer"] is not None}
    return len(right & set(top)) / len(top)


def agree(answers: Sequence[str | None]) -> bool:
    """Whether all give the same answer."""
    return None not in answers and len(set(answers)) == 1


def consensus(turns: Sequence[Sequence[str | None]]) -> bool:
    """Whether a debate is over after these turns: all agree; a single agent repeats its last answer."""
    if len(turns[-1]) > 1:
        return agree(turns[-1])
    return len(turns) > 1 and agree([turns[-2][0], turns[-1][0]])


def metrics(verdicts: Sequence[Sequence[Verdict]], turns: int) -> dict[str, float]:
    """Metrics of a debate of at most `turns` turns; verdicts[t][a].

    accuracy_turn_t    share of agents that are right
    vote_turn_t        how right a vote after that turn would be
    agreement_turn_t   whether all give the same answer
    right_to_wrong …   share of all pairs of an agent's consecutive answers
    parse_failure      share of answers that cannot be read

    Agents keep their answers where a debate ends early.
    """
    verdicts = [*verdicts, *[verdicts[-1]] * (turns - len(verdicts))]
    found = {}
    for t, row in enumerate(verdicts):
        found[f"accuracy_turn_{t + 1}"] = sum(bool(v["right"]) for v in row) / len(row)
        found[f"vote_turn_{t + 1}"] = vote(row)
        found[f"agreement_turn_{t + 1}"] = float(agree([v["answer"] for v in row]))
    changes = Counter(
        (bool(one["right"]), bool(other["right"]))
        for now, then in zip(verdicts, verdicts[1:], strict=False)
        for one, other in zip(now, then, strict=True)
    )
    if changes:
        words = {True: "right", False: "wrong"}
        for before in words:
            for after in words:
                found[f"{words[before]}_to_{words[after]}"] = changes[before, after] / changes.total()
    answers = [v["answer"] for row in verdicts for v in row]
    found["parse_failure"] = answers.count(None) / len(answers)
    return found
