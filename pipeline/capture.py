"""The front door: an ``nn.Module`` or ``ExportedProgram`` becomes a ``Program``.

Capture exports the module, lifts its parameters and buffers, names its inputs and keeps the ranges of its dynamic dims.
Nothing it is given is changed.
"""

from __future__ import annotations

import inspect
import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import sympy
import torch
from torch._dynamo.exc import UserError
from torch.export import ExportedProgram
from torch.export.dynamic_shapes import refine_dynamic_shapes_from_suggested_fixes
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind, OutputSpec
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from pipeline.errors import CaptureError
from pipeline.frozen import FrozenDict
from pipeline.functional import functional
from pipeline.inputs import Input
from pipeline.program import Output, Port, Program, Range, expression, port, results
from pipeline.recipes import Recipe, identity
from pipeline.settings import CompilationSettings

log = logging.getLogger(__name__)

UNBOUNDED_FACTOR = 4
"""A dim without an upper bound gets this many times its size in the example as its ``max`` (and at least 16)."""


def capture(
    model: torch.nn.Module | ExportedProgram,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    settings: CompilationSettings | None = None,
) -> Program:
    """The program of a module called with ``args`` and ``kwargs``, or of an ``ExportedProgram``.

    Args:
        model: a module (exported here, without gradients), or the result of ``torch.export.export``.
        args: example inputs: tensors, or ``pipeline.Input`` with shapes and ranges, in any pytree.
        kwargs: the same by keyword.
        dynamic_shapes: as in ``torch.export.export``; added to the ranges that ``Input`` gives.
        settings: what the stages read; default settings if None.

    Raises:
        CaptureError: torch.export cannot capture the module; its message is kept.
        TypeError: ``model`` is neither of the two, or ``args`` is not a sequence.
    """
    settings = settings or CompilationSettings()
    if isinstance(model, ExportedProgram):
        if dynamic_shapes is not None:
            raise TypeError(
                "an ExportedProgram has its dynamic shapes already: pass dynamic_shapes to torch.export.export"
            )
        exported = model
    elif isinstance(model, torch.nn.Module):
        if isinstance(args, torch.Tensor | Input) or not isinstance(args, Sequence):
            raise TypeError(f"args is a {type(args).__name__}: pass a tuple of inputs, such as args=(x,)")
        exported = _export(model, tuple(args), dict(kwargs or {}), dynamic_shapes)
    else:
        raise TypeError(f"model is a {type(model).__name__}: pass an nn.Module or an ExportedProgram")
    flat, _ = tree_flatten((tuple(args), dict(kwargs or {})), is_leaf=_is_input)
    wishes = {i: v for i, v in enumerate(flat) if isinstance(v, Input) and v.is_dynamic}
    exported, graph_module = functional(exported)
    return _program(exported, graph_module, settings, wishes)


def _is_input(value: Any) -> bool:
    return isinstance(value, Input)


def _export(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], dynamic_shapes: Any
) -> ExportedProgram:
    device = next((p.device for p in (*model.parameters(), *model.buffers())), torch.device("cpu"))
    given, named = tree_map(lambda v: v.example(device) if _is_input(v) else v, (args, kwargs), is_leaf=_is_input)
    shapes = _dynamic_shapes(model, args, kwargs, dynamic_shapes)
    if model.training:
        log.warning(
            "the module is in training mode: dropout and batch norm behave as in training; call model.eval() first"
        )
    from_inputs = shapes is not dynamic_shapes
    try:
        return _exported(model, given, named, shapes)
    except UserError as first:
        error: Exception = first
        tied = _tied(first, shapes) if from_inputs else None
    except Exception as other:
        raise _refusal(model, other) from other
    for again, deferred in ((tied, False), (shapes if tied is None else tied, True)):
        try:
            if again is not None:
                return _exported(model, given, named, again, deferred=deferred)
        except Exception as other:
            error = other if not deferred else error
    raise _refusal(model, error) from error


def _refusal(model: torch.nn.Module, error: Exception) -> CaptureError:
    return CaptureError(f"torch.export cannot capture {type(model).__name__}: {error}")


def _exported(
    model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], shapes: Any, *, deferred: bool = False
) -> ExportedProgram:
    """The export. ``deferred``: what torch.export cannot prove of the dims becomes a relation, checked at each call."""
    options: dict[str, Any] = {"prefer_deferred_runtime_asserts_over_guards": True} if deferred else {}
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.export.export(model, args, kwargs=kwargs, dynamic_shapes=shapes, strict=False, **options)


def _tied(error: UserError, shapes: Any) -> Any:
    """The shapes with dims tied that the model needs equal, as torch.export suggests; None if it suggests more.

    Inputs give each dim a name of its own, while a model may need two of them to be one (a mask and what it masks).
    Their ranges are what was asked for: a suggestion that narrows one, or makes it a number, is not taken.
    """
    try:
        tied = refine_dynamic_shapes_from_suggested_fixes(error.msg, shapes)
    except Exception:
        return None
    return tied if _ends(tied) == _ends(shapes) else None


def _ends(shapes: Any) -> list[Any]:
    """The least and the greatest size of each dim."""
    return [(dim.min, dim.max) if hasattr(dim, "min") else dim for dim in tree_flatten(shapes)[0]]


def _dynamic_shapes(model: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> Any:
    """torch.export's dynamic_shapes: what the Inputs say, unless the user said it for the whole call."""
    flat, spec = tree_flatten((args, kwargs), is_leaf=_is_input)
    if not any(_is_input(v) and v.is_dynamic for v in flat):
        return given
    if given is not None:
        raise CaptureError(
            "dynamic dims are given twice: by Input(min_shape=…) and by dynamic_shapes; use one of the two"
        )
    dims = [v.dims(i) or None if _is_input(v) else None for i, v in enumerate(flat)]
    positional, named = tree_unflatten(dims, spec)
    return inspect.signature(model.forward).bind(*positional, **named).arguments


def _program(
    exported: ExportedProgram,
    graph_module: torch.fx.GraphModule,
    settings: CompilationSettings,
    wishes: Mapping[int, Input],
) -> Program:
    signature, graph = exported.graph_signature, graph_module.graph
    values = {n.name: n.meta.get("val") for n in graph.nodes if n.op == "placeholder"}
    tensors: dict[str, torch.Tensor] = {**dict(exported.named_parameters()), **dict(exported.named_buffers())}
    mutated = set(signature.buffers_to_mutate.values())
    constants: dict[str, Recipe] = {}
    buffers: dict[str, str] = {}
    names: list[str] = []
    parameters: dict[str, torch.Tensor] = {}
    for spec in signature.input_specs:
        name = spec.arg.name
        if spec.kind == InputKind.USER_INPUT:
            names.append(name)
        elif spec.kind in (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR):
            target = str(spec.target)
            parameters[target] = tensors[target] if target in tensors else exported.constants[target]
            if target in mutated:
                buffers[name] = target
            else:
                constants[name] = identity(target)
        else:
            raise CaptureError(f"input {name} is a {spec.kind.name}, which the compiler does not take")
    symbols = _symbols(exported, names, values, wishes)
    specs = signature.input_specs
    inputs = tuple(_port(s.arg, values, symbols) for s in specs if s.kind == InputKind.USER_INPUT)
    return Program(
        graph_module=graph_module,
        inputs=inputs,
        outputs=tuple(map(_output, signature.output_specs, results(graph))),
        constants=FrozenDict(constants),
        buffers=FrozenDict(buffers),
        parameters=FrozenDict(parameters),
        symbols=FrozenDict(symbols),
        in_spec=exported.call_spec.in_spec,
        out_spec=exported.call_spec.out_spec,
        settings=settings,
        versions=FrozenDict({name: tensor._version for name, tensor in parameters.items()}),
        aliases=frozenset(exported.state_dict),
        relations=tuple(_relations(graph)),
    )


def _relations(graph: torch.fx.Graph) -> Iterator[tuple[Any, str]]:
    """What the graph asserts of its symbols, beyond their ranges: (expression, how to say it)."""
    for node in graph.nodes:
        if node.target is torch.ops.aten._assert_scalar.default and isinstance(node.args[0], torch.fx.Node):
            value = node.args[0].meta.get("val")
            if isinstance(value, torch.SymBool) and (relation := value.node.expr) not in (True, sympy.true):
                yield relation, str(relation)


def _port(argument: Any, values: Mapping[str, Any], symbols: Mapping[str, Range]) -> Port:
    if isinstance(argument, ConstantArgument):
        return Port(argument.name, kind="constant", value=argument.value)
    return port(argument.name, values[argument.name], symbols)


def _output(spec: OutputSpec, value: Any) -> Output:
    kinds = {
        OutputKind.USER_OUTPUT: "user",
        OutputKind.BUFFER_MUTATION: "buffer",
        OutputKind.USER_INPUT_MUTATION: "input",
    }
    if spec.kind not in kinds:
        raise CaptureError(f"output {spec.arg} is a {spec.kind.name}, which the compiler does not take")
    constant = not isinstance(value, torch.fx.Node)
    return Output(value if constant else value.name, kinds[spec.kind], spec.target or "", constant)  # type: ignore[arg-type]


def _symbols(
    exported: ExportedProgram, names: Sequence[str], values: Mapping[str, Any], wishes: Mapping[int, Input]
) -> dict[str, Range]:
    """Each symbol's range: bounds from torch.export, opt from ``Input(opt_shape=…)`` or else from the example."""
    hints: dict[str, int] = {}
    for position, name in enumerate(names):
        sizes = values[name].shape if isinstance(values[name], torch.Tensor) else [values[name]]
        wish = wishes.get(position)
        for dim, size in enumerate(sizes):
            expr = expression(size) if isinstance(size, torch.SymInt) else 0
            if not isinstance(expr, int) and expr.is_Symbol:
                opt = wish.ranges[dim][1] if wish is not None else size.node.hint
                hints.setdefault(str(expr), int(opt))
    return {str(s): _range(str(s), r, hints.get(str(s))) for s, r in exported.range_constraints.items() if s.is_Symbol}


def _range(name: str, given: Any, hint: int | None) -> Range:
    low = max(int(given.lower), 0) if given.lower.is_Integer else 0
    if given.upper.is_Integer and int(given.upper) < 2**31:
        high = int(given.upper)
    else:
        high = max(UNBOUNDED_FACTOR * (hint or 4), 16, low)
        log.warning("dim %s has no upper bound; engines take up to %d: give a max (Dim or pipeline.Input)", name, high)
    opt = hint if hint is not None else (low + high) // 2
    return Range(low, min(max(opt, low), high), high)
