"""Connect four: rules, bots, symmetries, drawings and text."""
