"""TensorRT networks: the context in which converters add layers, the frozen description, and its replay."""
