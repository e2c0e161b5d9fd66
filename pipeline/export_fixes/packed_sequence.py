"""Capture packed sequences: ``pack_padded_sequence``, recurrent layers on packed data, and ``pad_packed_sequence``.

torch.export cannot represent the shapes of packed sequences. During a trace, a packed sequence also has its padded rows
and their lengths, from which recurrent layers and ``pad_packed_sequence`` compute instead (`aten.packed_rnn_ops`). If
the model itself reads the packed data, the trace computes the data as eager does.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Final

import torch
from attrs import frozen
from torch import Tensor
from torch.export import ExportedProgram
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional
from torch.nn.utils import rnn

from pipeline.aten.packed_rnn_ops import BATCH_SIZES, LAYERS, PACKED_ROWS, PADDED_ROWS
from pipeline.aten.types import Argument, Function, Target
from pipeline.errors import CaptureError, source_line_in
from pipeline.export_fixes.patching import ModelCall

DATA_ATTRIBUTE: Final = "_pipeline_packed_data"
SIZES_ATTRIBUTE: Final = "_pipeline_batch_sizes"
"""The attributes of a packed sequence's data and batch sizes that hold their origin, a `PackedOrigin`."""

ARITHMETIC: Final = frozenset(how.format(name) for name in ("add", "sub", "mul") for how in ("{}", "__{}__", "__r{}__"))
ELEMENTWISE: Final = "linear embedding layer_norm relu tanh sigmoid gelu silu elu leaky_relu hardtanh softplus dropout"
ROWWISE: Final = ARITHMETIC | frozenset(ELEMENTWISE.split())
"""Functions that compute each row of a packed argument separately: the first argument; for arithmetic, both."""

SIZE_CHECKS: Final = (
    torch.ops.aten.sym_size.int,
    torch.ops.aten._assert_scalar.default,
    torch.ops.aten.sym_constrain_range_for_size.default,
    *(operator.ge, operator.le, operator.gt, operator.lt, operator.ne, operator.eq, operator.and_),
)
"""Operators by which torch, not the model, checks a data-dependent size."""


@frozen(eq=False)
class PackedOrigin:
    """The origin of a packed tensor: the padded rows [T, B, ...] and lengths [B] from which it was computed.
    ``versions``: the version counters of the rows and of the packed tensor. If one changes, the rows are stale."""

    rows: Tensor
    lengths: Tensor
    versions: tuple[int, int]


def replace_packed_call(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Replace a call on a packed sequence by its computation on padded rows; other calls are unchanged."""
    name = getattr(func, "__name__", "")
    if name in REPLACEMENTS and not kwargs:
        result = REPLACEMENTS[name](*args)
    else:
        result = _apply_to_padded_rows(func, args, kwargs) if name in ROWWISE else None
    return (func if result is None else lambda *_, **__: result), args, kwargs


def origin_of_data(value: object) -> PackedOrigin | None:
    """Return the padded rows and lengths of a packed sequence's data tensor; None for other tensors."""
    packed: PackedOrigin | None = vars(value).get(DATA_ATTRIBUTE) if isinstance(value, Tensor) else None
    now = (packed.rows._version, value._version) if packed is not None and isinstance(value, Tensor) else None
    return packed if packed is not None and packed.versions == now else None


def origin_of_sizes(value: object) -> PackedOrigin | None:
    """Return the `PackedOrigin` of a packed sequence's ``batch_sizes``: its padded rows and lengths; else None."""
    return vars(value).get(SIZES_ATTRIBUTE) if isinstance(value, Tensor) else None


def _packed_data(rows: Tensor, lengths: Tensor) -> Tensor:
    """Return the packed data of padded rows, a tensor with rows and lengths in an attribute, for `origin_of_data`."""
    data = PACKED_ROWS(rows, lengths)
    vars(data)[DATA_ATTRIBUTE] = PackedOrigin(rows, lengths, (rows._version, data._version))
    return data  # type: ignore[no-any-return]


def pack_padded_rows(input: Tensor, lengths: Tensor, batch_first: bool) -> tuple[Tensor, Tensor]:
    """Replace ``_pack_padded_sequence``: return the packed data and the batch sizes of padded rows."""
    rows, lengths = input.transpose(0, 1) if batch_first else input, lengths.clone()
    sizes = BATCH_SIZES(lengths, rows.shape[0])
    vars(sizes)[SIZES_ATTRIBUTE] = PackedOrigin(rows, lengths, (0, 0))
    return _packed_data(rows, lengths), sizes


def recurrent_layer_on_padded_rows(target: Target) -> Callable[..., tuple[Tensor, ...] | None]:
    """Return a function to call in place of ``target``, a recurrent layer: it computes on the padded rows of the packed
    data among its arguments, or returns None for other data."""

    def run(data: Tensor, sizes: object, *rest: Argument) -> tuple[Tensor, ...] | None:
        packed = origin_of_sizes(sizes)
        if packed is None:
            return None
        output, *last = LAYERS[target](_padded_rows(data, packed), packed.lengths, *rest)
        return (_packed_data(output, packed.lengths), *last)

    return run


def _padded_rows(data: Tensor, packed: PackedOrigin) -> Tensor:
    """Return the padded rows of packed data: the recorded rows, or else rows that are padded again from the data."""
    own = origin_of_data(data)
    if own is not None and own.lengths is packed.lengths:
        return own.rows
    rows: Tensor = PADDED_ROWS(data, packed.lengths, packed.rows.shape[0])
    return rows


def _pad_as_requested(
    data: Tensor, sizes: object, batch_first: bool, padding: float, total_length: Argument
) -> tuple[Tensor, Tensor] | None:
    """Replace ``_pad_packed_sequence``: return the sequence's rows, padded to ``total_length`` if the model passed it,
    else to the longest row, and their lengths; None if ``sizes`` are not of a packed sequence."""
    length = total_length if _is_total_length_given() else longest_length(sizes)
    return pad_rows(data, sizes, batch_first, padding, length)


def pad_rows(
    data: Tensor, sizes: object, batch_first: bool, padding: float, length: Argument
) -> tuple[Tensor, Tensor] | None:
    """Return a packed sequence's rows, padded to ``length`` by ``padding``, and their lengths; None for other data."""
    packed = origin_of_sizes(sizes)
    if packed is None:
        return None
    rows = _padded_rows(data, packed)
    steps = torch.arange(rows.shape[0], device=rows.device)
    ended = steps[:, None] >= packed.lengths.to(rows.device)
    rows = rows.masked_fill(ended.reshape(*ended.shape, *(1,) * (rows.dim() - 2)), padding)
    if free_unbacked_symbols(length):
        rows = rows[:length]
    elif length != rows.shape[0]:
        rows = functional.pad(rows, (0, 0) * (rows.dim() - 1) + (0, length - rows.shape[0]), value=padding)
    return rows.transpose(0, 1) if batch_first else rows, packed.lengths


def longest_length(sizes: object) -> Argument:
    """Return the data-dependent length of the longest row; None if ``sizes`` is not from a packed sequence."""
    packed = origin_of_sizes(sizes)
    if packed is None:
        return None
    length = packed.lengths.max().item()
    torch._check(length >= 1)
    torch._check(length <= packed.rows.shape[0])
    return length


def _is_total_length_given() -> bool:
    """Return whether the model passed ``total_length`` in the current call of ``pad_packed_sequence``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not rnn.pad_packed_sequence.__code__:
        frame = frame.f_back
    return frame is None or frame.f_locals["total_length"] is not None


def first_batch_size(sizes: object, index: object) -> Tensor | None:
    """Return ``sizes[0]``, the number of sequences, if ``index`` is 0 and ``sizes`` are of a packed sequence."""
    packed = origin_of_sizes(sizes)
    if packed is None or not isinstance(index, int) or index != 0:
        return None
    return torch.scalar_tensor(packed.lengths.shape[0], dtype=torch.int64)


def _apply_to_padded_rows(func: Target, args: Argument, kwargs: Argument) -> Tensor | None:
    """Call ``func``, which computes each row separately, on padded rows in place of packed data (the first arguments),
    and pack the result. Return None if no argument is packed data, or ``func`` combines it with data of other rows."""
    notes = list(map(origin_of_data, args))
    found = list(filter(None, notes))
    others = args[len(found) :]
    if not found or any(packed.lengths is not found[0].lengths for packed in found) or any(notes[len(found) :]):
        return None
    if func.__name__ in ARITHMETIC and any(isinstance(other, Tensor) and other.dim() > 1 for other in others):
        return None
    return _packed_data(func(*(packed.rows for packed in found), *others, **kwargs), found[0].lengths)


def remove_unused_packed_data(exported: ExportedProgram) -> None:
    """Remove unused data of packed sequences, and assertions about their sizes, from an export by this package. Raise
    `CaptureError` if a node reads the batch sizes."""
    graph = exported.graph
    sizes, data = (graph.find_nodes(op="call_function", target=target) for target in (BATCH_SIZES, PACKED_ROWS))
    for node in sizes:
        if node.users:
            why = f"{source_line_in(node.meta)}: the model reads the batch_sizes of a packed sequence"
            raise CaptureError(why, "use the lengths that pad_packed_sequence returns instead of batch_sizes")
        graph.erase_node(node)
    for node in reversed(data):
        readers = list(_transitive_users(node))
        if all(reader.target in SIZE_CHECKS for reader in readers):
            for reader in reversed(readers):
                graph.erase_node(reader)
            graph.erase_node(node)
    if sizes or data:
        exported.graph_module.recompile()


def _transitive_users(node: Node) -> Iterator[Node]:
    """Yield all nodes that depend on a node, directly or not, in graph order."""
    waiting = dict.fromkeys(node.users)
    while waiting:
        first = min(waiting)
        del waiting[first]
        yield first
        waiting.update(dict.fromkeys(first.users))


REPLACEMENTS: Final[Mapping[str, Function]] = {
    "_pack_padded_sequence": pack_padded_rows,
    "_pad_packed_sequence": _pad_as_requested,
    "__getitem__": first_batch_size,
    **{target._schema.name.removeprefix("aten::"): recurrent_layer_on_padded_rows(target) for target in LAYERS},
}
"""For each torch function, our function for calls on a packed sequence; it returns None for other calls."""
