"""Run converters and models that were written for other compilers."""
