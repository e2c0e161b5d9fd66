"""Measurements: ``python -m benchmarks.stages`` anywhere, ``benchmarks.gpu`` on a GPU, then ``benchmarks.tables``."""
