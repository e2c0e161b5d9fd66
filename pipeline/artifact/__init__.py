"""What is kept of a compiled program, and changed in it."""
