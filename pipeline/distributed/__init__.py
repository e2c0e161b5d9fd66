"""Compile models that are sharded over the ranks of torch.distributed."""
