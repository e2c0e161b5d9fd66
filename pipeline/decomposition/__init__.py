"""Implement ``decompose``: decompositions, constant folding with recipes, complex numbers as pairs of reals."""
