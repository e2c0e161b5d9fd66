"""Compatibility with other compilers and libraries: run converters and models that were written for them."""
