"""What was compiled, to look at: one record of a program, the page that draws it, and the differences of two."""
