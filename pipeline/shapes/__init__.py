"""Represent dynamic sizes: symbolic expressions, ranges, and relations between sizes."""
