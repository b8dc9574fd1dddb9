"""Playing games: to gather samples, to learn from demonstrations, to evaluate."""
