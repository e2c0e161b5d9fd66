"""Hold measurements of a compiled program: its agreement with eager, the cost of its stages, the time of a call."""
