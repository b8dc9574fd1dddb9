"""Games as pure functions on pytrees: rules, texts, bots and drawings, all of which run inside jit."""
