"""Verification of compiled programs: sample inputs, eager's results, error bounds, bisection of errors, healing."""
