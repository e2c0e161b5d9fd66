"""Capture an ``nn.Module``, ``ExportedProgram`` or TorchScript as a ``Program``.

Capture exports the module, lifts its parameters and buffers, names its inputs and keeps the ranges of its dynamic dims.
Nothing it is given is changed.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any, TypeAlias

import torch
from attrs import evolve
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, ExportGraphSignature, InputKind, OutputKind, OutputSpec
from torch.utils._pytree import tree_flatten

from pipeline.aten.graphs import results
from pipeline.aten.types import Argument, Spec
from pipeline.errors import CaptureError, source_line
from pipeline.frontend import dynamic_shapes as ranges
from pipeline.frontend import input_checks as checks
from pipeline.frontend.aliased_buffers import check_views
from pipeline.frontend.as_strided import without_gaps
from pipeline.frontend.call_signature import signature_of
from pipeline.frontend.constant_inputs import held, known, taken_out
from pipeline.frontend.dynamic_shapes import is_input
from pipeline.frontend.error_attribution import GENERATOR, check_dtypes
from pipeline.frontend.example_guards import told_apart
from pipeline.frontend.exporting import Traced, traced
from pipeline.frontend.fake_device_copy import attributes
from pipeline.frontend.functional import functional
from pipeline.frontend.functorch import check_values
from pipeline.frontend.interrupts import interruptible
from pipeline.frontend.origin import with_origin
from pipeline.frontend.output_names import named
from pipeline.frontend.patch_contexts import one_export, tracing_for
from pipeline.frontend.profiles import resolved, stated
from pipeline.frontend.runtime_asserts import asserted, counted
from pipeline.frontend.subclasses import flattened
from pipeline.frontend.torchscript.module import interpreted
from pipeline.frozen import FrozenDict
from pipeline.program import Output, Port, Program, port, version
from pipeline.recipes import Recipe, identity, numbers_of
from pipeline.runtime.autocast_context import is_autocast_on, under_autocast, without_autocast
from pipeline.settings import CompilationSettings
from pipeline.shapes.environment import ShapeEnvironment
from pipeline.shapes.from_export import environment

log = logging.getLogger(__name__)

HINT = "ExportedProgram.run_decompositions({}) alone shows the same; write to clones of tensors, not to their views"


Model: TypeAlias = "torch.nn.Module | ExportedProgram | torch.jit.ScriptFunction[Any, Any]"
"""What can be captured."""


@interruptible
def capture(
    model: Model,
    args: Sequence[object] = (),
    kwargs: Mapping[str, object] | None = None,
    dynamic_shapes: object = None,
    settings: CompilationSettings | None = None,
    *,
    device: str | torch.device | None = None,
    output_names: Sequence[str] | None = None,
    profiles: Sequence[Spec] | None = None,
) -> Program:
    """Capture a module called with ``args`` and ``kwargs``, or an ``ExportedProgram``, as a program.

    Args:
        model: a module (exported here, without gradients), or the result of ``torch.export.export``,
            ``torch.jit.script``, ``torch.jit.trace`` or ``torch.jit.load``.
        args: example inputs: tensors, ``pipeline.Input`` with shapes and ranges, or ``pipeline.Constant`` for an input
            that has one value, in any pytree.
        kwargs: the same by keyword.
        dynamic_shapes: as in ``torch.export.export``; added to the ranges that ``Input`` gives.
        settings: the settings that stages read; default ones if None.
        device: ``"cuda"`` captures as on a GPU, whether or not there is one: the model and torch decide as they would
            there. The model, its tensors and the inputs stay where they are. None: ``settings.device``.
        output_names: the names of the outputs, in order; None: their keys in what the model returns (``logits``,
            ``hidden_states.0``), ``output`` for a single tensor, ``output.0`` by position.
        profiles: several ``dynamic_shapes``, or `Input` has several: each call has to fit one of them. The model is
            captured once, for the range over all.

    Raises:
        CaptureError: torch.export cannot capture the module (its message is kept), or a weight has no value;
            or a node of TorchScript is not supported (the message names the node, file and line).
        DtypeError: an input has a dtype that the model does not take; the message names it, and the expected one.
        TypeError: ``model`` is none of these, or ``forward`` does not take these inputs.
        ValueError: ``dynamic_shapes`` names a missing input or dim; inputs given beside an ExportedProgram do not fit
            it; the number of ``output_names`` is not that of the outputs.
    """
    given, model = model, model if isinstance(model, ExportedProgram) else interpreted(model)
    settings = settings or CompilationSettings()
    settings = settings if device is None else settings.evolve(device=device)
    if is_autocast_on():
        inside = under_autocast(model) if isinstance(model, torch.nn.Module) else model
        with without_autocast():
            again = partial(capture, output_names=output_names, profiles=profiles)
            program = again(inside, args, kwargs, dynamic_shapes, settings)
        return with_origin(evolve(program, signature=signature_of(given)), given)
    with one_export, tracing_for(settings.device, settings.compute_capabilities):
        program = _captured(model, args, kwargs, dynamic_shapes, settings, profiles)
    return with_origin(evolve(named(program, output_names), signature=signature_of(given)), given)


def _captured(
    model: Model,
    args: object,
    kwargs: object,
    dynamic_shapes: object,
    settings: CompilationSettings,
    profiles: Sequence[Spec] | None,
) -> Program:
    args, kwargs, constants = taken_out(*checks.arguments(args, kwargs))
    dynamic_shapes, wishes = stated(model, args, kwargs, dynamic_shapes, profiles)
    if isinstance(model, ExportedProgram):
        if constants:
            raise TypeError("an ExportedProgram has its graph already: pass the module for inputs that are a Constant")
        if dynamic_shapes is not None:
            raise TypeError(
                "an ExportedProgram has its dynamic shapes already: pass dynamic_shapes to torch.export.export"
            )
        checks.check_values(chain(model.named_parameters(), model.named_buffers()))
        checks.check_apart(model)
        check_values(model)
        checks.check_device(model, settings.device)
        leaves, asked, found = checks.leaves(model, args, kwargs), dict[str, Any](), Traced(model, dynamic_shapes)
    elif isinstance(model, torch.nn.Module):
        with known(constants):
            found = traced(model, args, kwargs, dynamic_shapes, settings)
        leaves, _ = tree_flatten((args, kwargs), is_leaf=is_input)
        asked = ranges.asked(ranges.wishes(found.exported, model, args, kwargs, found.shapes))
    else:
        raise TypeError(f"model is a {type(model).__name__}: pass an nn.Module, an ExportedProgram or TorchScript")
    exported, reads = found.exported, found.reads
    _warn_of_unchecked(found)
    exported, graph_module, signature = _functional(exported)
    graph_module = without_gaps(graph_module)
    program = flattened(_program(exported, _own_tensors(model), graph_module, signature, settings, leaves, asked))
    program = held(told_apart(program, found.decisions), constants)
    check_dtypes(program)
    read = ((name, program.parameters[name]) for name in sorted(reads & program.parameters.keys()))
    numbers = FrozenDict({place: number for name, buffer in read for place, number in numbers_of(name, buffer)})
    return evolve(program, numbers=numbers, profiles=resolved(wishes, program))


def _warn_of_unchecked(found: Traced) -> None:
    """Warn of conditions on the data that the program assumes."""
    if unchecked := {**found.checks, **dict.fromkeys(asserted(found.exported))}:
        log.warning("the model checks its data at %s: taken to hold, and not checked", ", ".join(unchecked))
    if needed := dict.fromkeys(counted(found.exported)):
        why = "a mask picks as many elements as the model needs at %s: taken to hold, and not checked"
        log.warning(why, ", ".join(needed))


def _functional(exported: ExportedProgram) -> tuple[ExportedProgram, torch.fx.GraphModule, ExportGraphSignature]:
    try:
        with warnings.catch_warnings():  # torch's own, of its own code
            warnings.simplefilter("ignore")
            return functional(exported)
    except CaptureError:
        raise
    except Exception as error:
        raise CaptureError(
            f"torch.export cannot take the in-place operators out of the model: {error}", HINT
        ) from error


def _tuned(leaves: Sequence[Any]) -> dict[int, Sequence[int]]:
    """The sizes to tune engines for, of each input that is a tensor or an Input, by its place."""
    sizes = {i: v.shape for i, v in enumerate(leaves) if isinstance(v, torch.Tensor)}
    return {**sizes, **{i: [opt for _, opt, _ in v.ranges] for i, v in enumerate(leaves) if is_input(v)}}


def _program(
    exported: ExportedProgram,
    own: Mapping[str, torch.Tensor],
    graph_module: torch.fx.GraphModule,
    signature: ExportGraphSignature,
    settings: CompilationSettings,
    leaves: Sequence[object],
    asked: Mapping[str, Any],
) -> Program:
    parameters, constants, buffers = _lifted(exported, signature, own)
    graph = graph_module.graph
    names = {spec.arg.name: str(spec.target) for spec in signature.input_specs if spec.target is not None}
    read = [names[n.name] for n in graph.nodes if n.op == "placeholder" and n.name in names and n.users]
    changed = zip(signature.output_specs, results(graph), strict=True)
    lines = {str(o.target): source_line(value) for o, value in changed if o.kind == OutputKind.BUFFER_MUTATION}
    check_views(parameters, lines, read)
    values = {n.name: n.meta.get("val") for n in graph.nodes if n.op == "placeholder"}
    arguments = [spec.arg for spec in signature.input_specs if spec.kind == InputKind.USER_INPUT]
    tuned = _tuned(leaves)
    sizes = {argument.name: tuned[i] for i, argument in enumerate(arguments) if i in tuned}
    examples = _examples(arguments, leaves or tree_flatten(exported.example_inputs)[0])
    own_tensors = {spec.arg.name: parameters.get(str(spec.target)) for spec in signature.input_specs}
    known = {**{name: value for name, value in own_tensors.items() if value is not None}, **examples}
    shapes = environment(exported, graph, {a.name: values[a.name] for a in arguments}, sizes, asked, known)
    return Program(
        graph_module=graph_module,
        inputs=tuple(_port(argument, values, shapes) for argument in arguments),
        outputs=_outputs(signature.output_specs, results(graph), buffers),
        constants=FrozenDict(constants),
        buffers=FrozenDict(buffers),
        parameters=FrozenDict(parameters),
        shapes=shapes,
        in_spec=exported.call_spec.in_spec,
        out_spec=exported.call_spec.out_spec,
        settings=settings,
        versions=FrozenDict({name: version(tensor) for name, tensor in parameters.items()}),
        aliases=frozenset(exported.state_dict),
        examples=examples,
        written=frozenset(str(s.target) for s in signature.input_specs if s.kind == InputKind.CONSTANT_TENSOR),
    )


def _examples(arguments: Sequence[Any], leaves: Sequence[Any]) -> FrozenDict[str, torch.Tensor]:
    """The tensors among the example inputs, by the inputs' names."""
    rows = zip(arguments, leaves, strict=False)
    return FrozenDict({argument.name: value for argument, value in rows if isinstance(value, torch.Tensor)})


def _own_tensors(model: torch.nn.Module | ExportedProgram) -> dict[str, torch.Tensor]:
    """What a module holds, by its names: an export of stand-ins has fake tensors in their place."""
    if isinstance(model, ExportedProgram):
        return {}
    held = chain(model.named_parameters(remove_duplicate=False), model.named_buffers(remove_duplicate=False))
    return {**attributes(model), **dict(held)}


def _held(name: str, value: object) -> str:
    """Why no program takes an object that a model holds."""
    if isinstance(value, torch.Generator):
        return GENERATOR
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    return f"the model holds {name}, a {kind}: programs take tensors, and no other objects of its own"


def _lifted(
    exported: ExportedProgram, signature: ExportGraphSignature, own: Mapping[str, torch.Tensor]
) -> tuple[dict[str, torch.Tensor], dict[str, Recipe], dict[str, str]]:
    """The model's own tensors by their names; the placeholders that stay what one of them is; those that change."""
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
            raise CaptureError(_held(name, exported.constants.get(target)))
        tensor = own.get(target) if isinstance(tensors[target], FakeTensor) else tensors[target]
        if tensor is None:
            why = f"the model holds a fake tensor, {target}, which an earlier trace of it has left"
            raise CaptureError(why, "make the model anew; torch.export leaves what a model keeps from a call fake")
        parameters[target] = tensor
        if target in mutated:
            buffers[name] = target
        else:
            constants[name] = identity(target)
    return parameters, constants, buffers


def _port(argument: Any, values: Mapping[str, Argument], shapes: ShapeEnvironment) -> Port:
    if isinstance(argument, ConstantArgument):
        return Port(argument.name, kind="constant", value=argument.value)
    return port(argument.name, values[argument.name], shapes)


def _outputs(specs: Sequence[OutputSpec], values: Sequence[object], buffers: Mapping[str, str]) -> tuple[Output, ...]:
    """The outputs. What is changed and returned is one value in the graph; ``target`` then names what was changed."""
    outputs = tuple(map(_output, specs, values))
    placeholders = {name: placeholder for placeholder, name in buffers.items()}
    changed = {o.value: placeholders.get(o.target, o.target) for o in outputs if o.kind != "user"}
    return tuple(
        evolve(o, target=changed.get(o.value, o.value)) if o.kind == "user" and not o.constant else o for o in outputs
    )


def _output(spec: OutputSpec, value: Argument) -> Output:
    kinds = {
        OutputKind.USER_OUTPUT: "user",
        OutputKind.BUFFER_MUTATION: "buffer",
        OutputKind.USER_INPUT_MUTATION: "input",
    }
    if spec.kind == OutputKind.PARAMETER_MUTATION:
        hint = "keep it as a buffer; where only the first call writes, as in RWKV, call the model once before"
        where = source_line(value)
        place = f" ({where})" if where else ""
        raise CaptureError(f"the model writes to its parameter {spec.target} when it is called{place}", hint)
    if spec.kind not in kinds:
        raise CaptureError(f"output {spec.arg} is a {spec.kind.name}, which the compiler does not take")
    constant = not isinstance(value, torch.fx.Node)
    return Output(value if constant else value.name, kinds[spec.kind], spec.target or "", constant)  # type: ignore[arg-type]
