"""Represent TensorRT networks: the context in which converters add layers, a frozen description, and its replay."""
