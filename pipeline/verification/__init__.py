"""Verify compiled programs: sample inputs, eager's results, error bounds, the search for faults, healing."""
