"""`layerbench doctor`: known delays, the clocks against each other, and how far apart the same things come out."""
