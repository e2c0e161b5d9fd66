"""Is a compiled program right? Inputs to try it with, what eager gives, bounds, the search for faults, healing."""
