"""Building blocks for indexing and scattering."""

from pipeline.compat.torch_tensorrt.blocks import aten, block, call, of_call, unsupported

select = of_call(aten.select.int, "input", "dim", "index")
index_select = of_call(aten.index_select.default, "input", "dim", "index")
gather = of_call(aten.gather.default, "input", "dim", "index")
scatter_add = of_call(aten.scatter_add.default, "input", "dim", "index", "src")
index = of_call(aten.index.Tensor, "input", "indices")
scatter = block(
    lambda input, dim, index, src: call(
        aten.scatter.value if isinstance(src, bool | int | float) else aten.scatter.src, input, dim, index, src
    ),
    "aten.scatter.src, or aten.scatter.value of a number",
)
index_put_converter = of_call(aten.index_put.default, "input_tensor", "input_indices", "values", accumulate=False)
index_put_scatter_add_plugin = unsupported(
    "impl.select.index_put_scatter_add_plugin",
    "TensorRT-RTX has no plugin layers",
    "write impl.select.index_put_converter(…, accumulate=True)",
)
