"""Make TorchScript a module that torch.export captures: its graph is read into records and interpreted by
evaluators."""
