"""Games and tasks that a user plays, one move at a time."""
