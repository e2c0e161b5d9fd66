"""Building blocks: functions of a ``Net``, tensors and plain values that add layers and know nothing of ATen.

Converters of ours pass the ``Net`` that they are given, ``base.cast(net, x, torch.float16)``. One of your own has a
context and a name, and passes those two in its place: ``base.cast(ctx, name, x, torch.float16)``.
"""
