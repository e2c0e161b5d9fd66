"""An evaluator: it takes an item of a result, and adds no layer.

from torch_tensorrt.dynamo.conversion import ConversionContext, ConverterPriority, dynamo_tensorrt_converter
"""

import operator

from pipeline.compat.torch_tensorrt import ConversionContext, ConverterPriority, dynamo_tensorrt_converter


def is_sequence(node, settings=None):
    """Whether what an item is taken of has items."""
    return isinstance(node.args[0].meta["val"], (tuple, list))


@dynamo_tensorrt_converter(
    operator.getitem,
    capability_validator=is_sequence,
    priority=ConverterPriority.HIGH,
    supports_dynamic_shapes=True,
)
def getitem(ctx: ConversionContext, target, args, kwargs, name):
    """The item."""
    return target(*args)
