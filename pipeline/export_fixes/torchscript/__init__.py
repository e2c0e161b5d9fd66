"""Make TorchScript exportable: read its graph into records, and interpret each node by its evaluator."""
