"""The parts of ``decompose``: decompositions, constants folded with their recipes, complex numbers as pairs of
reals."""
