"""The verilog task: verdicts on references and mutants, cheats, splits, and native programs in the sandbox."""

import dataclasses
import sys

import pytest

from envs.tasks import make_task
from envs.tasks.data import DataError
from envs.tasks.sandbox import Limits, SandboxUnavailable, shared_sandbox
from envs.tasks.scripted import play
from envs.tasks.task import SPLITS
from envs.tasks.verilog import bench, inspection, sample, sources
from envs.tasks.verilog.task import Verilog, tried
from tests.conftest import shared_data

TOOLS = bench.find_tools()
needs_iverilog = pytest.mark.skipif(TOOLS is None, reason=bench.MISSING)
LIMITS = Limits(wall=30, cpu=20)
COUNTER = next(row for row in sample.problems()["train"] if row["id"] == "counter")
MAXIMUM = next(row for row in sample.problems()["train"] if row["id"] == "maximum")
HEAD = "module TopModule (input clk, input reset, output reg [3:0] q);\n"


@pytest.fixture(scope="module")
def sandbox():
    try:
        return shared_sandbox("auto", TOOLS.programs)
    except SandboxUnavailable as reason:
        pytest.skip(str(reason))


def verdict(sandbox, answer, row=COUNTER, limits=LIMITS):
    return bench.judge(sandbox, TOOLS, answer, row["ref"], row["test"], limits)


# --- Verdicts -------------------------------------------------------------------------------------------------------


@needs_iverilog
@pytest.mark.parametrize("name", ["counter", "maximum", "accumulate"])
def test_references_are_right_and_mutants_wrong(sandbox, name):
    row = next(row for rows in sample.problems().values() for row in rows if row["id"] == name)
    right = verdict(sandbox, bench.as_answer(row["ref"]), row)
    assert right.kind == "right" and right.samples >= sample.SAMPLES
    mutant = bench.as_answer(row["ref"]).replace("+ 1", "+ 2").replace("a > b", "a < b").replace("+ d", "- d")
    wrong = verdict(sandbox, mutant, row)
    assert wrong.kind == "wrong" and wrong.mismatches > 0 and wrong.samples == right.samples


@needs_iverilog
@pytest.mark.nightly
def test_all_references_of_the_sample_are_right(sandbox):
    for rows in sample.problems().values():
        for row in rows:
            assert verdict(sandbox, bench.as_answer(row["ref"]), row).kind == "right", row["id"]


@needs_iverilog
@pytest.mark.nightly
def test_references_agree_with_the_official_verdicts(sandbox):
    """The field `iverilog11_ok` is the verdict of the official script; later versions compile the others too."""
    from envs.tasks.data import from_jsonl

    problems = from_jsonl(shared_data("open/verilog_eval.jsonl.gz"))
    verdicts = {}
    for i in range(len(problems)):
        row = problems.row(i)
        verdicts[row["id"]] = verdict(sandbox, bench.as_answer(row["ref"]), row, Limits(wall=120, cpu=60)).kind
        assert row["iverilog11_ok"] == (row["id"] not in sources.TOO_NEW)
    wrong = {name for name, kind in verdicts.items() if kind != "right"}
    assert len(verdicts) == 156 and wrong <= set(sources.TOO_NEW), wrong


CHEATS = {
    "end the simulation": HEAD + "initial $finish;\nendmodule",
    "stop the simulation": HEAD + "initial $stop;\nendmodule",
    "instantiate the reference": HEAD + "RefModule r (.clk(clk), .reset(reset), .q(q));\nendmodule",
    "open a file": HEAD + 'integer f; initial f = $fopen("/etc/passwd", "r");\nendmodule',
    "include a file": '`include "/etc/passwd"\n' + HEAD + "endmodule",
    "read a memory file": HEAD + 'reg [7:0] m [0:9]; initial $readmemh("/etc/passwd", m);\nendmodule',
    "print the verdict": HEAD + 'initial $display("Mismatches: 0 in 203 samples");\nendmodule',
    "name the reference's output": HEAD + "always @* q = good1.q;\nendmodule",
    "name it by the test bench": HEAD + "always @* q = tb.q_ref;\nendmodule",
    "name it by the root": HEAD + "always @* q = $root.tb.q_ref;\nendmodule",
    "name it with spaces": HEAD + "always @* q = good1 /* */ . q;\nendmodule",
    "name it with an escape": HEAD + "always @* q = \\good1 .q;\nendmodule",
    "change a parameter": HEAD + "defparam stim1.n = 1;\nendmodule",
    "define a macro": "`define TopModule Other\n" + HEAD + "endmodule",
    "use a macro": HEAD + "always @* q = `OK;\nendmodule",
    "force": HEAD + "initial force q = 0;\nendmodule",
    "bind": HEAD + "endmodule\nbind tb TopModule x (.*);",
    "bind inside": HEAD + "bind tb TopModule x (.*);\nendmodule",
    "disable a block": HEAD + "initial disable main;\nendmodule",
    "a function outside": "function f(input a); f = a; endfunction\n" + HEAD + "endmodule",
    "import C": HEAD + 'import "DPI-C" function int system(input string s);\nendmodule',
    "a package": "package p; endpackage\n" + HEAD + "endmodule",
    "a scope": HEAD + "always @* q = p::x;\nendmodule",
    "an attribute": HEAD + "(* ivl_synthesis_on *) initial q = 0;\nendmodule",
    "drive an input": HEAD + "assign reset = 1;\nalways @* q = 0;\nendmodule",
    "drive it more strongly": HEAD + "assign (supply0, supply1) reset = 1;\nalways @* q = 0;\nendmodule",
    "drive one bit": "module TopModule (input [7:0] a, input [7:0] b, output [7:0] y);\n"
    "assign (supply0, supply1) a[7] = 1;\nassign y = a;\nendmodule",
    "an input as output": "module TopModule (input clk, output reset, output reg [3:0] q);\n"
    "assign (supply0, supply1) reset = 1;\nalways @* q = 0;\nendmodule",
    "an input in both directions": "module TopModule (input clk, inout reset, output reg [3:0] q);\nendmodule",
    "a supply net as input": "module TopModule (input clk, input supply1 reset, output reg [3:0] q);\n"
    "always @* q = 0;\nendmodule",
    "a bidirectional switch": HEAD + "supply1 s; tran (reset, s);\nalways @* q = 0;\nendmodule",
    "drive it from another module": HEAD + "sub s (reset);\nalways @* q = 0;\nendmodule\n"
    "module sub (output x); assign (supply0, supply1) x = 1;\nendmodule",
    "a second test bench": HEAD + "endmodule\nmodule tb; initial $finish;\nendmodule",
    "a comment to the end": HEAD + "endmodule /*",
    "an open string": HEAD + 'endmodule "',
    "an endmodule too many": HEAD + "endmodule endmodule",
    "no endmodule": HEAD,
    "no module": "wire x;",
    "two modules": HEAD + "endmodule\n" + HEAD + "endmodule",
    "another character": HEAD + "wire \u00e4;\nendmodule",
}


@needs_iverilog
@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_are_not_right(sandbox, cheat):
    row = MAXIMUM if "[7:0] a" in CHEATS[cheat] else COUNTER
    found = verdict(sandbox, CHEATS[cheat], row)
    assert found.kind in ("refused", "error"), found
    if not any(word in cheat for word in ("reference", "second test bench")) or "name" in cheat:
        driven = "drive" in cheat or "input" in cheat
        assert found.kind == "refused" or driven, found


@needs_iverilog
@pytest.mark.parametrize(
    "body",
    ["initial forever;", "reg [31:0] x = 0; always x = x + 1;", "reg [7:0] m [0:2000000000]; initial m[5] = 1;"],
)
def test_limits_hold(sandbox, body):
    found = verdict(sandbox, HEAD + body + "\nendmodule", limits=Limits(wall=3, cpu=2, memory_mb=256))
    assert found.kind in ("error", "wrong") and found.samples == 0


@needs_iverilog
def test_a_module_can_have_helpers_and_harmless_directives(sandbox):
    answer = (
        "`timescale 1ns/1ps\n`default_nettype none\n" + HEAD.replace("reg", "wire") + "  // q <= good1.q; `include\n"
        '  localparam NAME = "a.b`c$d";\n  wire [3:0] next;\n'
        "  plus #(.STEP(1)) p (.a(q), .y(next));\n  store s (.clk, .*);\nendmodule : TopModule\n"
        "module plus #(parameter STEP = 2) (input [3:0] a, output [3:0] y); assign y = a + STEP; endmodule\n"
        "module store (input clk, input reset, input [3:0] next, output reg [3:0] q);\n"
        "  always @(posedge clk) if (reset || q == 4'd9) q <= '0; else q <= next;\nendmodule"
    )
    assert verdict(sandbox, answer).kind == "right"


@pytest.mark.quick
def test_rules_for_answers():
    assert inspection.checked("`timescale 1ns/1ps\nmodule TopModule; endmodule") == "\nmodule TopModule; endmodule"
    inspection.checked("module TopModule; always @(*) x = 1.5e3 + 8'hF_f + $clog2(4); endmodule")
    for cheat, text in CHEATS.items():
        if not any(word in cheat for word in ("drive", "input as", "supply net", "instantiate")):
            with pytest.raises(inspection.Refused):
                inspection.checked(text)


def test_ports_of_a_reference():
    header = "\n  input clk, // the clock\n  input [7:0] a, b,\n  output reg q, output signed [3:0] r"
    ref = f"module RefModule ({header});\nendmodule"
    assert bench.ports(ref) == [
        ("input", "", "clk"), ("input", "[7:0]", "a"), ("input", "[7:0]", "b"), ("output", "", "q"),
        ("output", "[3:0]", "r"),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="ref has no header"):
        bench.ports("module Other (input a); endmodule")


# --- The task -------------------------------------------------------------------------------------------------------


@needs_iverilog
def test_feedback_for_the_next_completion(sandbox):
    def shown(body, feedback="compile"):
        text = f"```verilog\n{HEAD}{body}\nendmodule\n```"
        args = (sandbox.settings, dataclasses.asdict(TOOLS), text, COUNTER["ref"], COUNTER["test"], 30.0, feedback)
        return tried(*args)

    broken = shown("always @(posedge clk) q <= ;")
    assert broken["kind"] == "error" and "answer.sv:2: " in broken["shown"] and "m" + "_top" not in broken["shown"]
    assert shown("initial q = 0;")["shown"] == "The module compiles."
    assert " of 20" in shown("initial q = 0;", "mismatches")["shown"]
    assert shown("initial $finish;")["shown"].startswith("The module was refused: $finish is not allowed")
    assert tried(sandbox.settings, dataclasses.asdict(TOOLS), "none", "", "", 1.0)["kind"] == "no_module"


@needs_iverilog
@pytest.mark.parametrize("form", ["single", "roles"])
def test_an_episode_revises_a_module(sandbox, form):
    task = make_task("verilog", dataset="sample", form=form)
    task.prepare()
    example = task.examples("train").row(0)
    gold = task.gold_reply(example)
    outcome, _ = play(task, example, lambda seat, messages, k: gold if _later(messages, seat, form) else "no idea")
    assert outcome.success == 1.0 and outcome.metrics["right_first"] == 0.0


def _later(messages, seat, form) -> bool:
    return seat == 1 if form == "roles" else len(messages) > 2


@pytest.mark.quick
def test_splits_are_disjoint():
    parts = make_task("verilog", dataset="sample").splits()
    ids = [{row["id"] for row in parts[part]} for part in SPLITS]
    assert all(ids) and sum(map(len, ids)) == len(set().union(*ids)) >= 12


def test_problems_of_verilog_eval(monkeypatch):
    monkeypatch.setenv("MARL_JAX_DATA", str(shared_data("open/verilog_eval.jsonl.gz").parent))
    parts = Verilog().splits()
    ids = [{row["id"] for row in parts[part]} for part in SPLITS]
    assert sum(map(len, ids)) == len(set().union(*ids)) == 152
    assert "TopModule" in Verilog().opening(parts["test"].row(0))


def test_bad_problems_and_parameters(tmp_path):
    path = tmp_path / "own.jsonl"
    path.write_text('{"prompt": "p", "ref": "module RefModule (input a); endmodule", "test": "t"}\n')
    with pytest.raises(DataError, match="test must print its result as"):
        make_task("verilog", dataset=str(path)).examples("train")
    with pytest.raises(ValueError, match="dataset is 'rtl', but must be one of: verilogeval, sample"):
        make_task("verilog", dataset="rtl")
    with pytest.raises(ValueError, match="feedback is 'all', but must be one of: compile, mismatches"):
        make_task("verilog", feedback="all")


def test_a_missing_compiler_is_named(monkeypatch):
    monkeypatch.setattr(bench, "find_tools", lambda: None)
    with pytest.raises(RuntimeError, match="apt-get install iverilog"):
        make_task("verilog", dataset="sample").prepare()


# --- Native programs in the sandbox ---------------------------------------------------------------------------------


@needs_iverilog
def test_native_programs_have_no_shell_network_or_other_files(sandbox, tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("42")
    code = f"""module m; integer f; initial begin
  f = $fopen("{secret}", "r"); $display("read %0d", f);
  f = $fopen("/etc/passwd", "r"); $display("passwd %0d", f);
  f = $fopen("{tmp_path}/new", "w"); $display("write %0d", f); end endmodule"""
    commands = [
        [f"{TOOLS.folder}/ivl", "-Csettings", f"-C{TOOLS.folder}/vvp.conf", "--", "m.sv"],
        [TOOLS.vvp, "-n", "design"],
    ]
    files = {"m.sv": code, "settings": bench._settings(TOOLS, "m")}
    done = sandbox.run_native_sync(commands, files=files, limits=LIMITS)
    assert done[-1].status == "ok", done
    assert done[-1].stdout.split() == ["read", "0", "passwd", "0", "write", "0"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret"]


@needs_iverilog
def test_native_commands_must_be_allowed(sandbox):
    for path in ("/bin/sh", sys.executable, f"{TOOLS.vvp}x"):
        with pytest.raises(ValueError, match="command is .*, but must be one of"):
            sandbox.run_native_sync([[path]], files={})
    with pytest.raises(ValueError, match="file is '../x', but must be a plain name"):
        sandbox.run_native_sync([[TOOLS.vvp]], files={"../x": ""})


@needs_iverilog
def test_a_failed_command_ends_the_list(sandbox):
    done = sandbox.run_native_sync([[TOOLS.vvp, "missing"], [TOOLS.vvp, "-V"]], files={}, limits=LIMITS)
    assert len(done) == 1 and done[0].status == "error" and done[0].exit_code
