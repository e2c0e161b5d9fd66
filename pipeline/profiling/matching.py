"""Find which layers of the network each row of TensorRT's profiler measures.
The engine's plan, the engine inspector or names tell.

TensorRT names a row after a kernel that computes several layers (``__myl_MulAddRelu_myl0_3``), or after the layers
(``conv1 + relu``). The plan lists the layers of each kernel, in order; a row's name may end with the kernel's number in
the plan.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from itertools import takewhile

from attrs import frozen

from pipeline.aten.naming import node_name
from pipeline.network.kernels import SIZES, STREAMS, Kernel

_INSTANCE = re.compile(r"(?:_0x[0-9a-f]+)?(?:_myl\d+_\d+)?$")
_LIBRARY = re.compile(r"gemm|gemv|xmma|cutlass|cudnn|matmul|nvjet|wgmma|conv|corr", re.I)
_FOREIGN = re.compile(r"ForeignNode\[(.*?)\.\.\.(.*?)\]")
_BETWEEN = re.compile(r"[\x1e\x1f]")
_PLACE = re.compile(r"_myl\d+_(\d+)$")
_SIZES = re.compile(r"^\[Shape")
_DERIVED = re.compile(r"__\w+$")
PRODUCT = "product"


@frozen
class Match:
    """The network's layers that a profiler row measures; ``by`` is how they were found: by the engine ``inspector``,
    the ``plan``'s list of the kernel's layers, the ``order`` of kernels in the plan, or the row's ``name``. For a row
    that computes no layer, ``by`` is why: ``streams`` (synchronization) or ``sizes`` (shape arithmetic). It is empty if
    layers were looked for and not found."""

    layers: tuple[str, ...] = ()
    by: str = ""


def match_rows(
    rows: Sequence[str], steps: Sequence[Kernel], layers: Sequence[str], metadata: Mapping[str, Sequence[str]]
) -> tuple[Match, ...]:
    """Return, for each row of TensorRT's profiler, the network's layers that it measures.

    Args:
        rows: the profiler's names, in execution order.
        steps: the kernels that the plan lists, in order; empty if the plan has no text.
        layers: the network's layers, in order.
        metadata: the layers of each row according to the engine inspector.
    """
    planned = _align_steps(rows, steps)
    index = _LayerIndex(steps, layers, metadata)
    return tuple(index.match(name, planned.get(i)) for i, name in enumerate(rows))


class _LayerIndex:
    """An index of a network's layers by the names that appear in profiler rows and in the plan."""

    def __init__(self, steps: Sequence[Kernel], layers: Sequence[str], metadata: Mapping[str, Sequence[str]]) -> None:
        self.steps, self.layers, self.metadata = steps, layers, metadata
        self.index = {layer: i for i, layer in enumerate(layers)}
        self.claimed = {layer for step in steps for layer in self.known_layers(step.layers)}
        self.owned = {node_name(layer) for layer in self.claimed}

    def match(self, row_name: str, step: Kernel | None) -> Match:
        """Return the layers that a profiler row measures. ``step``: the row's kernel, if the plan lists it."""
        if listed := self.known_layers(self.metadata.get(row_name, ())):
            return Match(listed, "inspector")
        if step is not None and step.layers:
            return Match(self.known_layers(step.layers), "plan")
        if step is not None and step.kind in STREAMS:
            return Match(by="streams")
        if _SIZES.match(row_name) or (step is not None and step.kind in SIZES):
            return Match(by="sizes")
        if step is not None and (after := self.following_layers(step)):
            return Match(after, "order")
        found = tuple(layers_in_name(row_name, self.layers))
        return Match(found, "name") if found else Match()

    def known_layers(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return the layers with these names that the network has; a suffix that TensorRT added is removed, as in
        ``conv__gemm_from_conv1x1``."""
        whole = (name if name in self.index else _DERIVED.sub("", name) for name in names)
        return tuple(dict.fromkeys(name for name in whole if name in self.index))

    def following_layers(self, step: Kernel) -> tuple[str, ...]:
        """Guess the layers of ``step``, a kernel for which the plan lists none: the layers of the network between those
        of the preceding kernel and the next layer that the plan lists for any kernel."""
        before = [other for other in self.steps if other.place < step.place and other.kind not in STREAMS | SIZES]
        last = max((self.index[name] for each in before[-1:] for name in self.known_layers(each.layers)), default=None)
        if last is None:
            return ()
        free = takewhile(lambda layer: layer not in self.claimed, self.layers[last + 1 :])
        return tuple(layer for layer in free if node_name(layer) not in self.owned)


def _align_steps(rows: Sequence[str], steps: Sequence[Kernel]) -> dict[int, Kernel]:
    """Return, by the index of a profiler row in ``rows`` (names), the kernel in the engine's plan that it measures.
    ``steps``: the plan's kernels. A row is matched by the kernel's number at the end of its name (``_myl0_3``), else by
    aligning the two sequences. Alignment treats all matmuls and convolutions as equal, because a library's kernel has
    different names in the plan and in the row."""
    by_place = {(step.place, kernel_stem(step.name)): step for step in steps}
    numbers = ((i, row, _PLACE.search(row)) for i, row in enumerate(rows))
    placed = {i: by_place.get((int(place[1]), kernel_stem(row))) for i, row, place in numbers if place is not None}
    kernels = [step for step in steps if step.kind not in STREAMS | SIZES]
    keys = {kernel_stem(kernel.name): _kernel_key(kernel) for kernel in kernels}
    ran = [keys.get(kernel_stem(row)) or (PRODUCT if _LIBRARY.search(row) else row) for row in rows]
    planned = [_kernel_key(kernel) for kernel in kernels]
    blocks = SequenceMatcher(None, ran, planned, autojunk=False).get_matching_blocks()
    alike = {block.a + i: kernels[block.b + i] for block in blocks for i in range(block.size)}
    return alike | {i: step for i, step in placed.items() if step is not None}


def kernel_stem(name: str) -> str:
    """Return a kernel's name without the hash and number that TensorRT appends (``_0x31bf89da…``, ``_myl0_3``)."""
    return _INSTANCE.sub("", name, count=1)


def _kernel_key(kernel: Kernel) -> str:
    """Return the key that a kernel is aligned by: ``product`` for a matmul or convolution, else its `kernel_stem`."""
    return PRODUCT if kernel.role == PRODUCT else kernel_stem(kernel.name)


def layers_in_name(row_name: str, layers: Sequence[str]) -> Iterator[str]:
    """Yield the layers whose whole names occur in a profiler row's name, even if one name contains another. A range
    (``ForeignNode[a...b]``) stands for all layers from ``a`` to ``b``."""
    foreign = _FOREIGN.search(row_name)
    if foreign is not None and foreign[1] in layers and foreign[2] in layers:
        first, last = sorted((layers.index(foreign[1]), layers.index(foreign[2])))
        yield from layers[first : last + 1]
        return
    rest = row_name
    for layer in sorted(layers, key=len, reverse=True):
        if re.search(rf"(?<![\w./]){re.escape(layer)}(?:(?=_U\d+)|(?![\w/:]|\.\w))", rest):
            rest = rest.replace(layer, " ")
            yield layer


def parse_metadata(information: str) -> dict[str, tuple[str, ...]]:
    """Return, by the name of each profiler row, its network layers, from the field "Metadata" in the JSON of TensorRT's
    engine inspector. Return an empty dict if the text is not JSON, or lists no metadata."""
    try:
        listed = json.loads(information)
    except ValueError:
        return {}
    rows = listed.get("Layers", []) if isinstance(listed, dict) else []
    found = ((row.get("Name"), row.get("Metadata")) for row in rows if isinstance(row, dict))
    return {
        name: tuple(part.strip("[]") for part in _BETWEEN.split(text) if part.strip("[]"))
        for name, text in found
        if isinstance(name, str) and isinstance(text, str)
    }
