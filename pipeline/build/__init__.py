"""TensorRT's builder, and what stands around it."""
