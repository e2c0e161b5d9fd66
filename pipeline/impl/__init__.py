"""Building blocks: functions of ``(ctx, name, tensors, plain values)`` that add layers and know nothing of ATen."""
