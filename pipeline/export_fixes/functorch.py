"""Export ``torch.vmap``, ``torch.func`` and forward-mode derivatives in a model.

torch.export's graph has calls that enter and leave these transforms; operators between them act on wrapped tensors, so
that the graph cannot be run as it is. Traced below autograd, the graph has the operators that the transforms call.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

import torch
from torch._C import _functorch
from torch._functorch import predispatch
from torch.autograd import forward_ad

from pipeline.export_fixes.interrupts import undoing


def has_transforms(module: torch.fx.GraphModule) -> bool:
    """Return whether a graph, or one that it calls, enters or leaves a transform."""
    graphs = (m.graph for m in module.modules() if isinstance(m, torch.fx.GraphModule))
    return any(getattr(n.target, "__module__", None) == predispatch.__name__ for graph in graphs for n in graph.nodes)


def transforms_left() -> AbstractContextManager[None]:
    """Return a context that leaves the transforms which a failed export has entered."""
    depth, is_forward = _functorch.get_dynamic_layer_stack_depth(), _is_forward()

    def leave() -> None:
        _functorch.pop_dynamic_layer_stack_and_undo_to_depth(depth)
        if _is_forward() and not is_forward:
            torch._C._exit_dual_level(level=0)
            forward_ad._current_level = -1

    return undoing(leave)


def _is_forward() -> bool:
    """Return whether forward-mode derivatives are active, also those that a failure left so."""
    try:
        level = torch._C._enter_dual_level()
    except RuntimeError:
        return True
    torch._C._exit_dual_level(level=level)
    return False
