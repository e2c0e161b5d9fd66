"""Facts about operators, and the binding of their arguments."""
