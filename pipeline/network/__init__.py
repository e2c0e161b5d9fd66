"""A TensorRT network: the context that converters write to, its frozen description, and its replay."""
