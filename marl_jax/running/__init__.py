"""Infrastructure of runs: checkpoints, processes, signals, metrics and logs."""
