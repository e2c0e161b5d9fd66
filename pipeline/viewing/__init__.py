"""View compiled programs: one record of a program, the page that draws it, and the differences of two."""
