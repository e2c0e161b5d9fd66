"""Building blocks: functions of a ``Net``, tensors and plain values that add layers and know nothing of ATen.

Our converters pass their ``Net``: ``base.cast(net, x, torch.float16)``. A user's converter passes its context and name
instead: ``base.cast(ctx, name, x, torch.float16)``.
"""
