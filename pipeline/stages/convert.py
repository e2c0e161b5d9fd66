"""convert: ``Partitioned`` → ``Converted``. Build a TensorRT network for each engine segment, and its description.

For each node, its converter appends layers to the network; then TensorRT's dtype, rank and static dims of the result
are compared with the node's fake tensor. Layers are named after the node, and weights after their recipe.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from typing import Any, cast

import sympy
import torch
from attrs import evolve
from toolz import merge
from torch.utils._pytree import tree_leaves

from pipeline.aten.naming import layer_name, make_unique
from pipeline.aten.support import CallingConvention
from pipeline.aten.types import Argument
from pipeline.build.memory import MemoryMappedWeights
from pipeline.build.profiles import engine_profiles, symbols_in
from pipeline.compose.pipelines import report, stage
from pipeline.errors import ConversionError, error_text, source_line, where_raised
from pipeline.frozen import FrozenDict
from pipeline.impl import barriers, base
from pipeline.impl.result_check import check_tensor
from pipeline.network.context import ConversionContext, NetworkError, SymbolicInt
from pipeline.network.description import LayerWeights, Network, Weight, describe, layer_weights
from pipeline.network.handle import NetworkHandle, drop_pages, name_dimensions, trt_weights_of_tensor
from pipeline.network.marks import Marks
from pipeline.network.net import LegacyNetwork, Net
from pipeline.program import Converted, Output, Partitioned, Port, Program, Segment, Verdict
from pipeline.recipes import Recipe
from pipeline.shapes.environment import Expr, Relation, bounds, expression
from pipeline.stages.required import check_requirements
from pipeline.trt import CAPABILITIES, Log, new_network, to_trt, trt, typed_layer


@stage
def convert(partitioned: Partitioned) -> Converted:
    """Build a TensorRT network for each engine segment, and check the result of each node's converter."""
    check_requirements(partitioned)
    nodes = {node.name: node for node in partitioned.program.graph.nodes}
    conversions = [_Conversion(partitioned, segment, nodes) for segment in partitioned.engine_segments]
    total, done = sum(len(c.segment.nodes) for c in conversions), 0
    for conversion in conversions:
        for name in conversion.segment.nodes:
            conversion.convert_node(name)
            done += 1
            report(done, total, name)
        conversion.finish()
    return Converted(
        partitioned,
        networks=tuple(c.network for c in conversions),
        handles=tuple(c.handle for c in conversions),
        recipes=FrozenDict(merge(c.recipes for c in conversions)),
        literals=FrozenDict(merge(c.ctx.literals for c in conversions)),
        computed=FrozenDict(merge(c.computed for c in conversions)),
    )


class _Conversion:
    """The state while one segment is converted to a TensorRT network."""

    def __init__(self, partitioned: Partitioned, segment: Segment, nodes: Mapping[str, torch.fx.Node]) -> None:
        self.program: Program = partitioned.program
        self.verdicts: Mapping[str, Verdict] = partitioned.verdicts
        self.segment, self.nodes = segment, nodes
        log = Log()
        builder = trt.Builder(log)
        inside = frozenset(segment.nodes)
        self.ctx = ConversionContext(new_network(builder), self.program.settings, log, inside=inside)
        self.ctx.constant_nodes = frozenset(segment.constants)
        self.ctx.ranges = self.ranges = symbols_in(self.program, segment)
        self.ctx.marks = Marks(segment.marks)
        self.handle = NetworkHandle(
            self.ctx.net, builder, log, self.ctx.cpu_weights_reference_holder, self.ctx.weight_refit_map
        )
        self.ctx.net.name = segment.name
        self.recipes: dict[str, Recipe] = {}
        self.computed: dict[str, str] = {}
        self.env: dict[str, Argument] = {}
        self.bindings = output_binding_names(self.program.outputs, segment)
        self.dimension_names = _shared_dimension_names(segment.inputs, self.program.shapes.relations)
        for port in segment.inputs:
            self.add_input(port)
        self.evaluate_constants()

    def add_input(self, port: Port) -> None:
        """Add a network input, and the symbols that can be read from its shape."""
        shape = tuple(d if isinstance(d, int) else self.size_in_network(d) for d in port.shape)
        dtype = port.dtype or torch.int64
        entering = dtype if dtype == torch.uint8 else base.network_dtype(dtype)
        source = self.ctx.net.add_input(port.name, to_trt(entering), shape)
        if source is None:
            said = self.ctx.log.error_text_since(0)
            raise ConversionError(port.name, "placeholder", "", f"TensorRT refused the input {port}: {said}")
        varying = zip(port.shape, shape, strict=True)
        name_dimensions(source, [self.dimension_names.get(str(d), "") if n < 0 else "" for d, n in varying])
        if port.kind == "symint":
            self.ctx.symbols[str(port.value)] = (source, None)
            return
        self.env[port.name] = inner = base.cast(self.ctx, port.name, source, dtype)
        for tensor in (source, inner):
            self.ctx.record_shape(tensor, port.shape)

    def size_in_network(self, expr: Expr) -> int:
        """Return the size that a network input declares for the dynamic size ``expr``: -1, or its value if the segment
        is for one profile, whose range of ``expr`` has a single value."""
        given = None if self.segment.profile is None else bounds(expr, self.ranges)
        return given.min if given is not None and given.min == given.max else -1

    def evaluate_constants(self) -> None:
        """Compute the weights. Parameters share the model's memory; tensors computed from them are in a file."""
        made = [name for name in self.segment.constants if self.program.constants[name].steps]
        file = MemoryMappedWeights([self.nodes[name].meta["val"].nbytes for name in made])
        self.handle.mapped += [file.mapping] if file.mapping is not None else []
        for placeholder in self.segment.constants:
            recipe = self.program.constants[placeholder]
            value = recipe.evaluate(self.program.parameters)
            if recipe.steps:
                value = file.copy_to_file(value)
                drop_pages(file.mapping)
            self.env[placeholder] = value
            self.recipes[recipe.name] = recipe
        self.ctx.constants = tuple(self.env[placeholder] for placeholder in self.segment.constants)
        self.ctx.constant_names = {
            id(self.env[name]): self.program.constants[name].name for name in self.segment.constants
        }

    def convert_node(self, name: str) -> None:
        """Call a node's converter, check the dtype, shape and network of its result, and store it in ``env``."""
        node = self.nodes[name]
        self.ctx.node = node
        mark, layers, literals = self.ctx.log.position(), self.ctx.net.num_layers, len(self.ctx.literals)
        ends = self.count_bindings()
        try:
            result = self.call_converter(node)
            self.check_result(node, result)
            self.check_network(node, result, layers, ends)
        except ConversionError:
            raise
        except Exception as error:
            said = "; ".join(self.ctx.log.errors_since(mark))
            words = str(error) if isinstance(error, NetworkError) else self.converter_error_text(node, error)
            message = f"{words} (TensorRT: {said})" if said and said not in words else words
            raise ConversionError(node.name, str(node.target), source_line(node), message) from error
        self.keep_direct_weights(layers)
        self.record_computed_weights(node, literals)
        self.name_layers(node, layers, result)
        self.ctx.record_result_shapes(result, node.meta.get("val"))
        self.env[name] = result

    def converter_error_text(self, node: torch.fx.Node, error: Exception) -> str:
        """Return the error message for a converter's exception, with the converter's name, file and line."""
        choice = self.verdicts[node.name].choice
        converter = f"the converter {choice.support.name} raised " if choice is not None else ""
        if isinstance(error, AttributeError) and "plugin" in str(error.name) and not CAPABILITIES.plugins:
            missing = f"{CAPABILITIES.flavour} has no plugin layers, so no {error.name}"
            return f"{converter}an error ({where_raised(error)}): {missing}"
        return f"{converter}{error_text(error)} ({where_raised(error)})"

    def call_converter(self, node: torch.fx.Node) -> Any:
        """Return the converter's result for the node's resolved arguments."""
        choice = self.verdicts[node.name].choice
        assert choice is not None
        net = Net(self.ctx, layer_name(node))
        args, kwargs = barriers.converted_arguments(net, node, self.converter_argument)
        given = LegacyNetwork(self.ctx) if choice.convention is CallingConvention.LEGACY else self.ctx
        self.ctx.requires_output_allocator |= choice.support.requires_output_allocator
        made = choice.support.converter_implementation(given, node.target, args, kwargs, net.name)
        return barriers.separate_result_if_marked(net, node, made)

    def converter_argument(self, node: torch.fx.Node) -> Argument:
        """Return what a converter receives for a node: a tensor of the network, a constant or a symbolic int."""
        if node.name in self.env:
            return self.env[node.name]
        value = node.meta.get("val")
        if isinstance(value, torch.SymInt):
            expr = expression(value)
            made = self.env[node.name] = expr if isinstance(expr, int) else SymbolicInt(expr)
            return made
        return value if isinstance(value, (int, float, bool)) else None

    def check_result(self, node: torch.fx.Node, result: object) -> None:
        """Raise an error if TensorRT's dtype, rank or static dims differ from those of the node's fake tensor."""
        expected = node.meta.get("val")
        values = (x.meta.get("val") for x in node.all_input_nodes)
        given = [value for value in values if isinstance(value, torch.Tensor)]
        relations = self.program.shapes.relations
        if isinstance(expected, torch.Tensor):
            check_tensor(result, expected, self.ranges, given, relations)
        elif isinstance(expected, (tuple, list)):
            if not isinstance(result, (tuple, list)) or len(result) != len(expected):
                due = f"the operator has {len(expected)} results"
                raise NetworkError(f"the converter returned {type(result).__name__}, but {due}")
            for made, wanted in zip(result, expected, strict=True):
                if made is not None and isinstance(wanted, torch.Tensor):
                    check_tensor(made, wanted, self.ranges, given, relations)

    def keep_direct_weights(self, first_layer: int) -> None:
        """Find weights that a converter set on layers itself, not by methods of `ConversionContext`, and register them
        in memory that stays valid until the build. ``first_layer``: the index of the converter's first layer."""
        for i in range(first_layer, self.ctx.net.num_layers):
            layer = typed_layer(self.ctx.net, i)
            for held in (each for each in layer_weights(layer) if each.pointer is not None):
                known = self.ctx.weights.get(held.pointer or 0)
                if known is None or math.prod(known.shape) != held.count:
                    setattr(layer, held.role, self.ctx.trt_weights(self.find_or_copy_weights(held)))

    def find_or_copy_weights(self, held: LayerWeights) -> torch.Tensor:
        """Return weights that a layer holds as a tensor: the segment's constant at their address, or else a copy."""
        dtype, size = getattr(torch, held.dtype), held.count
        for name in self.segment.constants:
            value = self.env[name]
            if (value.data_ptr(), value.dtype, value.numel()) == (held.pointer, dtype, size) and value.is_contiguous():
                return cast(torch.Tensor, value)
        memory = (ctypes.c_char * (size * dtype.itemsize)).from_address(held.pointer or 0)
        return torch.frombuffer(memory, dtype=dtype).clone()

    def count_bindings(self) -> tuple[int, int]:
        """Return the number of inputs and outputs of the network, which converters must not change."""
        return self.ctx.net.num_inputs, self.ctx.net.num_outputs

    def check_network(self, node: torch.fx.Node, result: object, first: int, binding_counts: tuple[int, int]) -> None:
        """Raise an error if a converter added an input or output to the network, or if its ``result`` has a tensor of
        another network. ``first``: the index of its first layer; ``binding_counts``: `count_bindings` before it."""
        if self.count_bindings() != binding_counts:
            raise NetworkError("the converter added an input or output to the network, which no converter may do")
        known = {id(t) for t in tree_leaves([self.env.get(n.name) for n in node.all_input_nodes])}
        for tensor in tree_leaves(result):
            if isinstance(tensor, trt.ITensor) and id(tensor) not in known and not self.is_in_network(tensor, first):
                raise NetworkError(f"the converter returned {tensor.name!r}, which is a tensor of another network")

    def is_in_network(self, tensor: object, first_layer: int) -> bool:
        """Return whether a tensor belongs to the network; layers from index ``first_layer`` on are searched first."""
        net = self.ctx.net
        layers = map(net.get_layer, (*range(first_layer, net.num_layers), *range(first_layer)))
        inputs = map(net.get_input, range(net.num_inputs))
        outputs = (layer.get_output(i) for layer in layers for i in range(layer.num_outputs))
        return any(tensor is known for known in chain(outputs, inputs))

    def record_computed_weights(self, node: torch.fx.Node, literal_count: int) -> None:
        """Record float arrays that a converter computed, presumably from parameters: a refit cannot update them.
        ``literal_count``: the number of literal weights before the converter's call."""
        parameters = [n.name for n in node.all_input_nodes if n.name in self.segment.constants]
        for name, value in list(self.ctx.literals.items())[literal_count:] if parameters else ():
            if value.is_floating_point() and value.numel() > 1:
                self.computed[name] = f"the converter of {layer_name(node)} computed it from {', '.join(parameters)}"

    def name_layers(self, node: torch.fx.Node, first_layer: int, result: object) -> None:
        """Name layers after their node if the converter has not named them. The layer that computes the node's result
        gets the node's plain name, if that is unused."""
        name, layers = layer_name(node), self.layers(first_layer)
        taken = name in {layer.name for layer in layers}
        for layer in layers:
            if layer.name.startswith("(Unnamed Layer"):
                layer.name = self.ctx.make_unique_name(f"{name}:{layer.type.name.lower()}")
        if layers and isinstance(result, trt.ITensor) and not taken:
            last = layers[-1]
            if last.name.startswith(f"{name}:") and last.num_outputs and last.get_output(0) is result:
                last.name = self.ctx.make_unique_name(name)

    def finish(self) -> None:
        """Finish the network: mark outputs, name tensors and weights, and create its description."""
        self.apply_recorded_names()
        read = self.names_of_read_tensors()
        for port in self.segment.outputs:
            self.mark_output(port, read)
        self.name_tensors()
        known: dict[int, Weight] = self.ctx.weights
        for pointer, weight in known.items():
            tensor = self.ctx.weight_refit_map[weight.name]
            if tensor.data_ptr() == pointer and tensor.numel():
                self.ctx.net.set_weights_name(trt_weights_of_tensor(tensor, weight), weight.name)
        first, *others = engine_profiles(self.program, self.segment, self.is_shape_tensor) or (None,)
        described = describe(self.ctx.net, name=self.segment.name, weight_name=known.get, profile=first)
        self.network: Network = evolve(described, other_profiles=tuple(p for p in others if p is not None))

    def apply_recorded_names(self) -> None:
        """Give each weight with a recipe, and the recipe, the name that a converter recorded for it, unless taken."""
        weights, taken = self.ctx.weights, {weight.name for weight in self.ctx.weights.values()}
        for pointer, name in self.ctx.recorded.items():
            known = weights.get(pointer)
            if known is None or known.name not in self.recipes or name in taken:
                continue
            tensor = self.ctx.weight_refit_map[known.name]
            if tensor.data_ptr() == pointer:
                self.recipes[name] = evolve(self.recipes[known.name], name=name)
                self.ctx.weight_refit_map[name], weights[pointer] = tensor, evolve(known, name=name)
                taken.add(name)

    def is_shape_tensor(self, port: Port) -> bool:
        """Return whether TensorRT reads an input, a symbolic int, as a shape (in a reshape), not only as a value."""
        return port.kind == "symint" and bool(self.ctx.symbols[str(port.value)][0].is_shape_tensor)

    def mark_output(self, port: Port, read_names: frozenset[str]) -> None:
        """Mark the tensor of a segment's output as a network output. An additional layer copies it if it is already an
        input, a constant or an output, or if layers read it (``read_names``): TensorRT-RTX 1.4 to 1.6 sometimes do not
        write an output from which one kernel also computes other outputs (docs/tensorrt.md)."""
        value = self.env[port.name]
        tensor = base.tensor(self.ctx, f"{port.name}:output", value)
        if port.dtype == torch.uint8:
            tensor = self.ctx.add(f"{port.name}:output", "cast", tensor, trt.uint8).get_output(0)
        elif not any(value is each for each in self.ctx.in_place) and (
            tensor.is_network_input
            or tensor.is_network_output
            or not isinstance(value, trt.ITensor)
            or tensor.name in read_names
        ):
            tensor = self.ctx.add(f"{port.name}:output", "identity", tensor).get_output(0)
        tensor.name = self.bindings[port.name]
        self.ctx.net.mark_output(tensor)

    def names_of_read_tensors(self) -> frozenset[str]:
        """Return the current names of the tensors that layers read."""
        tensors = (layer.get_input(i) for layer in self.layers() for i in range(layer.num_inputs))
        return frozenset(tensor.name for tensor in tensors if tensor is not None)

    def layers(self, first_layer: int = 0) -> list[Any]:
        """Return the network's layers from index ``first_layer`` on."""
        return [self.ctx.net.get_layer(i) for i in range(first_layer, self.ctx.net.num_layers)]

    def name_tensors(self) -> None:
        """Name each inner tensor after its layer, so that two builds of a network print the same text; if the converter
        named the tensor, keep a unique name."""
        taken = {port.name for port in self.segment.inputs} | {*self.bindings.values()}
        for layer in self.layers():
            after = layer.name if layer.name not in taken else f"{layer.name}:inner"
            for j, tensor in enumerate(map(layer.get_output, range(layer.num_outputs))):
                if tensor is not None and not tensor.is_network_output:
                    named = not tensor.name.startswith(("(Unnamed Layer", f"{layer.name}_output"))  # TensorRT's own
                    tensor.name = make_unique(tensor.name if named else after if j == 0 else f"{after}:{j}", taken)


def output_binding_names(outputs: Sequence[Output], segment: Segment) -> dict[str, str]:
    """Return the name of each engine output, by the name of the segment's output `Port`, which is a node's name:
    ``{"linear_3": "logits"}``. A result of the program has the program's name, any other output the node's."""
    names = {o.value: o.name for o in reversed(outputs) if o.kind == "user" and not o.constant and o.name}
    taken = {port.name for port in (*segment.inputs, *segment.outputs)}
    found: dict[str, str] = {}
    for port in segment.outputs:
        wanted = names.get(port.name, port.name)
        found[port.name] = wanted if wanted not in taken else port.name
        taken.add(found[port.name])
    return found


def _shared_dimension_names(inputs: Iterable[Port], relations: Iterable[Relation]) -> dict[str, str]:
    """Return names of the dynamic sizes that several dims of the inputs have. A size is named after the first of these
    dims: ``{"s0": "ids.0"}`` for dim 0 of ``ids``. Sizes that must be equal share one name."""
    same: dict[str, str] = {}
    for sides in (r.condition.args for r in relations if isinstance(r.condition, sympy.Eq)):
        if not any(side.is_Number for side in sides):
            kept, gone = (same.get(str(side), str(side)) for side in sides)
            same |= dict.fromkeys((gone, *(s for s, of in same.items() if of == gone)), kept)
    places: dict[str, list[str]] = {}
    for port in inputs:
        for dim, size in enumerate(port.shape):
            if not isinstance(size, int):
                places.setdefault(same.get(str(size), str(size)), []).append(f"{port.name}.{dim}")
    names = {size: first for size, (first, *others) in places.items() if others}
    return names | {size: names[one] for size, one in same.items() if one in names}
