"""For each kind of TensorRT layer, the PyTorch function that computes it, or the reason why there is none."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference import (
    boxes,
    elementwise,
    indexing,
    products,
    quantized,
    reduce,
    sampling,
    shape,
    windows,
)
from pipeline.runtime.reference.common import Kind, LayerError, Maybe, Outputs
from pipeline.runtime.reference.flow import BOUNDARIES


def assertion(layer: Layer, condition: torch.Tensor) -> Outputs:
    if not bool(condition.all()):
        raise LayerError(f"the network's assertion fails: {layer.attribute('message')}")
    return ()


def collective(layer: Layer, x: torch.Tensor, group: str = "") -> torch.Tensor:
    """Run a collective on a tensor in a process group of PyTorch."""
    if not group:
        raise LayerError("the engine has a collective, but the program's graph has none that names its process group")
    ops, ranks = torch.ops._c10d_functional, layer.attribute("num_ranks")
    reduction = {"PROD": "product"}.get(name := layer.attribute("reduction"), name.lower())
    begun = {
        "ALL_REDUCE": lambda: ops.all_reduce(x.contiguous(), reduction, group),
        "ALL_GATHER": lambda: ops.all_gather_into_tensor(x.contiguous(), ranks, group),
        "REDUCE_SCATTER": lambda: ops.reduce_scatter_tensor(x.contiguous(), reduction, ranks, group),
    }
    return ops.wait_tensor(begun[layer.attribute("operation")]())  # type: ignore[no-any-return]


def _layer_kind(compute: Callable[..., torch.Tensor | Outputs]) -> Kind:
    """Return a function that the executor can call for a layer. It calls ``compute`` with the layer, the inputs (None
    or omitted if absent) and, by keyword, the weights; ``compute`` returns the only output or a sequence of all."""
    parameters = inspect.signature(compute).parameters.values()
    least = sum(p.default is p.empty and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD) for p in parameters) - 1

    def run(layer: Layer, inputs: Sequence[Maybe], weights: Mapping[str, torch.Tensor]) -> Outputs:
        present = sum(x is not None for x in inputs[:least])
        if present < least:
            raise LayerError(f"the layer needs at least {least} inputs, but has {present}")
        result = compute(layer, *inputs, **weights)
        return (result,) if isinstance(result, torch.Tensor) else result

    return run


_FUNCTIONS: Mapping[str, Callable[..., torch.Tensor | Outputs]] = {
    "ACTIVATION": elementwise.activation,
    "ASSERTION": assertion,
    "ATTENTION_INPUT": products.attention_input,
    "ATTENTION_OUTPUT": products.attention_output,
    "CAST": elementwise.cast,
    "CONCATENATION": shape.concatenation,
    "CONSTANT": shape.constant,
    "CONVOLUTION": windows.convolution,
    "CUMULATIVE": reduce.cumulative,
    "DECONVOLUTION": windows.deconvolution,
    "DEQUANTIZE": quantized.dequantize,
    "DIST_COLLECTIVE": collective,
    "DYNAMIC_QUANTIZE": quantized.dynamic_quantize,
    "EINSUM": products.einsum,
    "ELEMENTWISE": elementwise.elementwise,
    "FILL": shape.fill,
    "GATHER": indexing.gather,
    "GRID_SAMPLE": sampling.grid_sample,
    "IDENTITY": elementwise.identity,
    "KV_CACHE_UPDATE": products.kv_cache_update,
    "LRN": reduce.lrn,
    "MATRIX_MULTIPLY": products.matrix_multiply,
    "NMS": boxes.nms,
    "NON_ZERO": reduce.non_zero,
    "NORMALIZATION": reduce.normalization,
    "ONE_HOT": shape.one_hot,
    "PADDING": shape.padding,
    "PARAMETRIC_RELU": elementwise.parametric_relu,
    "POOLING": windows.pooling,
    "QUANTIZE": quantized.quantize,
    "RAGGED_SOFTMAX": reduce.ragged_softmax,
    "REDUCE": reduce.reduce,
    "RESIZE": sampling.resize,
    "REVERSE_SEQUENCE": shape.reverse_sequence,
    "ROTARY_EMBEDDING": products.rotary_embedding,
    "SCALE": elementwise.scale,
    "SCATTER": indexing.scatter,
    "SELECT": elementwise.select,
    "SHAPE": shape.shape,
    "SHUFFLE": shape.shuffle,
    "SLICE": indexing.slice_,
    "SOFTMAX": reduce.softmax,
    "SQUEEZE": shape.squeeze,
    "TOPK": reduce.top_k,
    "UNARY": elementwise.unary,
    "UNSQUEEZE": shape.unsqueeze,
}
KINDS: Mapping[str, Kind] = MappingProxyType({name: _layer_kind(function) for name, function in _FUNCTIONS.items()})
FLOW = frozenset(BOUNDARIES)
"""The kinds of control-flow layers, which the executor runs itself."""
NOT_MODELLED: Mapping[str, str] = MappingProxyType(
    {
        "PLUGIN": "only the plugin's own code defines its results",
        "PLUGIN_V2": "only the plugin's own code defines its results",
        "PLUGIN_V3": "only the plugin's own code defines its results",
        "MOE": "no available TensorRT runs it, so that no result can be compared",
    }
)
