"""Verify compiled programs against eager PyTorch, find nodes whose engine is wrong, and compile these differently."""
