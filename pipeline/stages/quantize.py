"""quantize: ``Program`` → ``Program``. Quantize the weights and activations of linear layers and convolutions.

Before: a model in floating point. After: a model with the same inputs and outputs, whose matmuls and convolutions read
weights rounded to nearest, and activations rounded within ranges from calibration. Recipes round the weights from the
model's original parameters, so that a refit rounds new weights. Insert the stage before ``decompose``.

The only method is rounding to nearest. If a model loses too much accuracy, quantize it with NVIDIA ModelOpt or torchao,
which have better methods (smoothing, AWQ, GPTQ, quantization-aware training), and compile the result
(docs/quantization.md).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Final, Literal

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_leaves

from pipeline.aten.graphs import copy_graph
from pipeline.aten.naming import module_path, origin_of
from pipeline.aten.quantized import TYPES, operators
from pipeline.aten.types import Node
from pipeline.capture.fake_tensors import fake_mode, fake_result
from pipeline.decomposition.fold import is_constant
from pipeline.decomposition.templates import Templates, copy_calls
from pipeline.errors import CalibrationError, PipelineError
from pipeline.frozen import FrozenDict
from pipeline.improvements.precision import Excluded, check_exclude, excludes, warn_of_unmatched
from pipeline.improvements.quantizing import fake_quantize_weight, scale_block_shape, weight_of
from pipeline.program import Program, is_operator, rename_outputs
from pipeline.recipes import parameter_recipe, qualified_name
from pipeline.records.wording import kind_of, one_of
from pipeline.verification.eager import measure_ranges

log = logging.getLogger(__name__)

Weights = Literal["int8", "int4", "fp8"]
Activations = Literal["int8", "fp8"]

BETTER: Final = (
    "rounded to nearest; where that loses too much, NVIDIA ModelOpt and torchao do better: "
    "compile the model that they return"
)


@frozen
class Decision:
    """The quantization decision about one operator: the types of its weight and activation, or why it has none."""

    node: str
    target: str
    path: str
    said: str

    def __str__(self) -> str:
        return f"{self.path or self.node}: {self.target}: {self.said}"


def _to_calibration_inputs(value: object) -> tuple[object, ...]:
    """Return the calibration inputs as a tuple; raise a `TypeError` for a single tensor, text or mapping."""
    if isinstance(value, torch.Tensor | str | Mapping) or not isinstance(value, Iterable):
        raise TypeError(f"calibration must be a list of typical inputs, as [(x,)], got {kind_of(value)}")
    return tuple(value)


@frozen
class Quantize:
    """The stage that quantizes a model; `quantize` returns it and documents its fields."""

    weights: Weights = field(default="int8", validator=one_of("int8", "int4", "fp8"))
    activations: Activations | None = field(default=None, validator=one_of(None, "int8", "fp8"))
    calibration: tuple[object, ...] = field(default=(), converter=_to_calibration_inputs, eq=False, repr=False)
    exclude: tuple[Excluded, ...] = field(default=(), converter=check_exclude)
    percentile: float | None = None
    name: str = "quantize"

    def __attrs_post_init__(self) -> None:
        share = self.percentile
        if share is not None and not (isinstance(share, int | float) and 0 < share <= 100):
            raise ValueError(f"percentile must be a number above 0 and at most 100, or None, got {share!r}")
        if self.activations is not None and not self.calibration:
            raise CalibrationError(f"activations={self.activations!r} needs typical inputs: pass calibration=[(x,)]")
        if {self.weights, self.activations} == {"int8", "fp8"}:
            raise ValueError(f"no GPU multiplies {self.weights} weights by {self.activations} inputs: use one type")

    def __call__(self, program: Program) -> Program:
        """Return the program with quantized matmuls and convolutions; the argument is not changed."""
        warn_of_unmatched(self.exclude, program.graph, self.name, log)
        return _Quantizer(program, self).run()

    def decisions(self, program: Program) -> tuple[Decision, ...]:
        """Return the decision about each operator that has a weight, in the order of the program."""
        quantizer = _Quantizer(program, self)
        quantizer.run()
        return tuple(quantizer.decisions)

    def explain(self, program: Program) -> str:
        """Return the decisions as text, one per line, and the number of quantized operators."""
        made = self.decisions(program)
        count = sum("not quantized" not in decision.said for decision in made)
        return "\n".join([*map(str, made), f"{count} of {len(made)} operators with weights are quantized ({BETTER})"])


def quantize(
    weights: Weights = "int8",
    activations: Activations | None = None,
    calibration: Iterable[object] = (),
    exclude: Iterable[Excluded] = (),
    *,
    percentile: float | None = None,
) -> Quantize:
    """Return a stage that quantizes a model: ``default().insert(quantize("int8"), before="decompose")``.

    Args:
        weights: the type for weights of linear layers and convolutions: ``"int8"`` or ``"fp8"`` (E4M3) with a scale for
            each output channel, or ``"int4"`` for linear layers, in blocks of 128, 64 or 32 along each row.
        activations: the type of the activations that multiply these weights, with one scale per tensor; None: floats.
        calibration: typical inputs, which determine the ranges of activations. Each is one call: a tensor, a
            tuple of arguments, or a dict of keyword arguments. They run in eager PyTorch, on the CPU.
        exclude: nodes that stay in floating point, as in `pipeline.autocast`: operators, patterns for operator names or
            for paths of modules (``"*.head"``), and predicates on the module path.
        percentile: the range of an activation is this percentile of its magnitudes, the greatest over all inputs; None:
            the greatest magnitude.

    Raises:
        ValueError: a type is not supported, or no GPU multiplies the two types.
        CalibrationError: activations are to be quantized without calibration, or with inputs that do not fit the model.
        TypeError: an entry of ``exclude`` has another type.
    """
    return Quantize(weights, activations, calibration, exclude, percentile)


class _Quantizer:
    """The state while one program is quantized: the new graph, the decisions, and the calibrated ranges."""

    def __init__(self, program: Program, options: Quantize) -> None:
        self.program, self.options = program, options
        self.graph = copy_graph(program.graph)
        self.mode = fake_mode(program.graph)
        self.templates = Templates(self.mode)
        self.constant: dict[Node, bool] = {}
        for node in self.graph.nodes:
            self.constant[node] = is_constant(node, self.constant, program)
        self.decisions: list[Decision] = []
        self.weights: dict[Node, Node] = {}
        self.pairs: dict[str, Node] = {}
        self.scales: dict[str, torch.Tensor] = {}

    def run(self) -> Program:
        """Return the program with quantized operators, whose scales are new constants."""
        chosen = [n for n in self.graph.nodes if is_operator(n) and weight_of(n) is not None and self.can_quantize(n)]
        found = self.activation_ranges(chosen) if self.options.activations is not None else {}
        for node in chosen:
            self.quantize_operator(node, found)
        names = {f"{node}.scale": scale for node, scale in self.scales.items()}
        constants = {_placeholder_name(name): parameter_recipe(name) for name in names}
        p = self.program
        return p.with_graph(
            self.graph,
            outputs=rename_outputs(p.outputs, self.graph),
            constants=FrozenDict({**p.constants, **constants}),
            parameters=FrozenDict({**p.parameters, **names}),
            written=p.written | frozenset(names),
        )

    def can_quantize(self, node: Node) -> bool:
        """Return whether to quantize an operator; if not, record the decision with its reason."""
        weight = weight_of(node)
        if weight is None or not self.constant[weight]:
            why = "the model computes the weight"
        elif not weight.meta["val"].is_floating_point():
            why = f"the weight is {weight.meta['val'].dtype}"
        elif any(excludes(entry, node.target, module_path(node)) for entry in self.options.exclude):
            why = "exclude matches it"
        elif scale_block_shape(self.options.weights, node) is None:
            rows = "linear layers whose rows are blocks of 128, 64 or 32, and whose outputs are even in number"
            why = f"INT4 is only for {rows}"
        else:
            return True
        self.record_decision(node, f"not quantized: {why}")
        return False

    def record_decision(self, node: Node, decision: str) -> None:
        self.decisions.append(Decision(node.name, qualified_name(node.target), module_path(node), decision))

    def activation_ranges(self, operators_to_quantize: Sequence[Node]) -> Mapping[str, float]:
        """Run the calibration inputs; return the range of each activation that these operators read, by node name."""
        wanted = {source.name for node in operators_to_quantize for source in node.all_input_nodes[:1]}
        try:
            return measure_ranges(self.program, wanted, self.options.percentile, self.calibration_batches())
        except PipelineError:
            raise
        except Exception as error:
            raise CalibrationError(f"the model fails on inputs in calibration: {error}") from error

    def calibration_batches(self) -> Iterator[Sequence[object]]:
        """Yield each calibration input as the list of inputs that the program's graph expects."""
        for index, given in enumerate(self.options.calibration):
            args = () if isinstance(given, Mapping) else tuple(given) if isinstance(given, tuple | list) else (given,)
            leaves = tree_leaves((args, dict(given) if isinstance(given, Mapping) else {}))
            if len(leaves) != len(self.program.inputs):
                due = f"but the model takes {len(self.program.inputs)} inputs: pass each call's inputs as a tuple"
                raise CalibrationError(f"calibration[{index}] has {len(leaves)} values, {due}")
            yield leaves

    def quantize_operator(self, node: Node, ranges: Mapping[str, float]) -> None:
        """Round an operator's weight and, if requested, its activation, whose range is in ``ranges`` by node name."""
        weight, source, options = weight_of(node), node.args[0], self.options
        assert weight is not None and isinstance(source, Node)
        block = scale_block_shape(options.weights, node)
        if weight not in self.weights:
            self.weights[weight] = self.round_weight(weight, block, node)
        node.replace_input_with(weight, self.weights[weight])
        granularity = "in blocks of " + str(block[-1]) if block and block[-1] > 1 else "by output"
        said = f"{options.weights} weight {granularity}"
        if options.activations is not None and not ranges[source.name]:
            said += ", activations in floating point: all are 0 in calibration, which gives no range"
        elif options.activations is not None:
            node.replace_input_with(source, self.insert_activation_pair(source, ranges[source.name], node))
            said += f", {options.activations} activations up to {ranges[source.name]:.4g}"
        self.record_decision(node, said)

    def round_weight(self, weight: Node, block: Sequence[int] | None, before: Node) -> Node:
        """Insert the nodes that round a weight, and return the last. ``block``: the sizes of a block that shares a
        scale; ``before``: the operator that reads the weight, whose source line the nodes get."""
        options = self.options

        def rounding(given: torch.Tensor) -> torch.Tensor:
            return fake_quantize_weight(given, options.weights, block or ())

        rounding.__name__ = f"rounded_{options.weights}_{block}"
        template = self.templates.find(rounding, "quantize", (weight,), {}, weight.meta["val"])
        assert template is not None
        with self.inserting_after(weight):
            made: Node = copy_calls(template.graph, [weight], self.graph, before)
        return made

    def inserting_after(self, node: Node) -> AbstractContextManager[None]:
        """Return a context in which new nodes are inserted, in order, after this node and after all placeholders."""
        last: Node = [each for each in self.graph.nodes if each.op == "placeholder"][-1]
        return self.graph.inserting_before((last if node.op == "placeholder" else node).next)

    def insert_activation_pair(self, activation: Node, largest: float, reader: Node) -> Node:
        """Return the quantize/dequantize pair that rounds an activation; create it if it does not exist. ``largest``:
        the largest magnitude; ``reader``: an operator that reads the activation."""
        type = self.options.activations
        if activation.name not in self.pairs:
            assert type is not None
            self.scales[activation.name] = torch.tensor(largest / TYPES[type].high)
            with self.graph.inserting_before(next(iter(self.graph.nodes))):
                scale = self.graph.placeholder(_placeholder_name(f"{activation.name}.scale"))
            scale.meta["val"] = self.mode.from_tensor(self.scales[activation.name])
            args = (activation, scale, type, [-1] * activation.meta["val"].dim())
            with self.inserting_after(activation):
                made = self.graph.call_function(operators.fake_quantize.default, args)
            made.meta = {**origin_of(reader.meta), "val": fake_result(self.mode, made.target, args, {})}
            self.pairs[activation.name] = made
        return self.pairs[activation.name]


def _placeholder_name(name: str) -> str:
    """Return the name of the graph's placeholder for a scale: ``quantize_relu_scale`` for ``relu.scale``."""
    return f"quantize_{name.replace('.', '_')}"
