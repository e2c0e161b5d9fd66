"""Everything that persuades torch.export: patches of torch, examples in its form, and attempts."""
