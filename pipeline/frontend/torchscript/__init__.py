"""TorchScript as a module that torch.export captures: its graph is read to records and interpreted by evaluators."""
