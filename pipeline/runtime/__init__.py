"""Run compiled programs."""
