"""Implement ``decompose``: decompositions, constant folding into recipes, and complex numbers as pairs of reals."""
