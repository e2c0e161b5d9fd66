"""Run compiled programs on TensorRT or on the CPU: inputs, engines, PyTorch segments, CUDA graphs and state."""
