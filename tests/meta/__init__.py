"""Faults are planted here, to see that the tests would find them."""
