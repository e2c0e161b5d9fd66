"""Handle parameters and buffers that a program cannot store directly: aliased tensors and tensor subclasses.

torch.export lifts a tensor that an object other than a module holds (a cache object, say) as a constant, even if the
same tensor is also a buffer; then a write to either changes both. Tensor subclasses, such as torchao's quantized
tensors of codes and scales, are flattened: each inner tensor becomes a parameter, whose name begins with that of the
outer tensor (``linear.weight.qdata``).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipeline.aten.collectives import local_tensor
from pipeline.aten.graphs import copy_graph, copy_node, graph_module
from pipeline.aten.types import Argument, Node
from pipeline.capture.aliases import storage_id
from pipeline.errors import CaptureError
from pipeline.export_fixes import ExportNotes
from pipeline.frozen import FrozenDict
from pipeline.program import Program, rename_outputs, tensor_version
from pipeline.recipes import Recipe, parameter_recipe, qualified_name
from pipeline.records.wording import kind_of
from pipeline.runtime.memory_overlap import overlaps


def merge_aliased_constants(
    module: torch.fx.GraphModule, exported: ExportedProgram
) -> tuple[torch.fx.GraphModule, ExportGraphSignature]:
    """Return the graph and signature of an export, in which buffers replace the constants that are the same tensors."""
    signature = exported.graph_signature
    twins = _buffers_of_constants(exported)
    if not twins:
        return module, signature
    graph, env = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    named: dict[str, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in twins:
            env[node] = named[twins[node.name]]
            continue
        env[node] = named[node.name] = copy_node(node, graph, env.__getitem__)
    specs = [spec for spec in signature.input_specs if spec.arg.name not in twins]
    return graph_module(module, graph), ExportGraphSignature(specs, list(signature.output_specs))


def _buffers_of_constants(exported: ExportedProgram) -> Mapping[str, str]:
    """Map the placeholder of each constant that is the same tensor as a buffer to the placeholder of that buffer."""
    specs = exported.graph_signature.input_specs
    buffers = dict(exported.named_buffers())
    known = {_storage_and_layout(buffers[str(s.target)]): s.arg.name for s in specs if s.kind == InputKind.BUFFER}
    lifted = [(s.arg.name, exported.constants.get(str(s.target))) for s in specs if s.kind == InputKind.CONSTANT_TENSOR]
    found = {name: known.get(_storage_and_layout(value)) for name, value in lifted if isinstance(value, torch.Tensor)}
    return {name: buffer for name, buffer in found.items() if buffer is not None}


def check_overlaps(tensors: Mapping[str, torch.Tensor], write_lines: Mapping[str, str], reads: Collection[str]) -> None:
    """Raise a `CaptureError` if a model writes one of its tensors and reads another tensor in the same memory.

    A program stores the two separately, so a write to one would not change the other. ``write_lines``: the source line
    of each write, by the tensor's name; ``reads``: the names of the tensors that the graph reads.
    """
    for name, line in write_lines.items():
        for other in reads:
            if other != name and overlaps(tensors[name], tensors[other]):
                place = line and f" ({line})"
                why = f"the model writes to {name}{place}, and reads {other}, which shares its memory"
                raise CaptureError(
                    f"{why}: a compiled program would store two separate copies",
                    f"compute {other} from {name} in forward",
                )


def _storage_and_layout(tensor: torch.Tensor) -> tuple[Argument, ...]:
    """Return a key that is equal for dense tensors with the same storage, dtype, sizes, strides and offset."""
    storage = storage_id(tensor)
    if storage is None:
        return (id(tensor),)
    layout = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return (storage, *layout)


INNER_TENSOR_ACCESS = "export.access_subclass_inner_tensor.default"


def inner_tensors(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield by name the inner tensors of a subclass, the local tensor of a DTensor, or a plain tensor itself."""
    tensor = local_tensor(tensor)
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    attributes, _ = tensor.__tensor_flatten__()
    for each in attributes:
        yield from inner_tensors(f"{name}.{each}", getattr(tensor, each))


def unwrap_subclasses(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by name, with each tensor subclass replaced by its inner tensors."""
    return {name: part for outer, tensor in tensors.items() for name, part in inner_tensors(outer, tensor)}


def flatten_subclasses(program: Program, _: ExportNotes) -> Program:
    """Return the program with tensor subclasses replaced by their inner tensors; the program itself if it has none.

    Raises:
        CaptureError: the exported graph does not access the inner tensors of a subclass.
    """
    if not any(map(is_traceable_wrapper_subclass, program.parameters.values())):
        return program
    graph, constants, parameters = copy_graph(program.graph), dict(program.constants), dict(program.parameters)
    for node in [n for n in graph.nodes if n.op == "placeholder" and n.name in program.constants]:
        name = program.constants[node.name].result.name
        if is_traceable_wrapper_subclass(parameters[name]):
            parameters |= dict(inner_tensors(name, parameters[name]))
            _replace_by_inner_tensors(graph, node, name, constants)
    used = {name for recipe in constants.values() for name in recipe.parameters} | set(program.buffers.values())
    kept = {name: t for name, t in parameters.items() if name in used or not is_traceable_wrapper_subclass(t)}
    for name, tensor in kept.items():
        if is_traceable_wrapper_subclass(tensor):
            why = "which torch.export does not flatten: the graph does not show how its values are computed"
            raise CaptureError(
                f"{name} is {kind_of(tensor)}, {why}",
                "quantize the model with NVIDIA ModelOpt, or with a configuration of torchao that is not a prototype "
                "(docs/quantization.md), or replace the parameter by a plain tensor: .dequantize()",
            )
    return program.with_graph(
        graph,
        constants=FrozenDict(constants),
        parameters=FrozenDict(kept),
        versions=FrozenDict({name: tensor_version(tensor) for name, tensor in kept.items()}),
        aliases=program.aliases | frozenset(kept),
        outputs=rename_outputs(program.outputs, graph),
    )


def _replace_by_inner_tensors(graph: torch.fx.Graph, node: Node, name: str, constants: dict[str, Recipe]) -> None:
    """Replace the placeholder ``node`` of a tensor subclass by placeholders of the inner tensors that the graph reads.
    ``name``: the parameter's name; ``constants``: the recipe of each placeholder, which is updated."""
    for user in list(node.users):
        if qualified_name(user.target) != INNER_TENSOR_ACCESS:
            continue
        path = f"{name}.{user.args[1]}"
        with graph.inserting_before(node):
            made = graph.placeholder(path.replace(".", "_"))
        made.target, made.meta = made.name, {"val": user.meta["val"]}
        user.replace_all_uses_with(made)
        graph.erase_node(user)
        constants[made.name] = parameter_recipe(path)
        _replace_by_inner_tensors(graph, made, path, constants)
    if not node.users:
        graph.erase_node(node)
        del constants[node.name]
