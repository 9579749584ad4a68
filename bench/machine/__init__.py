"""The machine that measures: what it is, what it was doing meanwhile, how its memory is set up."""
