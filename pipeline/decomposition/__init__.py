"""Implement ``decompose``: decompositions, constant folding, and complex numbers as pairs of reals."""
