"""Verify compiled programs against eager PyTorch: sample inputs, error bounds, search for the nodes that cause errors,
and healing."""
