"""Executors of what was compiled."""
