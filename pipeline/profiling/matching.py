"""Rows of TensorRT's profiler belong to layers of the network: found in the plan, in the inspector, or by name.

TensorRT names a row after a kernel that computes several layers (``__myl_MulAddRelu_myl0_3``), or after the layers
(``conv1 + relu``). The plan says of each kernel, in order, which layers it computes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher

from attrs import frozen

from pipeline.build.kernels import Kernel

_INSTANCE = re.compile(r"(?:_0x[0-9a-f]+)?(?:_myl\d+_\d+)?$")
_LIBRARY = re.compile(r"gemm|gemv|xmma|cutlass|cudnn|matmul|nvjet|wgmma|conv|corr", re.I)
_FOREIGN = re.compile(r"ForeignNode\[(.*?)\.\.\.(.*?)\]")
_BETWEEN = re.compile(r"[\x1e\x1f]")
PRODUCT = "product"


@frozen
class Match:
    """The layers of a row, and how they were found: ``inspector``, ``plan``, ``name``, or not at all (empty)."""

    layers: tuple[str, ...] = ()
    by: str = ""


def matched(
    rows: Sequence[str], kernels: Sequence[Kernel], layers: Sequence[str], metadata: Mapping[str, Sequence[str]]
) -> tuple[Match, ...]:
    """Return the layers of each row.

    Args:
        rows: the names that the profiler told, in the order in which they ran.
        kernels: those of the plan, in order; none where it has no words.
        layers: the network's layers, in order.
        metadata: what the inspector tells of layers, by the names of rows.
    """
    known = frozenset(layers)
    planned = _aligned(rows, kernels)
    return tuple(_match(name, planned.get(i), layers, known, metadata) for i, name in enumerate(rows))


def _match(
    name: str,
    kernel: Kernel | None,
    layers: Sequence[str],
    known: frozenset[str],
    metadata: Mapping[str, Sequence[str]],
) -> Match:
    if told := tuple(layer for layer in metadata.get(name, ()) if layer in known):
        return Match(told, "inspector")
    if kernel is not None and kernel.layers:
        return Match(kernel.layers, "plan")
    found = tuple(named(name, layers))
    return Match(found, "name") if found else Match()


def _aligned(rows: Sequence[str], kernels: Sequence[Kernel]) -> dict[int, Kernel]:
    """The kernel of each row: those that follow each other in both, by name. Of products the order alone tells, since
    they come from libraries, whose kernels have names of their own."""
    names = {stem(kernel.name): _kernel_key(kernel) for kernel in kernels}
    ran, planned = [_key(row, names) for row in rows], [_kernel_key(kernel) for kernel in kernels]
    blocks = SequenceMatcher(None, ran, planned, autojunk=False).get_matching_blocks()
    return {block.a + i: kernels[block.b + i] for block in blocks for i in range(block.size)}


def stem(name: str) -> str:
    """The name of a kernel without what tells its instances apart (``_0x31bf89da…``, ``_myl0_3``)."""
    return _INSTANCE.sub("", name, count=1)


def _key(row: str, names: Mapping[str, str]) -> str:
    """What a row is called in the plan."""
    return names.get(stem(row)) or (PRODUCT if _LIBRARY.search(row) else row)


def _kernel_key(kernel: Kernel) -> str:
    return PRODUCT if kernel.role == PRODUCT else stem(kernel.name)


def named(row: str, layers: Sequence[str]) -> Iterator[str]:
    """The layers that a row's name has in it, whole: parts of one another are not taken for each other. A range
    (``ForeignNode[a...b]``) is all layers from one to the other."""
    foreign = _FOREIGN.search(row)
    if foreign is not None and foreign[1] in layers and foreign[2] in layers:
        first, last = sorted((layers.index(foreign[1]), layers.index(foreign[2])))
        yield from layers[first : last + 1]
        return
    rest = row
    for layer in sorted(layers, key=len, reverse=True):
        if re.search(rf"(?<![\w./]){re.escape(layer)}(?:(?=_U\d+)|(?![\w/:]|\.\w))", rest):
            rest = rest.replace(layer, " ")
            yield layer


def metadata_of(information: str) -> dict[str, tuple[str, ...]]:
    """The layers that the inspector's JSON tells of each row: what `build` wrote as their metadata; nothing where it is
    no JSON, or has names alone."""
    try:
        told = json.loads(information)
    except ValueError:
        return {}
    rows = told.get("Layers", []) if isinstance(told, dict) else []
    found = ((row.get("Name"), row.get("Metadata")) for row in rows if isinstance(row, dict))
    return {
        name: tuple(part.strip("[]") for part in _BETWEEN.split(text) if part.strip("[]"))
        for name, text in found
        if isinstance(name, str) and isinstance(text, str)
    }
