"""Build engines: TensorRT's builder, worker processes, memory and progress reports."""
