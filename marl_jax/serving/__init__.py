"""What runs behind HTTP: the basics every server here shares, and the reward server."""
