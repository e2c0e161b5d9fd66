"""The building block that replaces a slice of a tensor by another tensor (``slice_scatter``)."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call

slice_scatter = block(
    lambda input, src, dim, start=None, end=None, step=None: call(
        aten.slice_scatter.default, input, src, dim, start, end, 1 if step is None else step
    ),
    "aten.slice_scatter.default",
)
