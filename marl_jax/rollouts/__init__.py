"""Rollouts of games and tasks that collect samples for training."""
