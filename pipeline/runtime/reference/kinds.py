"""The function of each layer kind, and the reason for each kind without one."""

from collections.abc import Mapping
from types import MappingProxyType

import torch

from pipeline.network.description import Layer
from pipeline.runtime.reference import (
    boxes,
    dtypes,
    elementwise,
    indexing,
    products,
    quantized,
    reduce,
    sampling,
    shape,
    windows,
)
from pipeline.runtime.reference.common import present
from pipeline.runtime.reference.flow import BOUNDARIES
from pipeline.runtime.reference.layer_types import Inputs, Kind, LayerError, Outputs, Roles


def assertion(layer: Layer, inputs: Inputs, weights: Roles) -> Outputs:
    (condition,) = present(inputs, 1)
    if not bool(condition.all()):
        raise LayerError(f"the network's assertion fails: {layer.attribute('message')}")
    return ()


def collective(layer: Layer, inputs: Inputs, group: str) -> Outputs:
    """Run a collective in a process group of PyTorch."""
    if not group:
        raise LayerError("the program has no collective here, so that the engine gets no communicator")
    (x,), ops, ranks = present(inputs, 1), torch.ops._c10d_functional, layer.attribute("num_ranks")
    reduction = {"PROD": "product"}.get(name := layer.attribute("reduction"), name.lower())
    begun = {
        "ALL_REDUCE": lambda: ops.all_reduce(x.contiguous(), reduction, group),
        "ALL_GATHER": lambda: ops.all_gather_into_tensor(x.contiguous(), ranks, group),
        "REDUCE_SCATTER": lambda: ops.reduce_scatter_tensor(x.contiguous(), reduction, ranks, group),
    }
    return (ops.wait_tensor(begun[layer.attribute("operation")]()),)


KINDS: Mapping[str, Kind] = MappingProxyType(
    {
        **elementwise.KINDS,
        **dtypes.KINDS,
        **quantized.KINDS,
        **shape.KINDS,
        **indexing.KINDS,
        **reduce.KINDS,
        **products.KINDS,
        **windows.KINDS,
        **sampling.KINDS,
        **boxes.KINDS,
        "ASSERTION": assertion,
        "DIST_COLLECTIVE": lambda layer, inputs, weights: collective(layer, inputs, ""),
    }
)
FLOW = frozenset(BOUNDARIES)
"""The kinds of control flow, which the executor interprets itself."""
NOT_MODELLED: Mapping[str, str] = MappingProxyType(
    {
        "PLUGIN": "a plugin's meaning is its own code",
        "PLUGIN_V2": "a plugin's meaning is its own code",
        "PLUGIN_V3": "a plugin's meaning is its own code",
        "MOE": "no available TensorRT runs it, so that no result can be compared",
    }
)
