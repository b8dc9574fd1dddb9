"""Games as pure functions on pytrees, with their texts, bots and drawings."""
