"""A built-in sample of small hardware problems with references and test benches.

A test bench drives random inputs on both edges of a clock, after a few clocks of reset if there is one, and compares
the outputs after every edge. It prints its result in the form of VerilogEval.
"""

from __future__ import annotations

from typing import Any

SAMPLES = 200

_BENCH = """`timescale 1ps/1ps
module stimulus_gen (input clk{outputs});
  int count = 0;
  initial begin
{first}    repeat ({samples}) @(posedge clk, negedge clk) begin
{drive}    end
    #1 $finish;
  end
endmodule

module tb();
  reg clk = 0;
  int errors = 0, samples = 0;
  initial forever #5 clk = ~clk;
{wires}  stimulus_gen stim1 (.clk{stimuli});
  RefModule good1 ({shared}.{out}({out}_ref));
  TopModule top_module1 ({shared}.{out}({out}_dut));
  wire match = {out}_ref === ({out}_ref ^ {out}_dut ^ {out}_ref);
  always @(posedge clk, negedge clk) begin
    samples++;
    if (!match) errors++;
  end
  final $display("Mismatches: %1d in %1d samples", errors, samples);
endmodule
"""

_PROBLEMS: dict[str, tuple[tuple[str, str, dict[str, int], tuple[str, int], str], ...]] = {
    "train": (
        ("majority", "The output is 1 if at least two of the three inputs are 1.", {"a": 1, "b": 1, "c": 1}, ("y", 1),
         "assign y = (a & b) | (a & c) | (b & c);"),
        ("maximum", "The output is the larger of two unsigned numbers.", {"a": 8, "b": 8}, ("y", 8),
         "assign y = a > b ? a : b;"),
        ("swap_halves", "The output has the two halves of the input in exchanged order.", {"a": 16}, ("y", 16),
         "assign y = {a[7:0], a[15:8]};"),
        ("count_ones", "The output is the number of ones in the input.", {"a": 7}, ("y", 3),
         "assign y = a[0] + a[1] + a[2] + a[3] + a[4] + a[5] + a[6];"),
        ("decoder", "Of the outputs only bit number a is 1, and none if enable is 0.", {"a": 3, "enable": 1}, ("y", 8),
         "assign y = enable ? 8'd1 << a : 8'd0;"),
        ("toggle", "At each positive edge of clk, the output becomes 0 if reset is 1, and otherwise changes if t is 1.",
         {"clk": 1, "reset": 1, "t": 1}, ("q", 1),
         "always @(posedge clk) if (reset) q <= 0; else if (t) q <= ~q;"),
        ("counter", "A counter from 0 to 9, which continues with 0 after 9. It advances at each positive edge of clk, "
         "and is set to 0 if reset is 1.", {"clk": 1, "reset": 1}, ("q", 4),
         "always @(posedge clk) if (reset || q == 9) q <= 0; else q <= q + 1;"),
        ("shift", "A shift register. At each positive edge of clk, it is set to 0 if reset is 1, and otherwise moves "
         "one place to the left with d as the new lowest bit.", {"clk": 1, "reset": 1, "d": 1}, ("q", 5),
         "always @(posedge clk) if (reset) q <= 0; else q <= {q[3:0], d};"),
    ),
    "validation": (
        ("gray", "The output is the Gray code of the input: a XOR (a shifted right by one).", {"a": 6}, ("y", 6),
         "assign y = a ^ (a >> 1);"),
        ("rising", "The output is 1 for one clock after d has changed from 0 to 1 between two positive edges of clk. "
         "If reset is 1, output and memory are set to 0.", {"clk": 1, "reset": 1, "d": 1}, ("q", 1),
         "reg last; always @(posedge clk) if (reset) begin q <= 0; last <= 0; end "
         "else begin q <= d & ~last; last <= d; end"),
    ),
    "test": (
        ("select", "The output is input a if s is 0, b if s is 1, c if s is 2, and 0 if s is 3.",
         {"a": 4, "b": 4, "c": 4, "s": 2}, ("y", 4), "assign y = s == 0 ? a : s == 1 ? b : s == 2 ? c : 4'd0;"),
        ("saturate", "The output is the sum of two unsigned numbers, or 255 if the sum is larger.", {"a": 8, "b": 8},
         ("y", 8), "wire [8:0] sum = a + b; assign y = sum[8] ? 8'd255 : sum[7:0];"),
        ("parity", "The output is 1 if the input has an odd number of ones.", {"a": 9}, ("y", 1), "assign y = ^a;"),
        ("accumulate", "A sum. At each positive edge of clk, it is set to 0 if reset is 1, and otherwise d is added if "
         "add is 1. It overflows as usual.", {"clk": 1, "reset": 1, "add": 1, "d": 4}, ("q", 8),
         "always @(posedge clk) if (reset) q <= 0; else if (add) q <= q + d;"),
    ),
}  # fmt: skip


def problems() -> dict[str, list[dict[str, Any]]]:
    """Return the problems by split: id, prompt, ref and test."""
    return {part: [_problem(*problem) for problem in rows] for part, rows in _PROBLEMS.items()}


def _problem(name: str, about: str, inputs: dict[str, int], output: tuple[str, int], body: str) -> dict[str, Any]:
    out, width = output
    driven = {port: bits for port, bits in inputs.items() if port != "clk"}
    listed = "".join(
        f" - {way} {port}{f' ({bits} bits)' if bits > 1 else ''}\n"
        for way, port, bits in [*(("input ", port, bits) for port, bits in inputs.items()), ("output", out, width)]
    )
    kind = "reg" if "clk" in inputs else "wire"
    header = ", ".join(
        [*(f"input {_bits(n)}{port}" for port, n in inputs.items()), f"output {kind} {_bits(width)}{out}"]
    )
    reset = "reset" in driven
    drive = "".join(
        f"      {port} <= {'!($urandom & 7)' if port == 'reset' else '$urandom'};\n" for port in driven
    )  # fmt: skip
    test = _BENCH.format(
        outputs="".join(f", output reg {_bits(n)}{port}" for port, n in driven.items()),
        first="".join(f"    {port} <= {int(port == 'reset')};\n" for port in driven)
        + ("    repeat (3) @(posedge clk);\n" if reset else ""),
        samples=SAMPLES,
        drive=drive,
        wires="".join(f"  wire {_bits(n)}{port};\n" for port, n in driven.items())
        + f"  wire {_bits(width)}{out}_ref, {out}_dut;\n",
        stimuli="".join(f", .{port}" for port in driven),
        shared="".join(f".{port}, " for port in inputs),
        out=out,
    )
    return {
        "id": name,
        "prompt": "Write a module named TopModule with this interface; ports without a width have one bit:\n\n"
        f"{listed}\n{about}",
        "ref": f"module RefModule ({header});\n  {body}\nendmodule\n",
        "test": test,
    }


def _bits(width: int) -> str:
    return f"[{width - 1}:0] " if width > 1 else ""
