"""From what a user has to a ``Program``: capture, inputs, ranges, functionalization, and what torch traces with."""
