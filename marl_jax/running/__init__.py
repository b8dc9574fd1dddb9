"""What keeps a run going and tells of it: checkpoints, processes, signals, metrics, logs."""
