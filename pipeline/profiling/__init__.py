"""Profile compiled programs on a GPU: times by layer, segment and node, as records, tables and traces."""
