"""Build engines: TensorRT's builder, and the processes, memory and progress around it."""
