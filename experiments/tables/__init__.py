"""Tables that run or collect several experiments and compare them."""
