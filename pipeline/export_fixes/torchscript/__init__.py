"""Make TorchScript exportable: read its graph into records, and interpret them by evaluators."""
