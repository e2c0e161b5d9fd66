"""Show compiled programs: a record that describes one, the web page that draws it, and differences of two."""
