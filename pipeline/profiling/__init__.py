"""Times of a compiled program on a GPU: by layer, segment and node, as records, tables and traces."""
