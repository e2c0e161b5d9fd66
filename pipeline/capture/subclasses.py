"""Flatten parameters that are tensor subclasses, such as torchao's quantized tensors of values and scales: each inner
tensor becomes a parameter, named after the outer one (``linear.weight.qdata``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from pipeline.aten.collectives import local_tensor
from pipeline.aten.graphs import copied
from pipeline.errors import CaptureError
from pipeline.export_fixes import ExportNotes
from pipeline.frozen import FrozenDict
from pipeline.program import Program, rewired, version
from pipeline.recipes import Recipe, identity, qualified_name
from pipeline.records.wording import kind_of

Node = torch.fx.Node
ACCESS = "export.access_subclass_inner_tensor.default"


def inner(name: str, tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the inner tensors of a tensor subclass by name; a plain tensor itself; a DTensor's local tensor."""
    tensor = local_tensor(tensor)
    if not is_traceable_wrapper_subclass(tensor):
        yield name, tensor
        return
    attributes, _ = tensor.__tensor_flatten__()
    for each in attributes:
        yield from inner(f"{name}.{each}", getattr(tensor, each))


def taken_apart(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors by name, with each tensor subclass replaced by its inner tensors."""
    return {name: part for outer, tensor in tensors.items() for name, part in inner(outer, tensor)}


def flattened(program: Program, _: ExportNotes) -> Program:
    """Return the program with tensor subclasses replaced by their inner tensors; itself if it has none.

    Raises:
        CaptureError: the exported graph does not access the inner tensors of a subclass.
    """
    if not any(map(is_traceable_wrapper_subclass, program.parameters.values())):
        return program
    graph, constants, parameters = copied(program.graph), dict(program.constants), dict(program.parameters)
    for node in [n for n in graph.nodes if n.op == "placeholder" and n.name in program.constants]:
        name = program.constants[node.name].result.name
        if is_traceable_wrapper_subclass(parameters[name]):
            parameters |= dict(inner(name, parameters[name]))
            _replace(graph, node, name, constants)
    used = {name for recipe in constants.values() for name in recipe.parameters} | set(program.buffers.values())
    kept = {name: t for name, t in parameters.items() if name in used or not is_traceable_wrapper_subclass(t)}
    for name, tensor in kept.items():
        if is_traceable_wrapper_subclass(tensor):
            raise CaptureError(
                f"{name} is {kind_of(tensor)}, which torch.export does not flatten: the graph does not show how "
                "its values are computed",
                "quantize the model with NVIDIA ModelOpt, or with a configuration of torchao that is not a prototype "
                "(docs/quantization.md), or make the parameter a plain tensor: .dequantize()",
            )
    return program.with_graph(
        graph,
        constants=FrozenDict(constants),
        parameters=FrozenDict(kept),
        versions=FrozenDict({name: version(tensor) for name, tensor in kept.items()}),
        aliases=program.aliases | frozenset(kept),
        outputs=rewired(program.outputs, graph),
    )


def _replace(graph: torch.fx.Graph, node: Node, name: str, constants: dict[str, Recipe]) -> None:
    """Replace a parameter by placeholders for the parts that are read."""
    for user in list(node.users):
        if qualified_name(user.target) != ACCESS:
            continue
        path = f"{name}.{user.args[1]}"
        with graph.inserting_before(node):
            made = graph.placeholder(path.replace(".", "_"))
        made.target, made.meta = made.name, {"val": user.meta["val"]}
        user.replace_all_uses_with(made)
        graph.erase_node(user)
        constants[made.name] = identity(path)
        _replace(graph, made, path, constants)
    if not node.users:
        graph.erase_node(node)
        del constants[node.name]
