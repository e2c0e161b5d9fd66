"""Turn a user's model into a ``Program``: capture, inputs, ranges, functionalization, and replacements of torch's
functions while it traces."""
