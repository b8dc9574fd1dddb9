"""Games and tasks that a person plays, one move at a time."""
