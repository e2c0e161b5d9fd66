"""Views of compiled programs: a record of a program, the web page that draws it, and differences between two."""
