"""What times a call: the host's clock, and three of a GPU's. A new clock is a class here and a line in `timers.py`."""
