"""`layerbench gate`: is the code slower than it was? By pairs of processes, instructions, or a stored baseline."""
