"""Handle tensors that a model holds in two places. torch.export lifts a tensor held outside of modules (in a cache
object, say) as a constant, even if it is a buffer as well; a write to one is a write to both."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ExportGraphSignature, InputKind

from pipeline.aten.graphs import copied_node, over
from pipeline.aten.types import Argument
from pipeline.capture.aliases import storage_of
from pipeline.errors import CaptureError
from pipeline.runtime.memory_overlap import overlap


def shared(
    module: torch.fx.GraphModule, exported: ExportedProgram
) -> tuple[torch.fx.GraphModule, ExportGraphSignature]:
    """Return the graph and signature of an export, in which a constant that is also a buffer becomes that buffer."""
    signature = exported.graph_signature
    twins = _twins(exported)
    if not twins:
        return module, signature
    graph, env = torch.fx.Graph(), dict[torch.fx.Node, torch.fx.Node]()
    named: dict[str, torch.fx.Node] = {}
    for node in module.graph.nodes:
        if node.op == "placeholder" and node.name in twins:
            env[node] = named[twins[node.name]]
            continue
        env[node] = named[node.name] = copied_node(node, graph, env.__getitem__)
    specs = [spec for spec in signature.input_specs if spec.arg.name not in twins]
    return over(module, graph), ExportGraphSignature(specs, list(signature.output_specs))


def _twins(exported: ExportedProgram) -> Mapping[str, str]:
    """Return the placeholder of a buffer for that of each constant which is the same tensor."""
    specs = exported.graph_signature.input_specs
    buffers = dict(exported.named_buffers())
    known = {_place(buffers[str(s.target)]): s.arg.name for s in specs if s.kind == InputKind.BUFFER}
    lifted = [(s.arg.name, exported.constants.get(str(s.target))) for s in specs if s.kind == InputKind.CONSTANT_TENSOR]
    found = {name: known.get(_place(value)) for name, value in lifted if isinstance(value, torch.Tensor)}
    return {name: buffer for name, buffer in found.items() if buffer is not None}


def check_views(tensors: Mapping[str, torch.Tensor], written: Mapping[str, str], read: Collection[str]) -> None:
    """Raise an error if a model writes one of its tensors, at a line, and reads another that lies in the same memory.

    Raises:
        CaptureError: it does: a program stores each separately, so the other would not change.
    """
    for name, line in written.items():
        for other in read:
            if other != name and overlap(tensors[name], tensors[other]):
                writes = f"the model writes to {name}{line and f' ({line})'}"
                why = f"{writes}, and reads {other}, which lies in the same memory"
                raise CaptureError(f"{why}: programs store each separately", f"compute {other} from {name} in forward")


def _place(tensor: torch.Tensor) -> tuple[Argument, ...]:
    """Return a tensor's memory and its layout there; a sparse tensor shares none."""
    storage = storage_of(tensor)
    if storage is None:
        return (id(tensor),)
    layout = (str(tensor.dtype), tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
    return (storage, *layout)
