"""Models whose parameters are sharded over the ranks of torch.distributed; nothing here imports it before it is needed."""
