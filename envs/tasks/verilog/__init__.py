"""Hardware modules in Verilog, simulated against a reference module.

`task` has the task, `sources` the problems, `inspection` the rules for answers, and `bench` the compiler and the
simulator in the sandbox.
"""
