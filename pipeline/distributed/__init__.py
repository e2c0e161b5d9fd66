"""Models that are sharded over ranks. Nothing here imports torch.distributed before it is needed."""
