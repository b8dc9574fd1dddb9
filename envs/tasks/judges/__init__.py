"""Judges: comparison of completions by a rule, a reward model or a language model.

    judge = LanguageJudge(ChatClient("http://127.0.0.1:8000/v1", "solver"), version="step 200")
    verdict = await judge.compare("Write a haiku.", first, second, criterion="creativity")
    verdict.p         # probability that the first text is better
    verdict.flipped   # whether the verdict changed with the order

Every comparison is made in both orders. A verdict that changes with the order is a tie. `VerdictCache` keeps the
answers of a judge on disk, and `report` measures agreement and biases.

- `judge`: The interface, comparisons in both orders, and rankings.
- `kinds`: Judges by rule, by scores and by a language model, and the client of an OpenAI-compatible endpoint.
- `cache`: Answers of judges on disk.
- `report`: Agreement with a rule, and biases by position, length and author.
- `rewards`: Rewards from verdicts, for the task `dataset`.
- `referee`: The judge of a run, which rewards the episodes of a task.
"""

from envs.tasks.judges.cache import VerdictCache
from envs.tasks.judges.judge import CRITERIA, BadVerdict, Judge, Verdict
from envs.tasks.judges.kinds import ChatClient, LanguageJudge, RuleJudge, ScoreJudge
from envs.tasks.judges.referee import Contest, Referee, Ruling, ruled
from envs.tasks.judges.report import Comparison, report
from envs.tasks.judges.rewards import GroupReward, ReferenceReward, ScoreReward

__all__ = [
    "CRITERIA", "BadVerdict", "ChatClient", "Comparison", "Contest", "GroupReward", "Judge", "LanguageJudge",
    "Referee", "ReferenceReward", "RuleJudge", "Ruling", "ScoreJudge", "ScoreReward", "Verdict", "VerdictCache",
    "report", "ruled",
]  # fmt: skip
