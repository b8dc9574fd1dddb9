"""SQL: verdicts of the official script, queries that try to cheat, splits, episodes and bad input.

`sql_verdicts.jsonl` has 341 pairs of queries on the built-in databases with the verdicts of `result_eq` in
taoyds/test-suite-sql-eval (exec_eval.py at 14784c35).
"""

import json
from pathlib import Path

import pytest

from envs.tasks import make_task
from envs.tasks.data import DataError, from_jsonl
from envs.tasks.scripted import play
from envs.tasks.sql import copies, engine, sample, sources
from envs.tasks.sql.compare import equal, is_ordered
from envs.tasks.sql.task import tried
from envs.tasks.task import SPLITS
from tests.conftest import shared_data

VERDICTS = Path(__file__).parent / "sql_verdicts.jsonl"
LIBRARY = sample.SCRIPTS["library"]
LATE = "SELECT title FROM book WHERE year > 2004 ORDER BY year DESC, title"
BIG = "SELECT title, pages FROM book WHERE pages > 200"
NONE = "SELECT title FROM book WHERE year > 2020"


@pytest.fixture(scope="module")
def task():
    return make_task("sql", dataset="sample")


def rows_of(gold):
    return engine.run(copies.databases(LIBRARY)[0].forward, gold).rows


def test_verdicts_on_one_database_equal_those_of_the_official_script():
    pairs = list(from_jsonl(VERDICTS))
    stricter = 0
    for pair in pairs:
        script = sample.SCRIPTS[pair["db"]]
        assert copies.judge(script, [pair["gold"]], pair["query"], 0).right == bool(pair["official"]), pair
        with_copies = copies.judge(script, [pair["gold"]], pair["query"]).right
        assert pair["official"] or not with_copies
        stricter += pair["official"] and not with_copies
    assert len(pairs) == 341 and stricter == 23


@pytest.mark.parametrize("name", ["sqleval", pytest.param("spider", marks=pytest.mark.nightly)])
def test_gold_queries_are_right_and_other_questions_mostly_wrong(name, monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data(f"open/{sources.FILES[name][0]}.jsonl.gz").parent))
    parts = sources.load(name)
    assert [len(parts[part]) for part in SPLITS] == {"sqleval": [79, 25, 25], "spider": [706, 122, 140]}[name]
    databases = [{row["db"] for row in parts[part]} for part in SPLITS]
    assert not databases[0] & databases[1] and not databases[0] & databases[2] and not databases[1] & databases[2]
    rows = list(parts["test"])
    assert all(copies.judge(row["script"], row["golds"], gold).right for row in rows for gold in row["golds"])
    if name == "sqleval":
        pairs = [(a, b) for a in rows for b in rows if a["id"] != b["id"]]
        assert sum(copies.judge(a["script"], a["golds"], b["golds"][0]).right for a, b in pairs) == 2  # synonyms


CHEATS = {
    "constants": (BIG, "VALUES ('Tides', 310), ('North', 450), ('The Ferry', 220), ('Olives', 260)"),
    "constants of a table": (BIG, "SELECT 'Tides', 310 FROM book WHERE book_id = 1 UNION ALL SELECT title, pages "
                                  "FROM book WHERE title IN ('North', 'The Ferry', 'Olives')"),
    "keys of the right rows": (BIG, "SELECT title, pages FROM book WHERE book_id IN (1, 3, 4, 6)"),
    "a count as a constant": ("SELECT COUNT(*) FROM book", "SELECT 7"),
    "empty equals empty": (NONE, "SELECT title FROM book WHERE 0"),
    "another empty filter": (NONE, "SELECT title FROM book WHERE year > 2030"),
    "duplicates": ("SELECT DISTINCT reader FROM loan", "SELECT reader FROM loan"),
    "duplicates on both sides": ("SELECT reader FROM loan", "SELECT reader FROM loan GROUP BY loan_id % 4, reader"),
    "no order": (LATE, "SELECT title FROM book WHERE year > 2004"),
    "an order that fits by chance": (LATE, "SELECT title FROM book WHERE year > 2004 ORDER BY book_id DESC"),
    "only the first rows": (BIG, f"{BIG} LIMIT 4"),
    "another column": (BIG, "SELECT title, year FROM book WHERE pages > 200"),
    "more columns": (BIG, "SELECT * FROM book WHERE pages > 200"),
    "everything": (BIG, "SELECT title, pages FROM book"),
    "a filter that fits by chance": (BIG, "SELECT title, pages FROM book WHERE pages > 180"),
    "luck": ("SELECT COUNT(*) FROM book", "SELECT abs(random() % 7) + 1"),
    "the schema": ("SELECT COUNT(*) FROM book", "SELECT COUNT(*) + 4 FROM sqlite_master"),
    "the statistics of a copy": ("SELECT COUNT(*) FROM book", "SELECT max(rowid) FROM sqlite_sequence"),
}  # fmt: skip


@pytest.mark.parametrize("cheat", CHEATS)
def test_queries_that_fit_by_chance_or_by_constants_are_wrong(cheat):
    gold, query = CHEATS[cheat]
    assert copies.judge(LIBRARY, [gold], gold).right and copies.is_informative(LIBRARY, gold)
    assert not copies.judge(LIBRARY, [gold], query).right


HOSTILE = {
    "ATTACH DATABASE '/etc/passwd' AS x": "not authorized",
    "PRAGMA table_info(book)": "not authorized",
    "SELECT * FROM pragma_table_info('book')": "not authorized|prohibited",
    "CREATE TABLE x (y)": "not authorized",
    "DROP TABLE book": "not authorized",
    "DELETE FROM book": "not authorized",
    "INSERT INTO book SELECT * FROM book": "not authorized",
    "WITH x AS (SELECT 1) UPDATE book SET pages = 0": "not authorized",
    "SELECT load_extension('x')": "not authorized",
    "SELECT 1; DROP TABLE book": "one statement",
    "SELECT writefile('/tmp/x', 'y')": "no such function",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n": "takes too long",
    "SELECT count(*) FROM book a, book b, book c, book d, book e, book f, book g, book h": "takes too long",
    "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000) SELECT i FROM n": "more than 10000",
    "SELECT zeroblob(1000000000)": "too big",
    "SELECT " + "(" * 200 + "1" + ")" * 200: "too large|overflow|maximum depth",
    "SELECT " + "1, " * 3000 + "1": "at most 4000",
    "BEGIN": "not authorized",
    "VACUUM INTO '/tmp/x'": "authorization denied",
    "": "no ```sql|not a query|returns rows",
    "-- nothing": "not a query|returns rows",
    "SELECT 'a\0b'": "null character|unrecognized",
    "SELECT '\ud800'": "surrogates",
}


@pytest.mark.parametrize("query", HOSTILE)
def test_hostile_queries_fail_with_a_message_and_leave_the_database_alone(query):
    before = rows_of("SELECT * FROM book")
    with pytest.raises(engine.QueryError, match=HOSTILE[query]):
        engine.run(copies.databases(LIBRARY)[0].forward, query)
    assert rows_of("SELECT * FROM book") == before
    assert tried(f"```sql\n{query}\n```", LIBRARY, [BIG])["kind"] in ("error", "no_query")


def test_results_are_multisets_with_columns_in_any_order():
    assert equal([(1, "a"), (2, "b")], [("b", 2), ("a", 1)])
    assert not equal([(1, "a"), (2, "b")], [("b", 2), ("a", 1)], fixed=[0, 1])
    assert equal([(1,), (2,), (3,)], [(2,), (1,), (3,)], fixed=[2])
    assert not equal([(1,), (2,), (3,)], [(1,), (3,), (2,)], fixed=[2])
    assert not equal([(1,), (1,), (2,)], [(1,), (2,), (2,)])
    assert not equal([(1, 2), (2, 1)], [(1, 1), (2, 2)])  # equal columns, but other pairs
    assert equal([(0.1 + 0.2,)], [(0.3,)]) and not equal([("1",)], [(1,)])
    assert equal([], []) and not equal([], [(None,)]) and not equal([(1,)], [(1, 1)])
    assert is_ordered("SELECT a FROM t ORDER  BY a") and is_ordered("SELECT (SELECT 1) x order\nby 1 LIMIT 2")
    assert not is_ordered("SELECT a FROM (SELECT a FROM t ORDER BY a)") and not is_ordered("SELECT 'order by'")


def test_a_result_that_depends_on_the_order_of_stored_rows_decides_nothing():
    """Two books have the same year, so LIMIT 1 may return either."""
    expected = copies._expected(LIBRARY, "SELECT title FROM book WHERE year = 2005 LIMIT 1", copies.COPIES)
    assert expected[0] is not None and None in expected
    tied = copies._expected(LIBRARY, "SELECT title, year FROM book ORDER BY year", 0)
    assert tied[0] is not None and tied[0].fixed == [4, 5, 6]  # two books each in 1999 and 2005


def test_one_agent_and_roles_revise_with_the_same_number_of_completions(task):
    row = task.examples("train")[0]
    for form, seats in (("single", [0, 0, 0]), ("roles", [0, 1, 0])):
        played = make_task("sql", dataset="sample", form=form, turns=3)
        queries = iter(["SELECT COUNT(*) FROM boook", "SELECT 7", row["golds"][0]])
        texts = []

        def answer(seat, messages, k, queries=queries, texts=texts):
            texts.append(messages[-1]["content"])
            return f"Let me see.\n```sql\n{next(queries)}\n```"

        outcome, ask = play(played, row, answer)
        assert outcome.success == 1 and outcome.metrics["turns"] == 3 and outcome.metrics["right_first"] == 0
        assert [seat for seat, _, _ in ask.replies] == seats
        assert "CREATE TABLE book" in texts[0] and row["question"] in texts[0]
        assert "no such table: boook" in texts[1] and "(1 row)" in texts[2]
        rewards = [reply.rewards for _, _, reply in ask.replies]
        assert rewards[-1].team == 1 and rewards[-1].process == 0.1 and rewards[0].team == rewards[0].process == 0


def test_an_episode_ends_when_a_query_is_repeated_and_every_candidate_is_rewarded(task):
    row = task.examples("train")[1]
    outcome, ask = play(task, row, lambda seat, messages, k: task.gold_reply(row) if k else "no idea", candidates=3)
    assert outcome.success == 1 and outcome.reason == "agreed" and len(ask.replies) == 6
    assert [reply.rewards.team for _, _, reply in ask.replies] == [0, 1, 1] * 2
    outcome, ask = play(task, row, lambda seat, messages, k: "no idea")
    assert outcome.success == 0 and outcome.metrics["kind_no_query"] and outcome.reason == "turns"


def test_bad_parameters_and_bad_files_are_refused(tmp_path, monkeypatch, caplog):
    with pytest.raises(ValueError, match="dataset is 'spyder', but must be one of: sqleval, spider, sample"):
        make_task("sql", dataset="spyder")
    with pytest.raises(ValueError, match="form is 'team', but must be one of: single, roles"):
        make_task("sql", form="team")
    with pytest.raises(ValueError, match="turns is 0, but must be between 1 and 8"):
        make_task("sql", turns=0)
    row = dict(db="a", script="CREATE TABLE t (x INTEGER); INSERT INTO t VALUES (1), (2);", question="All?")
    own = tmp_path / "own.jsonl"
    own.write_text("".join(json.dumps(row | dict(db=db, gold_sql="SELECT x FROM t")) + "\n" for db in "abc"))
    assert sum(len(make_task("sql", dataset=str(own)).examples(part)) for part in SPLITS) == 3
    for number, (bad, message) in enumerate(
        (
            (dict(gold_sql="SELECT y FROM t"), "no such column: y"),
            (dict(gold_sql="SELECT x FROM t", script="ATTACH '/tmp/x' AS y"), "not authorized"),
            (dict(gold_sql=""), "gold_sql' is empty"),
        )
    ):
        file = tmp_path / f"bad{number}.jsonl"
        file.write_text("".join(json.dumps(row | bad | dict(db=db)) + "\n" for db in "abc"))
        with pytest.raises(DataError, match=message):
            make_task("sql", dataset=str(file)).examples("train")
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    assert make_task("sql").examples("test")[0]["db"] == "railway"
    assert "python -m envs.tasks.data.prepare sqleval" in caplog.text
