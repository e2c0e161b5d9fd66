"""Provide properties of ATen operators, bind their arguments, and define our own operators ``pipeline::…``."""
