"""Convert TorchScript to an ``nn.Module`` whose ``forward`` interprets the TorchScript graph.
The interpreter runs each node by an evaluator, or else by the node's torch operator."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Final, TypeAlias, TypeGuard

import torch
from attrs import frozen
from torch.fx import traceback as provenance
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.aten.naming import make_unique
from pipeline.errors import CaptureError, PipelineError
from pipeline.export_fixes.module_copy import copy_module
from pipeline.export_fixes.torchscript.control import CONTROL
from pipeline.export_fixes.torchscript.graph import Block, Graph, Node, Value, read_graph
from pipeline.export_fixes.torchscript.python_values import CONTAINERS, NUMBERS, OBJECTS
from pipeline.export_fixes.torchscript.registry import Call, Evaluators
from pipeline.export_fixes.torchscript.tensors import PACKED, TENSORS, to_dtype
from pipeline.records.wording import kind_of

EVALUATORS: Final = Evaluators({**OBJECTS, **CONTROL, **NUMBERS, **CONTAINERS, **TENSORS, **PACKED})
"""All evaluators of TorchScript nodes that come with this package."""

_TWIN: Final = "hacked_twin"
_HINT: Final = (
    "pass an evaluator: pipeline.compat.torchscript.model(scripted, evaluators=EVALUATORS.register(kind, f)) is a "
    "module that can be compiled"
)


@frozen(eq=False)
class Interpreter:
    """Runs the blocks of one TorchScript graph; ``values`` maps the names of values to the results so far."""

    evaluators: Evaluators
    values: dict[str, Value]

    def run_block(self, block: Block, *inputs: Value) -> tuple[Value, ...]:
        """Run the nodes of a block on these inputs, and return the block's outputs."""
        self.values.update(zip(block.inputs, inputs, strict=True))
        for node in block.nodes:
            results = self.run_node(node)
            self.values.update(zip(node.outputs, results, strict=True))
        return tuple(self.values[name] for name in block.outputs)

    def run_node(self, node: Node) -> tuple[Value, ...]:
        """Run a node, and return one value for each of its outputs."""
        call = Call(node, tuple(partial(self.run_block, block) for block in node.blocks))
        try:
            result = self.evaluate_node(call, [self.values[name] for name in node.inputs])
        except PipelineError:
            raise
        except GuardOnDataDependentSymNode as error:
            raise call.error(f"its behavior depends on the values of tensors: {error}".partition("\n")[0]) from error
        except Exception as error:
            if not getattr(error, "__notes__", ()):
                error.add_note(f"in TorchScript's {node.name} ({call.where})")
            raise
        return _as_output_tuple(call, result)

    def evaluate_node(self, call: Call, inputs: list[Value]) -> Value:
        """Return a node's result, by the registered evaluator, or else by the torch operator of the node's schema."""
        node = call.node
        evaluator = self.evaluators.find(node)
        if not node.blocks:
            provenance.get_current_meta().update(node.location.meta)
        if evaluator is not None:
            return evaluator(call, *inputs)
        operator = torch_operator(node.kind, node.overload)
        if operator is None:
            raise call.error("pipeline has no evaluator for this kind of node", _HINT)
        pairs = zip(operator._schema.arguments[: len(inputs)], inputs, strict=True)  # they stand in the schema's order
        given = [(each, to_dtype(value) if "ScalarType" in str(each.real_type) else value) for each, value in pairs]
        kwargs = {each.name: value for each, value in given if each.kwarg_only}
        return operator(*(value for each, value in given if not each.kwarg_only), **kwargs)


def _as_output_tuple(call: Call, result: Value) -> tuple[Value, ...]:
    """Return a node's result as a tuple with one value per output; a block's result is a tuple already."""
    count = len(call.node.outputs)
    if count == 1 and not call.blocks:
        return (result,)
    if count == 0:
        return ()
    values = result if isinstance(result, tuple | list) else (result,)
    if len(values) != count:
        raise call.error(f"its evaluator returned {len(values)} values, but the node has {count} outputs")
    return tuple(values)


@lru_cache(maxsize=4096)
def torch_operator(kind: str, overload: str) -> Value:
    """Return the torch operator that a node calls; None if there is none."""
    namespace, _, name = kind.partition("::")
    packet = getattr(getattr(torch.ops, namespace), name, None) if overload else None
    plain = overload.removesuffix(_TWIN).removesuffix("_") or "default"
    return getattr(packet, plain, None) if overload.endswith(_TWIN) else getattr(packet, overload, None)


Script: TypeAlias = "torch.jit.ScriptModule | torch.jit.ScriptFunction[Value, Value]"


def is_script(model: object) -> TypeGuard[Script]:
    """Return whether a model is TorchScript: scripted, traced, or loaded by ``torch.jit.load``."""
    return isinstance(model, torch.jit.ScriptModule | torch.jit.ScriptFunction)


def model(script: Script, *, evaluators: Evaluators = EVALUATORS, method: str = "forward") -> torch.nn.Module:
    """Return a module that interprets a TorchScript graph with these evaluators; it can be compiled or called.

    The module shares the script's parameters and buffers, under the same names, and has its signature. A pipeline
    converts scripts by this function. Call it yourself to use custom evaluators, or to compile a method other than
    ``forward``.

    Args:
        script: a scripted or traced module or function, or the result of ``torch.jit.load``.
        evaluators: evaluate the nodes that are not operators of torch.
        method: the method of a script module to compile.

    Raises:
        TypeError: ``script`` is not TorchScript, or ``evaluators`` are not `Evaluators`.
        CaptureError: the module has no such method, or it has hooks on the method.
    """
    if not is_script(script):
        raise TypeError(f"script must be a result of torch.jit.script, trace or load, got {kind_of(script)}")
    if not isinstance(evaluators, Evaluators):
        raise TypeError(f"evaluators must come from EVALUATORS.register(kind, function), got {kind_of(evaluators)}")
    found = _script_method(script, method)
    own = isinstance(script, torch.jit.ScriptModule)
    forward = _forward_function(found.schema.arguments[1 if own else 0 :])
    kind = type(_class_name(script), (_InterpretedModule,), {"forward": forward})
    made: torch.nn.Module = kind(script if own else None, read_graph(script, method), evaluators)
    return made


def interpret_scripts(model_or_script: Value) -> torch.nn.Module:
    """Return a copy of a module that interprets its TorchScript; the module itself if it has none or is uncopyable."""
    if is_script(model_or_script):
        return model(model_or_script)
    found: torch.nn.Module = model_or_script
    scripts = list(_script_modules(found)) if isinstance(found, torch.nn.Module) else []
    with suppress(Exception):  # torch.export then says what it does not take
        return copy_module(found, {id(script): model(script) for script in scripts}) if scripts else found
    return found


def _script_modules(module: torch.nn.Module) -> Iterator[torch.jit.ScriptModule]:
    """Yield the outermost TorchScript modules within a module."""
    for child in module.children():
        if isinstance(child, torch.jit.ScriptModule):
            yield child
        else:
            yield from _script_modules(child)


def _script_method(script: Value, name: str) -> Value:
    if not isinstance(script, torch.jit.ScriptModule):
        return script
    owner = f"the TorchScript module {_class_name(script)}"
    if not script._c._has_method(name):
        raise CaptureError(f"{owner} has no method {name!r}; its methods are {', '.join(script._c._method_names())}")
    if script._c._get_forward_hooks() or script._c._get_forward_pre_hooks():
        hint = "call the functions of the hooks in forward"
        raise CaptureError(f"{owner} has hooks, which its graph does not contain", hint)
    return script._c._get_method(name)


def _class_name(script: Value) -> str:
    return str(getattr(script, "original_name", None) or script.name)


def _forward_function(arguments: Sequence[Value]) -> Callable[..., Value]:
    """Return a ``forward`` with these script ``arguments``; names that a trace gave them become valid in Python."""
    taken: set[str] = set()
    found = []
    for argument in arguments:
        kind = inspect.Parameter.KEYWORD_ONLY if argument.kwarg_only else inspect.Parameter.POSITIONAL_OR_KEYWORD
        default = argument.default_value if argument.has_default_value() else inspect.Parameter.empty
        name = "".join(c if c.isalnum() else "_" for c in argument.name)
        name = make_unique(name if name.isidentifier() else f"arg_{name}", taken)
        found.append(inspect.Parameter(name, kind, default=default))
    signature = inspect.Signature(found)

    def forward(self: _InterpretedModule, *args: Value, **kwargs: Value) -> Value:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return self.interpret(*bound.arguments.values())

    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    forward.__signature__ = inspect.Signature([own, *found])  # type: ignore[attr-defined]
    return forward


class _ScriptContents(torch.nn.Module):
    """The contents of a script module by name: parameters, buffers, submodules, and attributes that the graph reads."""

    def __init__(self, script: Value, names: frozenset[str], known: dict[int, Value]) -> None:
        super().__init__()
        self.training = bool(getattr(script, "training", False))  # torch.jit.freeze takes it away
        for name, parameter in script.named_parameters(recurse=False, remove_duplicate=False):
            self.register_parameter(name, _as_parameter(parameter, known))
        for name, buffer in script.named_buffers(recurse=False, remove_duplicate=False):
            self.register_buffer(name, buffer)
        for name, part in script.named_children():
            self.add_module(name, _ScriptContents(part, names, known))
        held = {"training", *self._parameters, *self._buffers, *self._modules}
        for name in sorted(names - held):
            if script._c.hasattr(name):
                setattr(self, name, script._c.getattr(name))


def _as_parameter(tensor: torch.Tensor, seen: dict[int, tuple[torch.Tensor, torch.nn.Parameter]]) -> torch.nn.Parameter:
    """Return a script's parameter as an `nn.Parameter`. In a loaded file it is a plain tensor: make a parameter that
    shares its memory. ``seen``: {id: (tensor, parameter)} of such tensors, so that tied ones get one parameter."""
    if isinstance(tensor, torch.nn.Parameter):
        return tensor
    given = torch.nn.Parameter(tensor.detach(), requires_grad=tensor.requires_grad)
    return seen.setdefault(id(tensor), (tensor, given))[1]


class _InterpretedModule(_ScriptContents):
    """A module whose ``forward`` runs the graph of a TorchScript method or function."""

    def __init__(self, script: Value, graph: Graph, evaluators: Evaluators) -> None:
        names = frozenset(str(n.attributes["name"]) for n in graph.block.every_node() if n.kind == "prim::GetAttr")
        super().__init__(torch.nn.Module().eval() if script is None else script, names, {})
        self._graph, self._evaluators, self._is_method = graph, evaluators, script is not None
        taken = {*names, *dir(self)}
        self._literals = {value: make_unique(f"constant_{i}", taken) for i, value in enumerate(graph.constants)}
        for value, name in self._literals.items():
            setattr(self, name, graph.constants[value])

    def interpret(self, *inputs: Value) -> Value:
        """Run the graph; containers among the inputs are copied, as TorchScript does."""
        values = {value: getattr(self, name) for value, name in self._literals.items()}
        given = [*([self] if self._is_method else []), *map(_copy_containers, inputs)]
        with provenance.preserve_node_meta():
            results = Interpreter(self._evaluators, values).run_block(self._graph.block, *given)
        return results[0] if len(results) == 1 else results


def _copy_containers(value: Value) -> Value:
    if isinstance(value, list):
        return [_copy_containers(v) for v in value]
    return {k: _copy_containers(v) for k, v in value.items()} if isinstance(value, Mapping) else value
