"""What ``decompose`` is made of: constants folded with their recipes, complex numbers as pairs of reals."""
