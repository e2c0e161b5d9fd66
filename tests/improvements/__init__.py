"""A file for each file of passes."""
