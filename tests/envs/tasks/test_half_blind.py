"""The half-blind executor: views, a perfect team, the exact bound of one view, and bad replies."""

import itertools
import re

import numpy as np
import pytest

from configs import divided
from envs.games.plan_path.levels import distances
from envs.tasks.data import DataError
from envs.tasks.planning import rules
from envs.tasks.planning.half_blind import EXECUTOR, SCOUT, HalfBlind
from envs.tasks.planning.half_view import best_plan, is_divided, shortest, upper
from envs.tasks.planning.rules import STEPS
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from experiments import half_blind, hidden_profile
from marl_jax.schema import validate
from tests.conftest import nightly_cases

FEW = dict(n_train=24, n_validation=8, n_test=16)
GRID = ["..#..", ".#G..", ".....", "##.#.", "S...."]
LEVEL = {
    "game": "plan_path", "grid": GRID, "budget": 20,
    "distance": [[6, 7, -1, 2, 3], [5, -1, 0, 1, 2], [4, 3, 1, 2, 3], [-1, -1, 2, -1, 4], [5, 4, 3, 4, 5]],
}  # fmt: skip
MOVES = '#### ["R", "R", "U", "U", "U"]'


def rows_in(text):
    """Return the rows of a prompt or message as {number: cells}; hidden rows are left out."""
    found = re.findall(r"Row (\d+): ([.#SG?](?: [.#SG?])*)", text)
    return {int(number): cells.split() for number, cells in found if "?" not in cells}


def perfect(seat, messages, k):
    """Let the scout copy its rows, and the executor search in all rows it has seen or read."""
    text = messages[-1]["content"]
    known = rows_in(text)
    if seat == SCOUT and "Write it where G and the walls are" in text:
        return "\n".join(f"Row {number}: {' '.join(cells)}" for number, cells in known.items())
    at = {cell: (row, column) for row, cells in known.items() for column, cell in enumerate(cells) if cell in "SG"}
    free = {(row, column) for row, cells in known.items() for column, cell in enumerate(cells) if cell != "#"}
    return f"#### {list(shortest(free, at['S'], at['G']))}" if "G" in at else "#### []"


def test_a_perfect_team_solves_every_level():
    team, alone, complete = (HalfBlind(form=form, **FEW) for form in ("team", "executor", "all"))
    for level in [*team.examples("train"), *team.examples("test")]:
        outcome, ask = play(team, level, perfect)
        assert outcome.success and outcome.reason == "solved" and len(ask.replies[0][2].text) <= team.message_limit
        assert not play(alone, level, lambda seat, *rest: perfect(EXECUTOR, *rest))[0].success
        assert play(complete, level, lambda seat, *rest: perfect(EXECUTOR, *rest))[0].success


def test_each_seat_sees_its_half_only():
    seen = {}

    def answer(seat, messages, k):
        seen[seat] = messages[-1]["content"]
        return "Row 2: . # G . ." if seat == SCOUT else MOVES

    outcome, _ = play(HalfBlind(), LEVEL, answer)
    assert outcome.success and list(rows_in(seen[SCOUT])) == [1, 2, 3]
    assert "Row 4: ? ? ? ? ?" in seen[SCOUT] and "G" in seen[SCOUT] and "sees only rows 4 to 5" in seen[SCOUT]
    assert list(rows_in(seen[EXECUTOR].partition("The scout wrote:")[0])) == [4, 5]
    assert "The scout wrote:\nRow 2: . # G . .\n" in seen[EXECUTOR]
    play(HalfBlind(scout="map"), LEVEL, answer)
    assert list(rows_in(seen[SCOUT])) == [1, 2, 3, 4, 5] and "cannot see" not in seen[SCOUT]


def test_with_several_turns_the_executor_asks_back():
    seen = []

    def answer(seat, messages, k):
        seen.append((seat, messages[-1]["content"]))
        return MOVES if "#### " in messages[-1]["content"] else f"from {seat}"

    outcome, _ = play(HalfBlind(turns=2), LEVEL, answer)
    assert [seat for seat, _ in seen] == [SCOUT, EXECUTOR, SCOUT, EXECUTOR] and outcome.success
    assert "Write the scout what you still need" in seen[1][1] and "You wrote:\nfrom 0" in seen[2][1]
    assert "The executor wrote:\nfrom 1" in seen[2][1] and seen[3][1].count("wrote:") == 3


def test_a_scouts_message_is_rewarded_by_the_executors_lists():
    """Only the second message leads to right lists; half of the executor's candidates ignore it."""

    def answer(seat, messages, k):
        if seat == SCOUT:
            return ("no idea", "Row 2: . # G . .")[k]
        return MOVES if "# G" in messages[-1]["content"] and k == 0 else "#### []"

    outcome, ask = play(HalfBlind(progress=0.0), LEVEL, answer, candidates=2)
    paid = [(seat, reply.rewards.team, reply.rewards.agent, reply.rewards.process) for seat, _, reply in ask.replies]
    assert paid[:2] == [(SCOUT, 0, 0, 0), (SCOUT, 0.5, 0, 0)]
    assert [team for _, team, *_ in paid[2:]] == [0, 0, 1, 0] and outcome.success == 0.25


def test_a_program_plans_with_the_view_of_the_executor_and_what_it_was_told():
    seen = {}
    search = [
        "free = {(r, c) for r, row in enumerate(grid) for c, cell in enumerate(row) if cell in '.SG'}",
        "at = {cell: (r, c) for r, row in enumerate(grid) for c, cell in enumerate(row)}",
        "ways, known = [(at['S'], [])], {at['S']}",
        "for cell, way in ways:",
        "    for move, (down, right) in dict(U=(-1, 0), D=(1, 0), L=(0, -1), R=(0, 1)).items():",
        "        beyond = cell[0] + down, cell[1] + right",
        "        if beyond in free - known:",
        "            known.add(beyond)",
        "            ways.append((beyond, way + [move]))",
        "print('**Actions List**:', next(way for cell, way in ways if cell == at['G']))",
    ]

    def answer(seat, messages, k):
        seen[seat] = text = messages[-1]["content"]
        if seat == SCOUT:
            return "\n".join(re.findall(r"^Row [1-3]: .*$", text, re.M))
        rows = re.findall(r"^Row \d: ([.#SG]+)$", text, re.M)
        return "\n".join(["```python", f"grid = {rows}", *search, "```"])

    task = HalfBlind(answer="program", sandbox="process", wall=10.0)
    outcome, ask = play(task, LEVEL, answer)
    assert (
        outcome.success and outcome.metrics["no_program"] == 0 and [r.rewards.team for *_, r in ask.replies] == [1, 1]
    )
    assert "Row 3: .....\n\nThe executor sees only rows 4 to 5. Copy rows 1 to 3" in seen[SCOUT]
    assert "Row 3: .....\n\nYou see rows 4 to 5:\nRow 4: ##.#." in seen[EXECUTOR] and "?" not in seen[EXECUTOR]
    outcome, ask = play(task, LEVEL, lambda seat, *_: "nothing" if seat == SCOUT else "```python\nprint(grid)\n```")
    assert outcome.metrics["not_run"] == 1  # the program is given nothing of the level
    shown = "```python\nprint('none')\n```"
    outcome, ask = play(task, LEVEL, lambda seat, *_: "nothing" if seat == SCOUT else shown)
    assert outcome.metrics["no_list"] == 1 and ask.replies[1][2].rewards.process == -0.5
    assert play(task, LEVEL, lambda *_: "no program")[0].metrics["no_program"] == 1
    alone, complete = (HalfBlind(answer="program", form=form) for form in ("executor", "all"))
    requests = [one._request(LEVEL, EXECUTOR, (), True) for one in (alone, complete)]
    assert "You see rows 4 to 5:\nRow 4" in requests[0] and "You see all 5 rows:\nRow 1" in requests[1]


@pytest.mark.parametrize(
    ("message", "reply", "counted", "reason"),
    [
        ("", MOVES, "message_empty", "reaches the goal"), ("x" * 401, MOVES, "message_too_long", "reaches the goal"),
        ("ok", "no list", "no_list", "there is no ####"), ("ok", '#### ["up"]', "unknown_action", "must be one of: U,"),
        ("ok", '#### ["D"]', "illegal_action", "Move 1 (D) leaves the grid"),
        ("ok", '#### ["U"]', "illegal_action", "runs into a wall"), ("ok", '#### ["R"]', "unsolved", "not at the goal"),
    ],
)  # fmt: skip
def test_bad_replies_are_counted_with_their_reason(message, reply, counted, reason):
    outcome, ask = play(HalfBlind(), LEVEL, lambda seat, *_: message if seat == SCOUT else reply)
    assert outcome.metrics[counted] == 1 and outcome.success == (reply == MOVES) and outcome.problem() is None
    assert reason in ask.replies[1][2].verdict["reason"]
    unreadable = counted in ("no_list", "unknown_action")
    assert [r.rewards.process for *_, r in ask.replies] == [-0.5 * counted.startswith("message"), -0.5 * unreadable]


# ---------------------------------------------------------------------------------------------------- levels


def test_levels_are_divided_disjoint_and_repeatable(tmp_path):
    task = HalfBlind(**FEW)
    parts = {part: task.examples(part) for part in SPLITS}
    assert len(parts["train"]) + len(parts["validation"]) == 32 and len(parts["test"]) == 16
    assert all(is_divided(level) for levels in parts.values() for level in levels)
    keys = [{level["key"] for level in levels} for levels in parts.values()]
    assert not keys[0] & keys[1] and not keys[0] & keys[2] and not keys[1] & keys[2]
    assert is_divided(LEVEL) and not is_divided({"grid": GRID[::-1]})
    from envs.games.plan_path.levels import generate
    from envs.games.pools import Levels, Pool, save

    pool = generate(size=5, n_train=20, n_test=8)
    turned = dict(pool.test.arrays) | {"distance": np.full((8, 5, 5), 9, np.int16), "start": np.zeros(8, np.int32)}
    turned["distance"][:, 4, 4] = 0
    save(Pool("plan_path", pool.train, Levels(turned)), tmp_path / "pool.npz")
    with pytest.raises(DataError, match="0 of 8 levels can be used, but 8 are needed"):
        HalfBlind(pool=str(tmp_path / "pool.npz")).examples("test")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        (dict(form="duo"), "form is 'duo', but must be one of: team, executor, all"),
        (dict(scout="none"), "scout is 'none'"), (dict(turns=5), "turns is 5, but must be between 1 and 4"),
        (dict(message_limit=0), "message_limit is 0"), (dict(size=4), "size is 4"),
        (dict(continuation="worst"), "continuation is 'worst'"),
    ],
)  # fmt: skip
def test_settings_without_meaning_are_refused(params, message):
    with pytest.raises(ValueError, match=message):
        HalfBlind(**params)


# ---------------------------------------------------------------------------------------------------- one view


def possible(lower, rows, n_walls, longest):
    """Return every complete grid with a lower half, with its probability by the rules of the generator."""
    size = len(lower[0])
    hidden, seen = rows * size, sum(row.count("#") for row in lower)
    worlds = []
    for walls in itertools.combinations(range(hidden), n_walls - seen):
        for goal in set(range(hidden)) - set(walls):
            cells = ["#" if i in walls else "G" if i == goal else "." for i in range(hidden)]
            grid = ["".join(cells[i : i + size]) for i in range(0, hidden, size)] + list(lower)
            steps = distances(np.array([[c == "#" for c in row] for row in grid])[None], np.array([goal]))[0]
            start = next((r, row.index("S")) for r, row in enumerate(grid) if "S" in row)
            allowed = (steps >= 2) & (steps <= longest)
            if allowed[start]:
                worlds.append((grid, start, 1 / allowed.sum()))
    return worlds


@pytest.mark.parametrize(("lower", "n_walls"), [(["S.", ".."], 1), (["S#.", "..."], 2), ([".#.", "#.S"], 3)])
def test_the_best_plan_is_that_of_a_search_over_all_lists(lower, n_walls):
    """All lists of up to seven moves are played on all possible levels."""
    worlds = possible(lower, 1 if len(lower[0]) == 3 else 2, n_walls, 6)
    rows = len(worlds[0][0]) - len(lower)
    total = sum(weight for *_, weight in worlds)
    best = 0.0
    for moves in itertools.product(STEPS, repeat=7):
        value = 0.0
        for grid, start, weight in worlds:
            row, column = start
            for move in moves:
                row, column = row + STEPS[move][0], column + STEPS[move][1]
                if not (0 <= row < len(grid) and 0 <= column < len(grid[0])) or grid[row][column] == "#":
                    break
                if grid[row][column] == "G":
                    value += weight
                    break
        best = max(best, value / total)
    plan = best_plan(worlds[0][0], rows, n_walls, 6, 7)
    assert plan.chance == pytest.approx(best) and plan.bound >= best - 1e-9


def test_plans_without_the_scout_do_not_read_the_upper_half():
    plan = best_plan(LEVEL["grid"], 3, 6, 10, 20)
    assert plan == best_plan(["?????"] * 3 + GRID[3:], 3, 6, 10, 20)
    assert 0.1 < plan.chance <= plan.bound < 0.5 and len(plan.moves) <= 20
    assert rules.check(LEVEL, plan.moves).kind in ("solved", "illegal_action", "unsolved") and upper(5) == 3


# ---------------------------------------------------------------------------------------------------- experiments

EXPERIMENTS = (half_blind, hidden_profile)


@pytest.mark.parametrize("model", ["", "+qwen2.5-coder-1.5b", "+smollm2"])
@pytest.mark.parametrize("experiment", EXPERIMENTS, ids=lambda module: module.__name__)
def test_every_form_is_valid_and_has_the_same_budget(experiment, model):
    room = set()
    for form in divided.FORMS:
        config = experiment.get_config(form + model)
        validate.check(config)
        if form not in divided.UNTRAINED:
            room.add(config.task.n_episodes * divided.completions_of(config, experiment.COMPLETIONS))
    assert room == {divided.ROOM if model else divided.SMALL_ROOM}
    assert set(experiment.get_config("at_grpo_per_role" + model).policies) == set(experiment.SEATS)
    with pytest.raises(ValueError, match="form is 'duo', but must be one of: prompt, seat, all"):
        experiment.get_config("duo")


RUNS = [(hidden_profile, "at_grpo_shared"), (hidden_profile, "at_grpo_per_role"), (half_blind, "at_grpo_per_role")]


@pytest.mark.parametrize(("experiment", "form"), nightly_cases(RUNS, *RUNS))
def test_a_small_run_from_end_to_end(experiment, form, tmp_path, monkeypatch):
    """Let messages and answers of the byte model differ in their rewards, because it never answers."""
    from envs.tasks.hidden_profile import task as profiles
    from envs.tasks.planning import half_blind as blind
    from marl_jax.modes import train
    from marl_jax.running.metrics import read_json_lines

    read, checked = profiles.read_choice, blind.checked
    monkeypatch.setattr(profiles, "read_choice", lambda text, q: read(f"#### {'AB'[len(text.encode()) % 2]}", q))
    monkeypatch.setattr(
        blind, "checked", lambda level, text, marker: checked(level, "#### [U]" * (len(text) % 2), marker)
    )
    config = experiment.get_config(form)
    config.model.shape = dict(d_model=16, n_layers=1, n_heads=2, n_kv_heads=1, head_dim=8, d_ff=16)
    config.steps, config.optim.warmup, config.mesh.data = 1, 0, 1
    config.algo.update(dict(group_size=2, minibatches=1, guard="off"))
    config.task.params.update(dict(n_train=16, n_validation=4, n_test=4))
    config.task.update(dict(n_episodes=2, max_new_tokens=2, max_num_seqs=4))
    config.eval.every, config.checkpoint.best_metric = 0, ""
    config.log.update(dict(games=0, tensorboard=False, progress=False))
    validate.check(config)
    train.train(config, tmp_path / "run")
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    speakers, answering = experiment.COMPLETIONS
    assert [row["completions"] for row in rows] == [2 * (2 * speakers + 4 * answering)]
    assert all(row["episodes/failed"] == 0 for row in rows)
