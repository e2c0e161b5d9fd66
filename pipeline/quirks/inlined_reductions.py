"""Find the small sums that must not be fused into a reduction kernel (to avoid the bug `sums-of-few`).

TensorRT-RTX fuses reductions, matmuls, softmax and normalization over few elements into the kernel that reads them. If
that is a reduction kernel, versions 1.4 to 1.7.1 compute each such element once and reuse it for other elements:
``x.softmax(1).mean(2)`` of [5, 4, 20] is off by 0.15 of the largest value, and ``(t[:, None] - t).abs().sum(-1)`` of
``t = x.sum(-1)`` for ``x`` of [20, 3] is 0. Expanding the operand first, or a separate kernel for it, avoids the bug.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Iterator, Sequence

import torch

from pipeline.aten.arguments import argument, argument_names
from pipeline.aten.traits import Kind, op_kind
from pipeline.quirks.expression_blowup import FEW, can_have_own_kernel, inlined_sum_length
from pipeline.quirks.quirk import AffectedNode, SegmentNodes
from pipeline.quirks.reduction_fusion import MOVING, expandable_inputs, has_reduction, keeps_positions, node_shape
from pipeline.shapes.environment import Shape

MATMULS = (Kind.MULTIPLIES, Kind.PROJECTS)


def find_small_sums(segment: SegmentNodes) -> Iterator[AffectedNode]:
    """Yield the nodes to change, before a reduction: ``"expanded"`` for a node that broadcasts small sums, with the
    names of these sums, which must be expanded first; and ``"apart"`` for a node that needs a separate kernel."""
    reduced, few = _inputs_of_reductions(segment.nodes), _small_sums(segment.nodes)
    for node in segment.nodes:
        if node not in reduced:
            continue
        found = few.intersection(node.all_input_nodes)
        if found and (names := tuple(x.name for x in expandable_inputs(node) if x in found)):
            yield "expanded", node.name, names
        if _reads_sum_and_its_elements(node) and can_have_own_kernel(node):
            yield "apart", node.name, ()


def _small_sums(nodes: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that are sums of few elements, or whose inlined expressions contain such sums."""
    found = set[torch.fx.Node]()
    for node in nodes:
        if inlined_sum_length(node) is not None or (_may_be_inlined(node) and found.intersection(node.all_input_nodes)):
            found.add(node)
    return found


def _inputs_of_reductions(nodes: Sequence[torch.fx.Node]) -> set[torch.fx.Node]:
    """Return the nodes that a reduction reads, directly or through operators that TensorRT may inline."""
    found = set[torch.fx.Node]()
    for node in reversed(nodes):
        for user in node.users:
            if has_reduction(user) or op_kind(user.target) is Kind.PLACES or (_may_be_inlined(user) and user in found):
                found.add(node)
    return found


def _reads_sum_and_its_elements(node: torch.fx.Node) -> bool:
    """Return whether the fused code of an operator, such as softmax, may read elements and a sum of a few of them."""
    if node.target is operator.getitem:
        return bool(node.args[1] == 0) and _is_small_normalization(node.all_input_nodes[0])
    kinds = (*MATMULS, Kind.NORMALIZES, Kind.SOFTENS)
    return _is_small_normalization(node) or (op_kind(node.target) in kinds and inlined_sum_length(node) is not None)


def _is_small_normalization(node: torch.fx.Node) -> bool:
    """Return whether an operator normalizes few elements, over the last dims or a group of channels."""
    if op_kind(node.target) not in (Kind.NORMALIZES, Kind.SCALES) or not has_reduction(node):
        return False
    names = argument_names(node.target)
    if "normalized_shape" in names:
        sizes: Shape = tuple(argument(node, "normalized_shape"))
        return all(isinstance(size, int) for size in sizes) and math.prod(sizes) <= FEW
    if "dim" in names:  # log_softmax: `summed` handles it
        return False
    of = next((name for name in ("num_groups", "group") if name in names), None)
    _, channels, *spatial = node_shape(node.all_input_nodes[0]) or (0, 0)
    if not all(isinstance(size, int) for size in (channels, *spatial)):
        return False
    return math.prod(spatial) * channels <= FEW * (channels if of is None else argument(node, of))


def _may_be_inlined(node: torch.fx.Node) -> bool:
    """Return whether TensorRT may inline an operator into its readers' kernel: an elementwise operator or a view."""
    return keeps_positions(node) or op_kind(node.target) in MOVING
