"""Building blocks for converters: functions of tensors and plain values that add layers to a ``Net``, without ATen.

Converters of this package pass a ``Net``: ``base.cast(net, x, torch.float16)``. Users' converters pass their context
and name: ``base.cast(ctx, name, x, torch.float16)``.
"""
