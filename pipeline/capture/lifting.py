"""Convert a functional export to a program with lifted parameters and buffers, named inputs and size ranges."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputKind, OutputSpec
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.utils._pytree import tree_leaves

from pipeline.aten.graphs import results_of
from pipeline.aten.types import Argument
from pipeline.capture.as_strided import replace_as_strided
from pipeline.capture.shared_tensors import check_overlaps
from pipeline.errors import CaptureError, source_line
from pipeline.export_fixes import GENERATOR_MESSAGE, ExportNotes
from pipeline.frozen import FrozenDict
from pipeline.inputs import Input
from pipeline.program import Output, Program, make_port, tensor_version
from pipeline.recipes import Recipe, parameter_recipe
from pipeline.settings import CompilationSettings
from pipeline.shapes.from_export import shape_environment


def program_of_export(
    exported: ExportedProgram,
    graph_module: torch.fx.GraphModule,
    signature: ExportGraphSignature,
    notes: ExportNotes,
    settings: CompilationSettings,
) -> Program:
    """Return an export, with the facts about the module in ``notes``, as a program with lifted weights.

    ``graph_module``, ``signature``: the functional graph of the export, and its signature (`functionalize`).

    Raises:
        CaptureError: the model holds, writes or returns unsupported objects.
    """
    parameters, constants, buffers = _lifted_tensors(exported, signature, notes.tensors)
    arguments = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    leaves = notes.inputs or tree_leaves(exported.example_inputs)
    examples = {a.name: v for a, v in zip(arguments, leaves, strict=False) if isinstance(v, torch.Tensor)}
    graph_module = replace_as_strided(graph_module, examples)
    graph = graph_module.graph
    names = {spec.arg.name: str(spec.target) for spec in signature.input_specs if spec.target is not None}
    read = [names[n.name] for n in graph.nodes if n.op == "placeholder" and n.name in names and n.users]
    changed = zip(signature.output_specs, results_of(graph), strict=True)
    lines = {str(o.target): source_line(value) for o, value in changed if o.kind == OutputKind.BUFFER_MUTATION}
    check_overlaps(parameters, lines, read)
    values = {n.name: n.meta.get("val") for n in graph.nodes if n.op == "placeholder"}
    values |= {a.name: a.value for a in arguments if isinstance(a, ConstantArgument)}
    tuned = {a.name: _sizes_to_tune_for(v) for a, v in zip(arguments, notes.inputs, strict=False)}
    sizes = {name: shape for name, shape in tuned.items() if shape is not None}
    own = {s.arg.name: parameters[str(s.target)] for s in signature.input_specs if str(s.target) in parameters}
    inputs = {argument.name: values[argument.name] for argument in arguments}
    shapes = shape_environment(exported, graph, inputs, sizes, notes.ranges, own | examples)
    return Program(
        graph_module=graph_module,
        inputs=tuple(make_port(name, value, shapes) for name, value in inputs.items()),
        outputs=_make_outputs(signature.output_specs, results_of(graph), buffers),
        constants=FrozenDict(constants),
        buffers=FrozenDict(buffers),
        parameters=FrozenDict(parameters),
        shapes=shapes,
        in_spec=exported.call_spec.in_spec,
        out_spec=exported.call_spec.out_spec,
        settings=settings,
        versions=FrozenDict({name: tensor_version(tensor) for name, tensor in parameters.items()}),
        aliases=frozenset(exported.state_dict),
        examples=FrozenDict(examples),
        written=frozenset(str(s.target) for s in signature.input_specs if s.kind == InputKind.CONSTANT_TENSOR),
    )


def _sizes_to_tune_for(example_input: object) -> Sequence[int] | None:
    """Return the sizes to tune engines for: an Input's optimal sizes or a tensor's sizes; None for other values."""
    if isinstance(example_input, Input):
        return [opt for _, opt, _ in example_input.ranges]
    return example_input.shape if isinstance(example_input, torch.Tensor) else None


def _lifted_tensors(
    exported: ExportedProgram, signature: ExportGraphSignature, module_tensors: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, Recipe], dict[str, str]]:
    """Return three mappings: the model's tensors by name; by placeholder, the recipe of each constant; and, by
    placeholder, the name of each buffer that the graph mutates. ``module_tensors``: real tensors for fake ones."""
    tensors = {**exported.constants, **dict(exported.named_parameters()), **dict(exported.named_buffers())}
    mutated = set(signature.buffers_to_mutate.values())
    parameters: dict[str, torch.Tensor] = {}
    constants: dict[str, Recipe] = {}
    buffers: dict[str, str] = {}
    for spec in signature.input_specs:
        name, target = spec.arg.name, str(spec.target)
        if spec.kind == InputKind.USER_INPUT:
            continue
        if spec.kind not in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            value = exported.constants.get(target)
            kind = f"{type(value).__module__}.{type(value).__qualname__}"
            why = f"forward reads the attribute {name} of type {kind}, but a program can store only tensors"
            raise CaptureError(GENERATOR_MESSAGE if isinstance(value, torch.Generator) else why)
        tensor = module_tensors.get(target) if isinstance(tensors[target], FakeTensor) else tensors[target]
        if tensor is None:
            why = f"the tensor {target} of the model is a FakeTensor without data: an earlier torch.export assigned it"
            raise CaptureError(why, "create the model again, and do not assign tensors to attributes in forward")
        parameters[target] = tensor
        if target in mutated:
            buffers[name] = target
        else:
            constants[name] = parameter_recipe(target)
    return parameters, constants, buffers


def _make_outputs(
    specs: Sequence[OutputSpec], results: Sequence[object], mutated_buffers: Mapping[str, str]
) -> tuple[Output, ...]:
    """Return an `Output` for each of the graph's ``results``, whose kinds are in ``specs``, the output specs of the
    export's signature. ``mutated_buffers`` maps the placeholder of each mutated buffer to the buffer's name."""
    outputs = tuple(map(_make_output, specs, results))
    placeholders = {name: placeholder for placeholder, name in mutated_buffers.items()}
    changed = {o.value: placeholders.get(o.target, o.target) for o in outputs if o.kind != "user"}
    return tuple(
        evolve(o, target=changed.get(o.value, o.value)) if o.kind == "user" and not o.constant else o for o in outputs
    )


def _make_output(spec: OutputSpec, returned: Argument) -> Output:
    """Return the `Output` for a value that the graph returns; raise a `CaptureError` for a kind without support."""
    written = {OutputKind.BUFFER_MUTATION: "buffer", OutputKind.USER_INPUT_MUTATION: "input"}
    kinds = {OutputKind.USER_OUTPUT: "user", **written}
    if spec.kind == OutputKind.PARAMETER_MUTATION:
        hint = "make it a buffer; if only the first call writes to it, call the model once before compiling"
        where = source_line(returned)
        why = f"the model writes to its parameter {spec.target} when it is called{where and f' ({where})'}"
        raise CaptureError(why, hint)
    if spec.kind not in kinds:
        why = f"the exported program has the output {spec.arg} of the unsupported kind {spec.kind.name}"
        raise CaptureError(why, "export a module that returns only tensors and numbers, for inference")
    constant = not isinstance(returned, torch.fx.Node)
    if not constant and isinstance(result := returned.meta.get("val"), torch.SymBool) and free_unbacked_symbols(result):
        place = source_line(returned) or returned.name
        raise CaptureError(f"the model returns a data-dependent Python bool ({place})", "return a bool tensor")
    return Output(returned if constant else returned.name, kinds[spec.kind], spec.target or "", constant)  # type: ignore[arg-type]
