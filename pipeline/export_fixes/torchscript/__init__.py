"""Make TorchScript exportable: read its graph into records, and run each node in Python by an evaluator."""
