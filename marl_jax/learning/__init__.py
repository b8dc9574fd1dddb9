"""Learning from samples: advantages, losses, the update and the optimizer."""
