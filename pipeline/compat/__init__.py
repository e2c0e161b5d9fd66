"""Compatibility: run converters and models that were written for other compilers and libraries."""
