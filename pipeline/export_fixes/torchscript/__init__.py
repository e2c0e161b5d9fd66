"""Make TorchScript exportable: read its graph, and run each node by a Python function, its evaluator."""
