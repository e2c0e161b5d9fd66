"""Models and programs that the README, the demo, the tests and the benchmarks share."""
