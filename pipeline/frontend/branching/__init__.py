"""Branches that data decides: both are traced, and data chooses between their results."""
