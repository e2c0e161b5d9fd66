"""Properties of ATen operators, and the binding of their arguments."""
