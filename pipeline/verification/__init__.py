"""Verify compiled programs against eager PyTorch: bound their errors; find and replace operators with wrong results."""
