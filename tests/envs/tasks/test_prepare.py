"""`prepare`: downloads from a local server, checksums, licences, and names that the tasks search for."""

import gzip
import io
import json
import re
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from envs.games.sokoban import levels
from envs.tasks import make_task
from envs.tasks.code import sources as code
from envs.tasks.data import catalog, find, from_jsonl, from_list
from envs.tasks.data.prepare import RECORD, Downloads, main
from envs.tasks.math import sources as math
from envs.tasks.sql import sources as sql
from tests.conftest import shared_data

GSM8K = [{"question": f"How much is {n} + {n}?", "answer": f"<<{n}+{n}={2 * n}>>\n#### {2 * n}"} for n in range(30)]
SQL = "CREATE TABLE public.t (\n    name character varying(9) DEFAULT ''::character varying,\n    n bigint\n);\n"


def path_of(repo, path):
    name, _, commit = repo.partition("@")
    return f"/{name}/{commit}/{path}"


def lines(rows):
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


@pytest.fixture(scope="module")
def http_server():
    files, requested = {}, []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            requested.append(self.path)
            body = files.get(self.path)
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=http.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{http.server_port}", files, requested
    http.shutdown()
    http.server_close()


@pytest.fixture
def server(http_server):
    """Return (address, files, requested paths) of a server that has no files yet."""
    http_server[1].clear()
    http_server[2].clear()
    return http_server


@pytest.fixture
def gsm8k(server, monkeypatch):
    """The server with a small GSM8K, whose checksums are pinned."""
    _, files, _ = server
    for part, rows in (("train", GSM8K[:20]), ("test", GSM8K[20:])):
        files[path_of(catalog._GSM8K, f"grade_school_math/data/{part}.jsonl")] = lines(rows)
        monkeypatch.setitem(catalog.PINS, f"gsm8k_{part}", from_list(rows).fingerprint)
    return server


def test_files_have_the_names_that_the_task_searches_for(gsm8k, tmp_path, monkeypatch, capsys):
    address, _, requested = gsm8k
    assert main(["gsm8k", "--to", str(tmp_path), "--mirror", address]) == 0
    out = capsys.readouterr().out
    assert "gsm8k_train.jsonl.gz: 20 rows, MIT, checksum as pinned" in out and f"export MARL_JAX_DATA={tmp_path}" in out
    record = json.loads((tmp_path / RECORD).read_text())["gsm8k_test.jsonl.gz"]
    assert record["rows"] == 10 and record["licence"] == "MIT" and record["origin"] == catalog._GSM8K
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    assert len(make_task("math", dataset="gsm8k").examples("test")) == 10
    before = len(requested)
    assert main(["gsm8k", "--mirror", address]) == 0 and len(requested) == before  # nothing is downloaded again
    assert "exists" in capsys.readouterr().out


def test_a_wrong_checksum_deletes_the_file_and_shows_both(gsm8k, tmp_path, monkeypatch, capsys):
    address, files, _ = gsm8k
    pinned = catalog.PINS["gsm8k_test"]
    files[path_of(catalog._GSM8K, "grade_school_math/data/test.jsonl")] = lines(GSM8K[20:29])
    assert main(["gsm8k", "--to", str(tmp_path), "--mirror", address]) == 1
    error = capsys.readouterr().err
    assert pinned in error and from_list(GSM8K[20:29]).fingerprint in error
    assert sorted(p.name for p in tmp_path.iterdir()) == [RECORD, "gsm8k_train.jsonl.gz"]  # nothing else is lost


def test_a_damaged_file_is_reported_and_offline_lists_missing_files(gsm8k, tmp_path, capsys):
    address, _, requested = gsm8k
    arguments = ["gsm8k", "--to", str(tmp_path)]
    assert main([*arguments, "--offline"]) == 1 and not requested
    error = capsys.readouterr().err
    assert "gsm8k_train.jsonl.gz" in error and "gsm8k_test.jsonl.gz" in error
    assert main([*arguments, "--mirror", address]) == 0 == main([*arguments, "--offline"])
    (tmp_path / "gsm8k_test.jsonl.gz").write_bytes(gzip.compress(b"{}\n"))
    assert main([*arguments, "--offline"]) == 1
    assert "differs from SOURCES.json; remove it to download it again" in capsys.readouterr().err
    (tmp_path / RECORD).write_text("{")
    assert main([*arguments, "--offline"]) == 1 and "invalid JSON" in capsys.readouterr().err


def test_sources_that_are_absent_or_have_changed_are_reported(server, tmp_path, capsys):
    address, files, _ = server
    arguments = ["cruxeval", "mbpp", "spider", "--to", str(tmp_path), "--mirror", address]
    files[path_of(catalog._GOOGLE, "mbpp/mbpp.jsonl")] = b"<html>"
    files[path_of(catalog._SPIDER, "evaluation_examples/examples/dev.json")] = b'[{"db_id": "a"}]'
    assert main(arguments) == 1
    error = capsys.readouterr().err
    assert "404" in error and "mbpp: google-research" in error and "KeyError: 'question'" in error
    assert not list(tmp_path.glob("*.gz"))
    assert main(["mbpp", "--to", str(tmp_path), "--mirror", "http://127.0.0.1:9"]) == 1
    assert "refused" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["anli"], "CC BY-NC 4.0. allows only non-commercial use; add --accept nc"),
        (["aime2025", "--accept", "nc"], "add --accept unclear"),
        (["math"], "MATH was taken down"),
        (["gsm9k"], "name is 'gsm9k', but must be one of: aime2024"),
        ([], "give at least one NAME, or --list"),
    ],
)
def test_bad_arguments_are_refused(arguments, message, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main([*arguments, "--to", str(tmp_path)])
    assert re.search(message, capsys.readouterr().err)


def test_sqleval_is_converted_to_sqlite(server, tmp_path, monkeypatch):
    address, files, _ = server
    for db in catalog.SQLEVAL_DATABASES:
        script = f"-- {db}\n{SQL}INSERT INTO public.t (name, n) VALUES\n('a', 1),\n('b::c', 2)\n;\n"
        files[path_of(catalog._DEFOG, f"defog_data/{db}/{db}.sql")] = script.encode()
    head = "db_name,db_type,query_category,query,question,instructions\n"
    rows = [f'{db},sqlite,all,"SELECT name, n FROM t;SELECT n FROM t;","Who, in {db}?",\n' for db in
            catalog.SQLEVAL_DATABASES]  # fmt: skip
    rows += ["scholar,sqlite,all,\"SELECT strftime('%Y', 'now') FROM t\",When?,\n", "yelp,sqlite,all,SELECT 1,?,\n"]
    files[path_of(catalog._SQLEVAL, "data/questions_gen_sqlite.csv")] = (head + "".join(rows)).encode()
    assert main(["sqleval", "--to", str(tmp_path), "--mirror", address]) == 0
    monkeypatch.setenv("MARL_JAX_DATA", str(tmp_path))
    parts = sql.load("sqleval")
    assert [len(parts[part]) for part in ("train", "validation", "test")] == [3, 1, 1]
    assert parts["test"][0]["golds"] == ["SELECT name, n FROM t", "SELECT n FROM t"]


def test_levels_and_archives_are_read(server, tmp_path):
    address, files, _ = server
    level = "##########\n#        #\n# @$$$$. #\n#   .... #\n" + "#        #\n" * 5 + "##########"
    for file in catalog.SOURCES["sokoban"].files:
        for path in file.rows.args[1]:
            files[path_of(catalog._BOXOBAN, path)] = "".join(f"; {n}\n{level}\n\n" for n in range(2)).encode()
    fetch = Downloads(address)
    [medium] = [file for file in catalog.SOURCES["sokoban"].files if file.name == "boxoban_medium_train"]
    rows = list(medium.rows(fetch))
    assert len(rows) == 4 and levels.parse("".join(row["text"] for row in rows), "medium").shape == (4, 10, 10)

    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name, content in {
            "r-1/dataset_spec-to-rtl/Prob002_b_c_ref.sv": "ref", "r-1/dataset_spec-to-rtl/Prob002_b_c_test.sv": "test",
            "r-1/dataset_spec-to-rtl/Prob002_b_c_prompt.txt": "prompt", "r-1/README.md": "no",
            "r-1/discoverybench/synth/dev/x_1/metadata_0.json": '{"id": 0}',
            "r-1/discoverybench/synth/dev/x_1/data.csv": "a,b\n1,2\n",
        }.items():  # fmt: skip
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content.encode()))
    for repo in (catalog._VERILOG, catalog._DISCOVERY):
        name, _, commit = repo.partition("@")
        files[f"/{name}/tar.gz/{commit}"] = packed.getvalue()
    assert list(catalog.SOURCES["verilogeval"].files[0].rows(fetch)) == [
        {"id": "Prob002_b_c", "ref": "ref", "test": "test", "spec_prompt": "prompt"}
    ]
    assert list(catalog.SOURCES["discoverybench"].files[0].rows(fetch)) == [
        {"split": "synth_dev", "name": "x_1", "metadata": [{"id": 0}], "csv": {"data.csv": "a,b\n1,2\n"}}
    ]


def test_every_dataset_of_a_task_can_be_prepared_or_has_a_reason():
    names = {file.name for source in catalog.SOURCES.values() for file in source.files}
    assert set(catalog.PINS) <= names
    files = {name: list(source.files.values()) for name, source in math.SOURCES.items()}
    files |= {name: [file for file, _ in source.files] for name, source in code.SOURCES.items()}
    files |= dict(sql.FILES) | {task: list(make_task(task).files.values()) for task in ("nli", "arc", "sciq")}
    for name, needed in files.items():
        if name in catalog.NO_SOURCE:
            continue
        prepared = "anli" if name == "nli" else catalog.ALIASES.get(name, name)
        have = {file.name for file in catalog.SOURCES[prepared].files}
        assert all(have & ({one} if isinstance(one, str) else set(one)) for one in needed), name


def test_pins_are_those_of_the_shared_data(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/gsm8k_test.jsonl.gz").parents[1]))
    counts = {"gsm8k_test": 1319, "humaneval": 164, "mbpp": 974, "math500_test": 500, "spider_dev": 1034}
    for name, rows in counts.items():
        data = from_jsonl(find(name))
        assert len(data) == rows and data.fingerprint == catalog.PINS[name]
