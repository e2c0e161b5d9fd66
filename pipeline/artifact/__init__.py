"""Save and load compiled programs, cache engines, and replace weights."""
