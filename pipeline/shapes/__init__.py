"""Sizes: expressions, ranges, and the relations between them."""
