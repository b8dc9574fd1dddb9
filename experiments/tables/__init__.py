"""Tables: several experiments run or collected together and written out side by side."""
