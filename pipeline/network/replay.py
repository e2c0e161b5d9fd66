"""Create a TensorRT network from its frozen description (a replay): the inverse of `describe`.

Networks cannot be pickled, so other processes receive descriptions and replay them. Replay also proves that
descriptions are complete: the description of a replayed network equals the original description.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from pipeline.errors import PipelineError
from pipeline.network.attributes import ATTRIBUTES, Value
from pipeline.network.description import Layer, Network
from pipeline.network.handle import name_dimensions
from pipeline.network.replay_layers import BOUNDARIES, LAYERS, UNREPLAYED
from pipeline.trt import Log, new_network, trt, trt_dtype, typed_layer

__all__ = ["ReplayError", "WeightOf", "replay"]

WeightOf: TypeAlias = Callable[[str], Any]


class ReplayError(PipelineError):
    """A layer of a description cannot be created; the message names the layer and the reason."""


def replay(network: Network, weight_of: WeightOf, builder: trt.Builder, log: Log) -> trt.INetworkDefinition:
    """Create an `INetworkDefinition` from its description; the caller adds the optimization profile.

    weight_of: returns the `trt.Weights` of a name; their memory must live until the engine is built. Raise a
    `ReplayError` with TensorRT's message if it rejects a layer, or if a layer's kind cannot be replayed.
    """
    return _Replay(network, weight_of, new_network(builder), log).run()


class _Replay:
    """The state of a replay: the new network, tensors by name, and loops, conditionals and attentions by number."""

    def __init__(self, network: Network, weight_of: WeightOf, net: trt.INetworkDefinition, log: Log) -> None:
        self.network, self.weight_of, self.net, self.log = network, weight_of, net, log
        self.tensors: dict[str, trt.ITensor] = {}
        self.owners: dict[tuple[str, Value], object] = {}

    def run(self) -> trt.INetworkDefinition:
        self.net.name = self.network.name
        for tensor in self.network.inputs:
            new_input = self.net.add_input(tensor.name, trt_dtype(tensor.dtype), tensor.shape)
            name_dimensions(new_input, tensor.dimension_names)
            self.tensors[tensor.name] = new_input
        layers = [self.create_layer(row) for row in self.network.layers]
        for row, layer in zip(self.network.layers, layers, strict=True):
            self.connect_later_inputs(row, layer)
        for tensor in self.network.outputs:
            self.net.mark_output(self.tensors[tensor.name])
        for weight in self.network.weights:
            self.net.set_weights_name(self.weight_of(weight.name), weight.name)
        return self.net

    def create_layer(self, row: Layer) -> trt.ILayer:
        """Create the layer that a row describes, but do not connect inputs that come from later layers."""
        mark = self.log.position()
        layer = self.add_layer_by_kind(row)
        if layer is None:
            raise self.layer_error(row, self.log.error_text_since(mark))
        layer.name = row.name
        for index, tensor in enumerate(row.outputs):
            self.tensors[tensor.name] = layer.get_output(index)
            layer.get_output(index).name = tensor.name
        self.set_attributes(row, layer)
        return layer

    def add_layer_by_kind(self, row: Layer) -> trt.ILayer:
        """Add the layer that a row of the description describes, by the function for its kind, and return it."""
        inputs = [None if name is None else self.tensors.get(name) for name in row.inputs]
        if row.kind in ("ATTENTION_INPUT", "ATTENTION_OUTPUT"):
            return self.attention_boundary(row, inputs)
        if row.kind in BOUNDARIES:
            return BOUNDARIES[row.kind](self.loop_or_conditional(row), row, inputs, partial(self.trt_weights, row))
        if row.kind not in LAYERS:
            raise self.layer_error(row, UNREPLAYED.get(row.kind, f"layers of kind {row.kind} cannot be replayed"))
        return LAYERS[row.kind](self.net, row, inputs, partial(self.trt_weights, row))

    def loop_or_conditional(self, row: Layer) -> Any:
        """Return the loop or conditional to which a boundary layer belongs; create it for the first of its layers."""
        number = row.attribute("loop")
        key = ("loop", number) if number is not None else ("conditional", row.attribute("conditional"))
        if key not in self.owners:
            self.owners[key] = self.net.add_loop() if key[0] == "loop" else self.net.add_if_conditional()
        return self.owners[key]

    def attention_boundary(self, row: Layer, inputs: list[trt.ITensor]) -> trt.ILayer:
        """Return the layer of an ATTENTION_INPUT row, for which TensorRT adds both layers, or ATTENTION_OUTPUT row."""
        if row.kind == "ATTENTION_OUTPUT":
            return typed_layer(self.net, self.net.num_layers - 1)
        norm, kind = trt.AttentionNormalizationOp.__members__[row.attribute("norm_op")], row.attribute("causal_kind")
        if kind is None:
            attention = self.net.add_attention(*inputs[:3], norm, row.attribute("causal"))
        else:
            attention = self.net.add_attention_v2(*inputs[:3], norm, trt.CausalMaskKind.__members__[kind])
        if attention is None:
            return None
        attention.decomposable = row.attribute("decomposable")
        return typed_layer(self.net, self.net.num_layers - 2)

    def trt_weights(self, row: Layer, role: str) -> Any:
        name = row.weight(role)
        return trt.Weights(trt_dtype(row.outputs[0].dtype)) if name is None else self.weight_of(name)

    def set_attributes(self, row: Layer, layer: trt.ILayer) -> None:
        """Set the attributes of a new layer whose values differ from those in the row that describes it."""
        for attribute in ATTRIBUTES.get(row.kind, ()):
            name, value, write = attribute.name, row.attribute(attribute.name), attribute.type.write
            if write is not None and value is not None and attribute.type.read(layer, name) != value:
                write(layer, name, value)

    def connect_later_inputs(self, row: Layer, layer: trt.ILayer) -> None:
        """Connect inputs that were not given at the layer's creation: optional ones, and those from later layers."""
        for index, name in enumerate(row.inputs):
            if name is not None and (index >= layer.num_inputs or layer.get_input(index) is None):
                layer.set_input(index, self.tensors[name])

    def layer_error(self, row: Layer, why: str) -> ReplayError:
        return ReplayError(f"cannot create layer {row.name!r} ({row.kind}) of network {self.network.name!r}: {why}")
