"""View compiled programs: a record of a program, the page that draws it, and the differences between two."""
