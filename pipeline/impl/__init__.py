"""Building blocks: functions that add layers to a ``Net``, given tensors and plain values; they do not depend on ATen.

This package's converters pass a ``Net``: ``base.cast(net, x, torch.float16)``. Users' converters pass their context and
name: ``base.cast(ctx, name, x, torch.float16)``.
"""
