"""Verify compiled programs against eager PyTorch: samples, error bounds, bisection for wrong nodes, and healing."""
