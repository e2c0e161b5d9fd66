"""Building blocks for indexing and scattering."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call, op_block, unsupported

select = op_block(aten.select.int, "input", "dim", "index")
index_select = op_block(aten.index_select.default, "input", "dim", "index")
gather = op_block(aten.gather.default, "input", "dim", "index")
scatter_add = op_block(aten.scatter_add.default, "input", "dim", "index", "src")
index = op_block(aten.index.Tensor, "input", "indices")
scatter = block(
    lambda input, dim, index, src: call(
        aten.scatter.value if isinstance(src, bool | int | float) else aten.scatter.src, input, dim, index, src
    ),
    "aten.scatter.src, or aten.scatter.value of a number",
)
index_put_converter = op_block(aten.index_put.default, "input_tensor", "input_indices", "values", accumulate=False)
index_put_scatter_add_plugin = unsupported(
    "impl.select.index_put_scatter_add_plugin",
    "TensorRT-RTX has no plugin layers",
    "write impl.select.index_put_converter(…, accumulate=True)",
)
