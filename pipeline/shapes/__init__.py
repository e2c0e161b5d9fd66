"""Represent sizes: expressions, ranges, and the relations between them."""
