"""The planning task: a tool agent writes programs, a plan agent decides on actions.

A turn of the form "team" is sequential, as in PettingLLMs (AT-GRPO, arXiv 2510.11062). The tool agent writes one
```python block that prints `**Actions List**: […]`. The program runs in the sandbox, with the level in global
variables, which it can also import from `level`. The plan agent reads the level, the program, its output and its list,
and ends with `#### […]`. Only this list acts. In the form "tool", one agent writes the program, whose list acts. In the
form "plan", one agent without a tool writes the list.

The episode ends when the level is solved, or after the last turn. A list that does not solve the level has no lasting
effect: the next turn begins from the same start and shows what happened. Each turn is a new conversation.

Rewards: the quality of a list is 1 if it solves the level, otherwise `progress` times the achieved share of the
solution, and 0 without a readable list. A list that acts earns a team reward of `alpha` times its quality. Every
completion earns its own quality as an agent reward, and a process reward of -`penalty` without a readable list. So a
completion earns between -`penalty` and 1 + `alpha`. If the run samples K candidates (AT-GRPO), each of them is graded
and rewarded, and one is continued; the tool agent of a team then learns only from the quality of its lists.
Otherwise only the last turn is rewarded, so that more turns never earn more, and both agents get the team reward.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from envs.tasks.chat import CONTINUATIONS, Chat, keep_one
from envs.tasks.data import Dataset
from envs.tasks.planning import prompts
from envs.tasks.planning.actions import FINAL, show
from envs.tasks.planning.attempts import KINDS, PROGRAM_FAILURES, UNPARSED, Attempt, attempt_by_program, checked
from envs.tasks.planning.levels import SIZES, Level, splits, variables
from envs.tasks.replies import Reply
from envs.tasks.sandbox import shared_sandbox
from envs.tasks.task import Ask, Outcome, Task, check_params, check_split

FORMS = ("team", "tool", "plan")
SANDBOXES = ("auto", "process")
MAX_TURNS = 5


@dataclasses.dataclass(frozen=True)
class Planning(Task):
    """Planning puzzles for a tool agent and a plan agent, or for one agent.

    Attributes:
        game: "plan_path", "sokoban" or "sudoku".
        form: "team" for both agents; "tool" or "plan" for one agent with or without a program.
        turns: Maximum number of turns, 1 to 5.
        size: Side of the grid; 0 for the published size, which is 10, 6 or 4.
        walls: Share of cells that are walls; None for the game's default.
        boxes: Number of boxes in Sokoban.
        seed: Random seed of the levels.
        n_train: Number of train levels.
        n_validation: Number of validation levels.
        n_test: Number of test levels.
        pool: File with levels that the game can load; "" to generate them.
        alpha: Weight of the team reward.
        progress: Quality of a list that achieves everything but the solution.
        penalty: Amount subtracted for a completion without a readable list.
        continuation: Which candidate is kept: "best", "random" or "first".
        sandbox: "auto" for real isolation or an error; "process" for limits only, for trusted programs.
        wall: Time limit of a program in seconds.
    """

    game: str = "plan_path"
    form: str = "team"
    turns: int = 4
    size: int = 0
    walls: float | None = None
    boxes: int = 1
    seed: int = 0
    n_train: int = 2048
    n_validation: int = 128
    n_test: int = 512
    pool: str = ""
    alpha: float = 1.0
    progress: float = 0.2
    penalty: float = 0.5
    continuation: str = "best"
    sandbox: str = "auto"
    wall: float = 3.0

    def __post_init__(self):
        choices = dict(game=tuple(SIZES), form=FORMS, continuation=CONTINUATIONS, sandbox=SANDBOXES)
        ranges = dict(
            turns=(1, MAX_TURNS), size=(0, 16), boxes=(1, 5), n_train=(1, 10**6), n_validation=(1, 10**6),
            n_test=(1, 10**6), alpha=(0, 10), progress=(0, 1), penalty=(0, 10), wall=(0.1, 60),
        )  # fmt: skip
        check_params(self, choices, ranges)

    @property
    def roles(self) -> tuple[str, ...]:
        """Names of the roles."""
        return {"team": ("tool_agent", "plan_agent"), "tool": ("tool_agent",), "plan": ("plan_agent",)}[self.form]

    def examples(self, part: str) -> Dataset:
        """Return the levels of a split.

        Raises:
            DataError: If the levels cannot be generated or read, or if a level has no solution.
        """
        check_split(part)
        size = self.size or SIZES[self.game]
        counts = self.n_train, self.n_validation, self.n_test
        return splits(self.game, size, self.walls, self.boxes, self.seed, *counts, self.pool)[part]

    def prepare(self) -> None:
        """Start the sandbox if programs are run.

        Raises:
            SandboxUnavailable: This machine does not allow isolation.
        """
        if self.form != "plan":
            shared_sandbox(self.sandbox)

    async def play(self, ask: Ask, example: Level) -> Outcome:
        """Play up to `turns` turns from the same start."""
        turns: list[_Turn] = []
        for _ in range(self.turns):
            turns.append(await _Turn(self, ask, example).play(turns[-1] if turns else None))
            if turns[-1].acting.solved:
                break
        if ask.candidates == 1:
            for attempts in turns[-1].replies.values():
                for reply, attempt, acts in attempts:
                    self.reward(reply, attempt, acts)
        acting = turns[-1].acting
        return Outcome(
            success=acting.solved, reason="solved" if acting.solved else "turns", metrics=self._metrics(turns),
            answer=None if acting.actions is None else show(acting.actions),
        )  # fmt: skip

    def reward(self, reply: Reply, attempt: Attempt, acts: bool) -> None:
        """Add the rewards of a completion.

        Args:
            reply: The completion.
            attempt: Its verdict.
            acts: Whether its list acts, or would act if it were kept.
        """
        quality = 1.0 if attempt.solved else self.progress * attempt.progress
        unreadable = attempt.kind in UNPARSED
        reply.reward(team=self.alpha * quality * acts, agent=quality, process=-self.penalty * unreadable)

    def _metrics(self, turns: Sequence[_Turn]) -> dict[str, float]:
        """Return the metrics of an episode.

        `ROLE_right` and `ROLE_KIND` describe the completion that was kept in the last turn. `ROLE_rate` is the share of
        all candidates in the first turn whose own list solves the level, for the plan agent after the program that was
        kept.
        """
        solved = [float(turn.acting.solved) for turn in turns]
        solved += [solved[-1]] * (self.turns - len(solved))
        metrics = {f"solved_turn_{t + 1}": value for t, value in enumerate(solved)} if self.turns > 1 else {}
        metrics |= {"turns": float(len(turns)), "progress": turns[-1].acting.progress}
        for role, kept in turns[-1].kept.items():
            first = [attempt.solved for _, attempt, _ in turns[0].replies[role]]
            metrics |= {f"{role}_right": float(kept.solved), f"{role}_rate": sum(first) / len(first)}
            metrics[f"{role}_unparsed"] = float(kept.kind in UNPARSED)
            kinds = [kind for kind in KINDS if kind != "solved" and (role == "tool" or kind not in PROGRAM_FAILURES)]
            metrics |= {f"{role}_{kind}": float(kept.kind == kind) for kind in kinds}
        return metrics


class _Turn:
    """One turn of an episode.

    Attributes:
        kept: Verdict on the completion that was kept, by role ("tool", "plan").
        replies: (completion, verdict, whether its list acts) of all candidates, by role.
    """

    def __init__(self, task: Planning, ask: Ask, level: Level):
        self._task, self._ask, self._level = task, ask, level
        self.kept: dict[str, Attempt] = {}
        self.replies: dict[str, list[tuple[Reply, Attempt, bool]]] = {}

    @property
    def acting(self) -> Attempt:
        """Verdict on the list that acts."""
        return self.kept["tool" if self._task.form == "tool" else "plan"]

    async def play(self, last: _Turn | None) -> _Turn:
        """Play the turn of each role after the last turn, if there was one."""
        form, level = self._task.form, self._level
        if form != "plan":
            chat = self._ask.chat(0, system=prompts.TOOL)
            text = prompts.tool(level, "" if last is None else last.shown(last.tried(own=True)))
            await self._say("tool", chat, text, self._run, acts=form == "tool")
        if form != "tool":
            chat = self._ask.chat(len(self._task.roles) - 1, system=prompts.PLAN)
            # Only this turn's program is shown, so that prompts stay short.
            text = prompts.plan(level, "" if last is None else last.shown(""), self.tried(own=False))
            await self._say("plan", chat, text, self._plan, acts=True)
        return self

    def shown(self, tried: str) -> str:
        """Describe the turn for the next one, with `tried` as the description of its program."""
        return prompts.after_turn(tried, self.acting.actions, self.acting.reason)

    def tried(self, own: bool) -> str:
        """Describe the program that was kept, or return "" without a tool agent."""
        kept = self.kept.get("tool")
        return "" if kept is None else prompts.program(kept.program, kept.result, kept.actions, kept.reason, own)

    async def _say(
        self, role: str, chat: Chat, text: str, judge: Callable[[int, Reply], Awaitable[Attempt]], acts: bool
    ) -> None:
        """Sample the candidates of a role, grade them concurrently and keep one."""
        reply = await chat.say(text, n=self._ask.candidates)
        attempts = await asyncio.gather(*(judge(k, candidate) for k, candidate in enumerate(reply.replies)))
        for candidate, attempt in zip(reply.replies, attempts, strict=True):
            answer = None if attempt.actions is None else show(attempt.actions)
            candidate.judge(attempt.solved, answer, attempt.reason)
            if self._ask.candidates > 1:
                self._task.reward(candidate, attempt, acts)
        kept = keep_one(self._ask, chat, reply, self._task.continuation)
        self.kept[role] = attempts[reply.replies.index(kept)]
        self.replies[role] = [(one, attempt, acts) for one, attempt in zip(reply.replies, attempts, strict=True)]

    async def _plan(self, k: int, reply: Reply) -> Attempt:
        return checked(self._level, reply.text, FINAL)

    async def _run(self, k: int, reply: Reply) -> Attempt:
        sandbox, wall, given = shared_sandbox(self._task.sandbox), self._task.wall, variables(self._level)
        return await attempt_by_program(self._ask, self._level, reply.text, sandbox, wall, given, f"program_{k}")
