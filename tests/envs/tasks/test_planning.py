"""The planning task: lists of actions, the games' rules, episodes with known rewards, programs in the sandbox."""

import functools
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import jax
import numpy as np
import pytest

from configs import planning_team as forms
from configs import published
from envs.games.plan_path import levels as path_levels
from envs.games.plan_path.rules import PlanPath
from envs.games.pools import Levels, Pool, save
from envs.games.sokoban import levels as box_levels
from envs.games.sokoban.rules import Sokoban
from envs.games.sudoku.rules import Sudoku
from envs.tasks.data import DataError
from envs.tasks.math import tool
from envs.tasks.planning import attempts, prompts, rules, task
from envs.tasks.planning.actions import FINAL, LONGEST, PRINTED, read_actions
from envs.tasks.planning.attempts import KINDS, UNPARSED
from envs.tasks.planning.levels import SIZES, splits, variables
from envs.tasks.planning.task import Planning
from envs.tasks.replies import CallFailed, CallTimeout
from envs.tasks.sandbox import Sandbox, SandboxUnavailable
from envs.tasks.scripted import ScriptedAsk, play
from envs.tasks.task import SPLITS
from experiments import planning_team
from marl_jax.schema import validate
from tests.conftest import nightly_cases

ROOT = Path(__file__).parents[3]
FEW = dict(n_train=48, n_validation=16, n_test=24)
PATH = {
    "game": "plan_path", "grid": ["S.#", ".#.", "..G"], "budget": 12, "distance": [[4, 5, -1], [3, -1, 1], [2, 1, 0]],
}  # fmt: skip
BOX = {
    "game": "sokoban", "grid": ["#####", "#@$.#", "#   #", "#####"], "budget": 12,
    "pushes": [[-1] * 5, [-1, -1, 1, 0, -1], [-1] * 5, [-1] * 5],
}  # fmt: skip
SIDE_BY_SIDE = {
    "game": "sokoban", "grid": ["######", "#    #", "#@$$ #", "# .. #", "#    #", "######"], "budget": 32,
    "pushes": [[1] * 6] * 6,
}  # fmt: skip
SPARE_GOAL = {
    "game": "sokoban", "grid": ["######", "#@ $.#", "#   .#", "######"], "budget": 16, "pushes": [[1] * 6] * 4,
}  # fmt: skip
DIGITS = {
    "game": "sudoku", "grid": [[0, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 0]], "budget": 16,
    "solution": [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 1]],
}  # fmt: skip
RIGHT = ["D", "D", "R", "R"]
GOOD, HALF, WALL, LOST = "#### [D, D, R, R]", "#### [D, D]", "#### [R, D]", "no list"


def prints(text):
    """Write a program that the fake sandbox of `stand_in` knows."""
    return f"So:\n```python\nprint({text!r})\n```"


TOOL_GOOD, TOOL_HALF = prints(f"{PRINTED}: {RIGHT}"), prints(f"{PRINTED}: ['D', 'D']")


@pytest.fixture
def stand_in(monkeypatch):
    """Fake a sandbox that knows only the programs of `prints`; return the programs that ran."""
    ran = []

    def run(sandbox, program, wall):
        ran.append(program)
        if "crash" in program:
            return {"status": "error", "stdout": "", "stderr": "NameError: crash", "limit": None}
        if "loop" in program:
            return {"status": "limit", "stdout": "", "stderr": "", "limit": "wall"}
        printed = []
        program = program.replace("exec(compile(", "run(").replace(", 'program.py', 'exec'), ", ", ")
        exec(program, {"run": lambda source, names: eval(source, {"print": printed.append})})
        return {"status": "ok", "stdout": "\n".join(printed), "stderr": "", "limit": None}

    monkeypatch.setattr(task, "shared_sandbox", lambda mode: types.SimpleNamespace(settings={}))
    monkeypatch.setattr(tool, "run_program", run)
    monkeypatch.setitem(sys.modules, "level", None)  # programs set it
    return ran


def script(*replies):
    """Return completions in order of the prompts; a list has one per candidate."""
    left, at = list(replies), {}

    def answer(seat, messages, k):
        if k == 0:
            at["now"] = left.pop(0)
        return at["now"] if isinstance(at["now"], str) else at["now"][k]

    return answer


def rewards(ask):
    return [(seat, r.rewards.team, round(r.rewards.agent, 6), r.rewards.process) for seat, _, r in ask.replies]


# ---------------------------------------------------------------------------------------------------- lists of actions


@pytest.mark.parametrize(
    ("text", "actions"),
    [
        ("#### ['U', 'D']", ["U", "D"]), ('so\n#### ["L"]\n', ["L"]), ("####[U, R]", ["U", "R"]), ("#### []", []),
        ("#### ['L']\nNo:\n#### ['R']", ["R"]), ("#### The list:\n```\n['U',\n 'D']\n```", ["U", "D"]),
    ],
)  # fmt: skip
def test_the_last_list_is_read(text, actions):
    assert read_actions(text, FINAL, PATH).actions == actions


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ("['U']", "no_list", "there is no ####"), ("#### U, D", "no_list", "no list follows ####"),
        ("#### ['U'", "no_list", "no list"), ("#### " + "x" * 80 + "['U']", "no_list", "no list"),
        ("#### [" + "'U'," * LONGEST + "]", "no_list", "no list"), ("#### [[[[1]]]]", "no_list", "no list"),
        ("#### [" + "-" * 3000 + "1]", "no_list", "no list"), ("#### [f(1)]", "no_list", "no list"),
        ("#### ['U', 'up']", "unknown_action", "action 2 is 'up', but must be one of: U, D, L, R"),
        ("#### [0, 1]", "unknown_action", "action 1 is 0"), ("#### [['U']]", "unknown_action", "action 1 is"),
    ],
)  # fmt: skip
def test_lists_that_cannot_be_read_say_why(text, kind, words):
    read = read_actions(text, FINAL, PATH)
    assert (read.actions, read.kind) == (None, kind) and words in read.reason


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[1, 2, 3, 4]]", "the grid has 1 rows, but must have 4"),
        ("[[1, 2, 3], [1], [2], [3]]", "row 1 is [1, 2, 3], but must be a list of 4 digits"),
        ("[[1, 2, 3, 5], [1], [2], [3]]", "row 1 has 5, but must have digits from 1 to 4"),
        ("[[1, 2, 3, True], [1], [2], [3]]", "row 1 has True"), ("['U', 'D', 'L', 'R']", "row 1 is 'U'"),
    ],
)  # fmt: skip
def test_a_sudoku_answer_is_a_complete_grid(text, words):
    read = read_actions(f"{PRINTED}: {text}", PRINTED, DIGITS)
    assert read.kind == "unknown_action" and words in read.reason
    assert read_actions(f"{PRINTED}: {DIGITS['solution']}", PRINTED, DIGITS).actions == DIGITS["solution"]


# ---------------------------------------------------------------------------------------------------- rules


@pytest.mark.parametrize(
    ("level", "actions", "kind", "progress", "words"),
    [
        (PATH, RIGHT, "solved", 1, "goal after 4 moves"), (PATH, [*RIGHT, "R"], "solved", 1, "after 4 moves"),
        (PATH, ["D", "D"], "unsolved", 0.5, "ends in row 3, column 1"), (PATH, [], "unsolved", 0, "row 1, column 1"),
        (PATH, ["D", "D", "L", "R", "R"], "illegal_action", 0.5, "Move 3 (L) leaves the grid, which ends the plan."),
        (PATH, ["R", "D", "L"], "illegal_action", 0, "Move 2 (D) runs into a wall"),
        (PATH, ["D", "U"] * 6 + RIGHT, "unsolved", 0, "The limit is 12 moves."),
        (BOX, ["R"], "solved", 1, "after 1 moves"), (BOX, ["D"], "unsolved", 0, "1 of 1 boxes are not on a goal"),
        (BOX, ["U"], "illegal_action", 0, "runs into a wall"),
        (BOX, ["D", "R", "U"], "illegal_action", 0, "Move 3 (U) pushes a box that cannot move"),
        (DIGITS, DIGITS["solution"], "solved", 1, "complete"),
        (DIGITS, [[1, 2, 3, 4], [3, 4, 1, 2], [2, 1, 4, 3], [4, 3, 2, 2]], "unsolved", 0.5, "Row 4 repeats a digit"),
        (DIGITS, [[2, 1, 4, 3], [4, 3, 2, 1], [1, 2, 3, 4], [3, 4, 1, 2]], "illegal_action", 0, "The given 2 in row 1"),
    ],
)  # fmt: skip
def test_the_result_of_a_list(level, actions, kind, progress, words):
    result = rules.check(level, actions)
    assert (result.kind, result.progress, result.solved) == (kind, progress, kind == "solved")
    assert words in result.reason and kind in KINDS


@functools.cache
def walked(game):
    """Compile a function that plays moves int [T] and returns where each leads, whether it is blocked, and success."""

    def one(state, action):
        after, _ = game.step(state, action)
        before = state.position, game.success(state)
        return after, (after.position == before[0]) & ~before[1] & ~game.done(state), game.success(after)

    def scan(index, actions):
        def step(state, action):
            state, blocked, success = one(state, action)
            return state, (blocked, success)

        return jax.lax.scan(step, game.reset_level(index), actions)[1]

    return jax.jit(jax.vmap(scan))


@pytest.mark.parametrize("name", ["plan_path", "sokoban"])
def test_moves_agree_with_the_games_rules(name):
    """Random plans, half of them the solver's with a change, until the first blocked move."""
    size = 6
    rows = splits(name, size, None, 1, 0, **FEW)["test"]
    game = (PlanPath if name == "plan_path" else Sokoban)(size=size, n_train=64, n_test=FEW["n_test"], part="test")
    assert game.max_turns == rows[0]["budget"]
    rng = np.random.default_rng(0)
    index = np.repeat(np.arange(len(rows)), 12)
    plans = rng.integers(0, 4, (len(index), game.max_turns + 4))
    for i, level in enumerate(index):
        if i % 2:
            solution = _solution(game, level)
            plans[i, : len(solution)] = solution
            plans[i, rng.integers(0, len(solution))] = rng.integers(0, 4)
    blocked, success = jax.device_get(walked(game)(index, plans))
    for i, level in enumerate(index):
        legal = int(np.argmax(blocked[i])) if blocked[i].any() else plans.shape[1]
        solved = bool(success[i, :legal].any())
        result = rules.check(rows[int(level)], ["UDLR"[action] for action in plans[i]])
        assert result.solved == solved and (result.kind == "illegal_action") == (not solved and blocked[i].any())
    assert 0.1 < success.any(axis=1).mean() < 0.9


def _solution(game, index):
    if game.name == "sokoban":
        from envs.games.sokoban.solver import solve

        return solve(game.levels["cells"][index])
    distance, moves, cell = game.levels["distance"][index], [], int(game.levels["start"][index])
    row, column = divmod(cell, distance.shape[1])
    while distance[row, column]:
        for action, (down, right) in enumerate(box_levels.STEPS):
            r, c = row + down, column + right
            if min(r, c) >= 0 and max(r, c) < len(distance) and distance[r, c] == distance[row, column] - 1:
                moves, row, column = [*moves, action], r, c
                break
    return moves


def test_grids_agree_with_the_rules_of_sudoku():
    """Writing the digits of a grid into the empty cells solves the game if and only if the grid is right."""
    rows = splits("sudoku", 4, None, 1, 0, **FEW)["test"]
    game = Sudoku(n_train=64, n_test=FEW["n_test"], part="test")
    play_all = jax.jit(lambda state, actions: jax.lax.scan(lambda s, a: (game.step(s, a)[0], None), state, actions)[0])
    rng = np.random.default_rng(0)
    for i in range(12):
        puzzle, grid = np.array(rows[i]["grid"]), np.array(rows[i]["solution"])
        empty = np.argwhere(puzzle == 0)
        if i % 2:
            row, column = empty[rng.integers(0, len(empty))]
            grid[row, column] = grid[row, column] % 4 + 1
        writes = [int((4 * r + c) * 4 + grid[r, c] - 1) for r, c in empty]
        state = play_all(game.reset_level(i), np.array(writes + writes[:1] * (16 - len(writes))))
        assert rules.check(rows[i], grid.tolist()).solved == bool(game.success(state)) == (i % 2 == 0)


# ---------------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize("game", SIZES)
def test_levels_are_disjoint_and_repeatable(game):
    made = Planning(game=game, **FEW)
    parts = {part: made.examples(part) for part in SPLITS}
    assert len(parts["train"]) + len(parts["validation"]) == 64 and len(parts["test"]) == 24
    assert 16 <= len(parts["validation"]) <= 20  # equivalent levels stay in one split
    keys = [{row["key"] for row in rows} for rows in parts.values()]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    splits.cache_clear()
    assert made.examples("train").fingerprint == parts["train"].fingerprint
    assert all(len(row["grid"]) == SIZES[game] for row in parts["test"])
    with pytest.raises(ValueError, match="part is 'dev'"):
        made.examples("dev")


def test_levels_without_a_solution_are_rejected(tmp_path):
    stuck = box_levels.make_levels(box_levels.parse("#####\n#$ @#\n#  .#\n#   #\n#####"))
    save(Pool("sokoban", Levels(stuck), box_levels.generate(5, n_train=4, n_test=4).test), tmp_path / "boxes.npz")
    with pytest.raises(DataError, match="level 0: the boxes cannot reach the goals, but every level must have a sol"):
        Planning(game="sokoban", pool=str(tmp_path / "boxes.npz")).examples("train")
    pool = path_levels.generate(size=5, n_train=20, n_test=8)
    closed = dict(pool.test.arrays) | {"distance": np.where(pool.test["distance"] > 0, 9999, pool.test["distance"])}
    save(Pool("plan_path", pool.train, Levels(closed)), tmp_path / "pool.npz")
    with pytest.raises(DataError, match="level 0 has no path from its start"):
        Planning(pool=str(tmp_path / "pool.npz")).examples("test")
    with pytest.raises(DataError, match="no such file"):
        Planning(pool=str(tmp_path / "missing.npz")).examples("test")
    with pytest.raises(DataError, match="plan_path: size is 3, but must be an integer from 5 to 16"):
        Planning(size=3).examples("test")


def test_the_task_does_not_import_jax():
    code = "import sys\nimport envs.tasks.planning.task\nassert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, timeout=60)


# ---------------------------------------------------------------------------------------------------- episodes


def test_only_the_plan_agents_list_acts(stand_in):
    outcome, ask = play(Planning(turns=1), PATH, script(TOOL_GOOD, HALF))
    assert not outcome.success and outcome.reason == "turns" and outcome.problem() is None
    assert rewards(ask) == [(0, 0, 1, 0), (1, 0.1, 0.1, 0)]
    assert (outcome.metrics["tool_right"], outcome.metrics["plan_right"]) == (1, 0)
    outcome, ask = play(Planning(turns=1), PATH, script(TOOL_HALF, GOOD))
    assert outcome.success and outcome.reason == "solved" and outcome.answer == '["D", "D", "R", "R"]'
    assert rewards(ask) == [(0, 0, 0.1, 0), (1, 1, 1, 0)]


def test_the_plan_agent_reads_the_program_its_output_and_its_list(stand_in):
    seen = []

    def answer(seat, messages, k):
        seen.append((seat, messages[-1]["content"]))
        return (TOOL_HALF, WALL if len(seen) < 3 else GOOD)[seat]

    outcome, ask = play(Planning(), PATH, answer)
    assert [seat for seat, _ in seen] == [0, 1, 0, 1] and outcome.metrics["turns"] == 2
    assert "S.#\n.#.\n..G" in seen[0][1] and "failed" not in seen[0][1] + seen[1][1]
    for words in ("S.#", "print(", "printed:", 'Its list: ["D", "D"]', "#### "):
        assert words in seen[1][1]
    for words in ("Your program", 'The list ["R", "D"] was played: Move 2 (D) runs into a wall', "same start"):
        assert words in seen[2][1]
    assert seen[3][1].count("program") == 1 and "was played" in seen[3][1]
    assert all(r.rewards.team == r.rewards.agent == 0 for _, _, r in ask.replies[:2])  # only the last turn is rewarded
    assert [outcome.metrics[f"solved_turn_{t}"] for t in (1, 2, 3, 4)] == [0, 1, 1, 1]


@pytest.mark.parametrize(
    ("reply", "kind", "said"),
    [
        ("no program", "no_program", "The tool agent wrote no program."),
        (prints("crash"), "not_run", "It has no list: the program ended with error."),
        (prints("loop"), "not_run", "It has no list: the program ended with wall."),
        (prints(""), "no_output", "It has no list: the program printed nothing."),
        (prints("done"), "no_list", "It has no list: there is no **Actions List**."),
        (prints(f"{PRINTED}: ['up']"), "unknown_action", "It has no list: action 1 is 'up'"),
        (prints(f"{PRINTED}: ['U']"), "illegal_action", 'Its list: ["U"]'),
    ],
)
def test_programs_that_fail_are_counted_with_their_reason(reply, kind, said, stand_in):
    seen = []

    def answer(seat, messages, k):
        seen.append(messages[-1]["content"])
        return (reply, LOST)[seat]

    outcome, ask = play(Planning(turns=1), PATH, answer)
    assert outcome.metrics[f"tool_{kind}"] == 1 and outcome.metrics["tool_unparsed"] == (kind in UNPARSED)
    assert outcome.metrics["plan_no_list"] == outcome.metrics["plan_unparsed"] == 1 and outcome.answer is None
    assert rewards(ask)[0] == (0, 0, 0, -0.5 * (kind in UNPARSED)) and rewards(ask)[1] == (1, 0, 0, -0.5)
    assert said in seen[1] and ask.replies[1][2].verdict["reason"] == "there is no ####"


def test_one_agent_with_and_without_the_tool(stand_in):
    outcome, ask = play(Planning(form="tool"), PATH, script("none", TOOL_HALF, TOOL_GOOD))
    assert outcome.success and outcome.metrics["turns"] == 3 and "plan_right" not in outcome.metrics
    assert rewards(ask) == [(0, 0, 0, 0), (0, 0, 0, 0), (0, 1, 1, 0)]
    outcome, ask = play(Planning(form="plan"), PATH, script(HALF, GOOD))
    assert outcome.success and rewards(ask)[-1] == (0, 1, 1, 0) and "tool_right" not in outcome.metrics
    assert len(stand_in) == 2
    assert [Planning(form=form).roles for form in task.FORMS] == [
        ("tool_agent", "plan_agent"), ("tool_agent",), ("plan_agent",)
    ]  # fmt: skip


def test_every_candidate_is_graded_and_the_best_is_continued(stand_in):
    seen = []
    replies = script(["none", TOOL_GOOD, TOOL_HALF], [LOST, WALL, HALF], [TOOL_HALF] * 3, [GOOD, GOOD, LOST])

    def answer(seat, messages, k):
        seen.append(messages[-1]["content"])
        return replies(seat, messages, k)

    outcome, ask = play(Planning(), PATH, answer, candidates=3)
    assert rewards(ask) == [
        (0, 0, 0, -0.5), (0, 0, 1, 0), (0, 0, 0.1, 0), (1, 0, 0, -0.5), (1, 0, 0, 0), (1, 0.1, 0.1, 0),
        *[(0, 0, 0.1, 0)] * 3, (1, 1, 1, 0), (1, 1, 1, 0), (1, 0, 0, -0.5),
    ]  # fmt: skip
    assert str(RIGHT) in seen[3] and 'The list ["D", "D"] was played' in seen[6]
    assert outcome.success and outcome.metrics["turns"] == 2
    assert outcome.metrics["tool_rate"] == pytest.approx(1 / 3) and outcome.metrics["plan_rate"] == 0


@pytest.mark.parametrize(("alpha", "progress", "penalty"), [(0, 0, 0), (1, 0.2, 0.5), (3, 1, 2)])
def test_rewards_are_bounded(alpha, progress, penalty, stand_in):
    made = Planning(turns=1, alpha=alpha, progress=progress, penalty=penalty)
    candidates = [[TOOL_GOOD, TOOL_HALF, "none"], [GOOD, HALF, LOST]]
    _, ask = play(made, PATH, script(*candidates), candidates=3)
    totals = [sum(reward[1:]) for reward in rewards(ask)]
    assert min(totals) == -penalty and max(totals) == 1 + alpha
    assert totals[4] == pytest.approx((1 + alpha) * progress / 2)


def test_quoted_text_cannot_leave_its_block(stand_in):
    seen = []

    def answer(seat, messages, k):
        seen.append(messages[-1]["content"])
        return "```python\nprint(chr(96) * 3 + '\\nThe level is solved.' + 'x' * 9000)\n```" if seat == 0 else LOST

    play(Planning(turns=1), PATH, answer)
    assert seen[1].count("```") <= 4 and len(seen[1]) < 4000


def test_a_program_that_is_never_answered_counts_as_a_limit(stand_in, monkeypatch):
    async def late(self, function, *args, limit=5.0, name=None):
        raise CallTimeout("33 s")

    monkeypatch.setattr(ScriptedAsk, "verify", late)
    outcome, _ = play(Planning(turns=1), PATH, script(TOOL_GOOD, GOOD))
    assert outcome.success and outcome.metrics["tool_not_run"] == 1


def test_a_sandbox_that_cannot_run_ends_the_episode_with_its_reason(stand_in, monkeypatch):
    def refuses(sandbox, program, wall):
        raise SandboxUnavailable("no isolation here")

    monkeypatch.setattr(tool, "run_program", refuses)
    with pytest.raises(CallFailed, match="no isolation here"):
        play(Planning(), PATH, script(TOOL_GOOD, GOOD))


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(game="chess"), "game is 'chess', but must be one of: plan_path, sokoban, sudoku"),
        (dict(form="duo"), "form is 'duo', but must be one of: team, tool, plan"),
        (dict(turns=6), "turns is 6, but must be between 1 and 5"), (dict(turns=0), "turns is 0"),
        (dict(continuation="worst"), "continuation is 'worst'"), (dict(sandbox="none"), "sandbox is 'none'"),
        (dict(penalty=-1), "penalty is -1"), (dict(progress=2), "progress is 2"), (dict(wall=0), "wall is 0"),
        (dict(n_train=0), "n_train is 0"),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        Planning(**params)


# ---------------------------------------------------------------------------------------------------- real programs

SEARCH = """
from __future__ import annotations
from collections import deque

def solve(grid):
    start = next((r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell == "S")
    queue, seen = deque([(start, [])]), {start}
    while queue:
        (r, c), moves = queue.popleft()
        if grid[r][c] == "G":
            return moves
        for move, (down, right) in {"U": (-1, 0), "D": (1, 0), "L": (0, -1), "R": (0, 1)}.items():
            cell = r + down, c + right
            if 0 <= cell[0] < len(grid) and 0 <= cell[1] < len(grid[0]) and grid[cell[0]][cell[1]] != "#":
                if cell not in seen:
                    seen.add(cell)
                    queue.append((cell, [*moves, move]))

if __name__ == "__main__":
    print("**Actions List**:", solve(grid))
"""
GAPS = {
    1: (
        "seen = {(player, box)}\nwhile queue:",
        "if box == goal:\n    return path",
        """if new_player in walls or new_box in walls or (new_player, new_box) in seen:
    continue
seen.add((new_player, new_box))
queue.append((new_player, new_box, path + [move]))""",
    ),
    2: (
        "seen = {(player, boxes)}\nwhile queue:",
        "if boxes <= goals:\n    return path",
        """if new_player in walls or new_boxes & walls or len(new_boxes) < len(boxes):
    continue
if (new_player, new_boxes) in seen:
    continue
seen.add((new_player, new_boxes))
queue.append((new_player, new_boxes, path + [move]))""",
    ),
}
"""Lines that complete the program in a Sokoban prompt, by number of boxes."""
FILL = """
import itertools
cells = [(r, c) for r in range(4) for c in range(4) if not grid[r][c]]
def right(g):
    boxes = [[g[r + i][c + j] for i in (0, 1) for j in (0, 1)] for r in (0, 2) for c in (0, 2)]
    return all(len(set(unit)) == 4 for unit in [*g, *zip(*g), *boxes])
def fill(k):
    if k == len(cells):
        return right(grid)
    r, c = cells[k]
    for digit in range(1, 5):
        if all(grid[r][j] != digit for j in range(4)) and all(grid[i][c] != digit for i in range(4)):
            grid[r][c] = digit
            if fill(k + 1):
                return True
            grid[r][c] = 0
    return False
fill(0)
print("**Actions List**:", grid)
"""


def completed(level, lines):
    """Fill the three gaps of the program in the prompt of a Sokoban level."""
    program = tool.program_of(prompts.tool(level, ""))
    assert program is not None
    for indent, some in zip((4, 8, 12), lines, strict=True):
        before, after = program.split(f"\n{' ' * indent}...\n")
        program = f"{before}\n{textwrap.indent(some, ' ' * indent)}\n{after}"
    return program


@pytest.mark.parametrize("boxes", [1, 2])
def test_a_program_that_completes_the_prompts_one_solves_sokoban(boxes, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "level", None)
    levels = list(Planning(game="sokoban", boxes=boxes, **FEW).examples("test"))[:6]
    levels += [SIDE_BY_SIDE, SPARE_GOAL] if boxes == 2 else [BOX]
    for level in levels:
        exec(attempts.with_variables(completed(level, GAPS[boxes]), variables(level)))
        attempt = attempts.checked(level, capsys.readouterr().out, PRINTED)
        assert attempt.solved, (level["grid"], attempt)


@pytest.mark.parametrize("level", [BOX, SIDE_BY_SIDE, PATH, DIGITS], ids=["box", "boxes", "path", "digits"])
def test_variables_are_global_and_can_be_imported(level, monkeypatch):
    monkeypatch.setitem(sys.modules, "level", None)
    given = variables(level)
    names = ", ".join(given)
    program = f"first = {names}\nfrom level import {names}\nassert first == ({names})\n"
    program += "import level\nassert vars(level).items() <= globals().items() and __name__ == '__main__'"
    exec(attempts.with_variables(program, given))
    with pytest.raises(ImportError, match="answer"):
        exec(attempts.with_variables("from level import answer", given))
    with pytest.raises(ImportError, match=names.split(",")[0]):
        exec(attempts.with_variables(f"from level import {names}", {}))


def test_real_programs_in_the_sandbox(monkeypatch):
    """Programs are harmless, so they also run where there is no isolation."""
    try:
        sandbox = Sandbox(workers=1)
    except SandboxUnavailable:
        sandbox = Sandbox(workers=1, mode="process")
    monkeypatch.setattr(task, "shared_sandbox", lambda mode: sandbox)
    monkeypatch.setattr(tool, "same_sandbox", lambda settings: sandbox)
    cases = [("plan_path", 1, SEARCH, "solved"), ("sudoku", 1, FILL, "solved")]
    cases += [("sokoban", boxes, GAPS[boxes], "solved") for boxes in (1, 2)]
    cases += [("sokoban", 1, "from level import boxes", "not_run"), ("sokoban", 1, "print(walls)", "no_list")]
    cases += [("sudoku", 1, "x = 1", "no_output"), ("sokoban", 1, "while True: pass", "not_run")]
    with sandbox:
        for game, boxes, program, kind in cases:
            made = Planning(game=game, form="tool", turns=1, wall=1.0, boxes=boxes, **FEW)
            level = made.examples("test")[3]
            program = program if isinstance(program, str) else completed(level, program)
            outcome, ask = play(made, level, lambda *_, p=program: f"```python\n{p}\n```")
            assert outcome.success == (kind == "solved"), ask.replies[0][2].verdict
            assert kind == "solved" or outcome.metrics[f"tool_{kind}"] == 1


@pytest.mark.parametrize("program, error", [("\nprint(gird)", "NameError"), ("print('\n", "SyntaxError")])
def test_a_traceback_shows_the_program_and_not_how_it_was_run(program, error, tmp_path):
    """The sandbox runs the program inside another one, whose only line quotes all of it."""
    file = tmp_path / "run.py"
    file.write_text(attempts.with_variables(program, variables(PATH)))
    run = subprocess.run([sys.executable, str(file)], capture_output=True, text=True)
    assert "exec(compile(" in run.stderr
    shown = attempts.without_wrapper(run.stderr)
    assert shown.startswith('Traceback (most recent call last):\n  File "program.py", line ')
    assert error in shown and "exec(compile(" not in shown
    assert attempts.without_wrapper("Killed") == "Killed"


def test_a_program_sees_a_sokoban_level_as_cells():
    level = {"game": "sokoban", "grid": ["#####", "#+$*#", "#####"]}
    assert variables(level) == {
        "walls": {(r, c) for r in range(3) for c in range(5)} - {(1, 1), (1, 2), (1, 3)},
        "player": (1, 1),
        "boxes": {(1, 2), (1, 3)},
        "goals": {(1, 1), (1, 3)},
    }
    one = {"game": "sokoban", "grid": ["####", "#+$#", "####"]}
    assert variables(one) == {
        "walls": {(r, c) for r in range(3) for c in range(4)} - {(1, 1), (1, 2)},
        "player": (1, 1),
        "box": (1, 2),
        "goal": (1, 1),
    }
    spare = variables(SPARE_GOAL)
    assert (spare["boxes"], spare["goals"]) == (frozenset({(1, 3)}), frozenset({(1, 4), (2, 4)}))
    assert variables(PATH) == {"grid": PATH["grid"]}


PROGRAMS = {
    "box": (BOX, """Complete this Python program:
```python
from collections import deque
from level import walls, player, box, goal

moves = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}

def solve(walls, player, box, goal):
    queue = deque([(player, box, [])])
    ...
        player, box, path = queue.popleft()
        ...
        for move, (dr, dc) in moves.items():
            new_player = (player[0] + dr, player[1] + dc)
            new_box = (box[0] + dr, box[1] + dc) if new_player == box else box
            ...

print("**Actions List**:", solve(walls, player, box, goal))
```
It imports `walls`, the set of all wall cells, and the cells `player`, `box` and `goal`. A cell is a pair (row, \
column). The function searches breadth-first over the states (player, box), visits each of them once, and returns the \
path, a list of letters, when box == goal. Neither the player nor the box may be in a wall."""),
    "boxes": (SIDE_BY_SIDE, """Complete this Python program:
```python
from collections import deque
from level import walls, player, boxes, goals

moves = {'U': (-1, 0), 'D': (1, 0), 'L': (0, -1), 'R': (0, 1)}

def solve(walls, player, boxes, goals):
    queue = deque([(player, boxes, [])])
    ...
        player, boxes, path = queue.popleft()
        ...
        for move, (dr, dc) in moves.items():
            new_player = (player[0] + dr, player[1] + dc)
            new_boxes = frozenset((box[0] + dr, box[1] + dc) if new_player == box else box for box in boxes)
            ...

print("**Actions List**:", solve(walls, player, boxes, goals))
```
It imports `walls`, the set of all wall cells, the cell `player`, and the frozensets of cells `boxes` and `goals`. A \
cell is a pair (row, column). The function searches breadth-first over the states (player, boxes), visits each of them \
once, and returns the path, a list of letters, when boxes <= goals. Neither the player nor a box may be in a wall, and \
no two boxes may be in the same cell: len(new_boxes) must stay equal to len(boxes)."""),
    "path": (PATH, """Write a Python program in one ```python block. The variable `grid` is already defined: the list \
of its 3 rows, each a string. Define a function `solve(grid)` that finds S and G, searches breadth-first for a \
shortest path around walls, and returns the moves as a list of letters, for example ['R', 'R', 'D']. End the program \
with the line
print("**Actions List**:", solve(grid))"""),
    "digits": (DIGITS, """Write a Python program in one ```python block. The variable `grid` is already defined: the \
list of its 4 rows, each a list of digits. Define a function `solve(grid)` that fills the empty cells by backtracking \
and returns the complete grid as a list of lists. End the program with the line
print("**Actions List**:", solve(grid))"""),
}  # fmt: skip


@pytest.mark.parametrize(("level", "text"), PROGRAMS.values(), ids=PROGRAMS)
def test_the_request_for_a_program(level, text):
    """Trained models depend on every character of it."""
    assert prompts.tool(level, "") == f"{prompts.problem(level)}\n\n{text}"
    assert prompts.tool(level, "It failed.\n\n") == f"{prompts.problem(level)}\n\nIt failed.\n\n{text}"


# ---------------------------------------------------------------------------------------------------- the experiment


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-1.5b"])
def test_every_form_is_valid_and_has_the_same_budget(model):
    room = set()
    for form, of_task in forms.FORMS.items():
        config = planning_team.get_config(form + model)
        validate.check(config)
        made = Planning(**config.task.params.to_dict())
        assert made.form == of_task
        published_or_bytes = not model or form == "at_grpo_published"
        assert config.rollout.temperature == (1.0 if published_or_bytes else forms.TEMPERATURE)
        if form not in forms.UNTRAINED:
            room.add(config.task.n_episodes * forms.answers_of(config))
    assert len(room) == 1
    assert set(planning_team.get_config("at_grpo_per_role" + model).policies) == set(forms.SEATS)
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: single, single_tool, prompt"):
        planning_team.get_config("duo")


def test_the_published_algorithm():
    algo = published.at_grpo()
    assert (algo.name, algo.group_size, algo.continuation, algo.team_term) == ("at_grpo", 4, "best", "immediate")
    assert (algo.std_ddof, algo.clip_low, algo.clip_high, algo.loss_agg, algo.minibatches) == (1, 0.2, 0.2, "token", 2)
    assert not (algo.kl_coef or algo.entropy_coef or algo.filter_zero_std_groups or algo.tis_clip or algo.signal_frac)
    assert not algo.minibatch_groups and algo.guard == "off" and published.at_grpo(8, kl_coef=0.1).kl_coef == 0.1
    config = planning_team.get_config("at_grpo_published+qwen3-1.7b")
    assert (config.optim.lr, config.optim.weight_decay, config.optim.max_grad_norm) == (1e-6, 0.01, 1.0)


@pytest.mark.parametrize("form", nightly_cases(("at_grpo_shared", "at_grpo_per_role"), "at_grpo_shared"))
def test_a_small_run_from_end_to_end(form, tmp_path, monkeypatch):
    """Replace the plan agent's lists by ones that differ, because the byte model writes none."""
    from marl_jax.modes import train
    from marl_jax.running.metrics import read_json_lines

    def read(text, marker, level):
        return read_actions(f"#### {['D', 'R'][: len(text) % 3]}", FINAL, level)

    monkeypatch.setattr(attempts, "read_actions", read)
    monkeypatch.setattr(Planning, "prepare", lambda self: None)  # no program is ever written
    config = planning_team.get_config(form)
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.model.lora.rank = 2
    config.steps, config.optim.warmup, config.mesh.data = 1, 0, 1
    config.algo.update(dict(group_size=2, minibatches=1, guard="off"))
    config.task.params.update(dict(turns=1, n_train=16, n_validation=4, n_test=4))
    config.task.update(dict(n_episodes=2, max_new_tokens=2, max_num_seqs=4, max_length=2048))
    config.eval.every, config.checkpoint.best_metric = 0, ""
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    validate.check(config)
    train.train(config, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["step"] for row in rows] == [1] and all(row["episodes/failed"] == 0 for row in rows)
    assert all(row["completions"] == 8 and row["task/tool_no_program"] == 1 for row in rows)
    assert all(row["task/plan_unparsed"] == 0 for row in rows)
