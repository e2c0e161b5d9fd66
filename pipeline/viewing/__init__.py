"""Show compiled programs: a record that describes a program, the web page that draws it, and differences of two
programs."""
