"""From samples to better weights: advantages, losses, what is read, the optimizer."""
