"""Tests of others as tests of ours: ``python -m benchmarks.suites SUITE [--source PATH]`` runs the cases of one."""
