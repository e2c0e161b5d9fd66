"""The interpreter of TorchScript graphs, which runs each node by an evaluator, or else by the node's torch operator."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import Final

import torch
from attrs import frozen
from torch.fx import traceback as provenance
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode

from pipeline.errors import PipelineError
from pipeline.export_fixes.torchscript.control import CONTROL
from pipeline.export_fixes.torchscript.graph import Block, Node, Value
from pipeline.export_fixes.torchscript.objects import OBJECTS
from pipeline.export_fixes.torchscript.plain_values import CONTAINERS, NUMBERS
from pipeline.export_fixes.torchscript.registry import Call, Evaluators
from pipeline.export_fixes.torchscript.tensors import PACKED, TENSORS, to_dtype

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
