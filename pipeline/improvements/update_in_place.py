"""update_in_place: write rows to a program's buffers, such as a KV cache, in place.

A write of consecutive rows becomes ``pipeline::cache_update``, which engines run in place. Its cache is the buffer or
the buffer's first batches, reshaped to [B, N, S, D]. An additional output reports rows outside of the buffer.
"""

from __future__ import annotations

import math

from attrs import evolve, frozen
from torch.fx.node import map_arg

from pipeline.aten.graphs import results_of
from pipeline.aten.kv_cache_ops import CACHE_UPDATE, CACHE_WRITE
from pipeline.capture.fake_tensors import suppress_guards
from pipeline.frozen import FrozenDict
from pipeline.impl.scatter import CACHE_DTYPES
from pipeline.improvements.rewriting import Node, Rewriting, argument, aten, improvement, is_output
from pipeline.improvements.writes import match_index_copy, match_write
from pipeline.program import Output
from pipeline.shapes.environment import Expr, shape_of
from pipeline.trt import CAPABILITIES

SMALL = 1 << 16
"""The minimum bytes of a buffer for which PyTorch writes between two engines: copying less in an engine is as fast."""


@frozen
class BufferWrite:
    """A write of rows to a buffer. ``whole``: the buffer's new value. ``written``: the node that writes, ``whole``
    itself or, for a write to ``buffer[:n]``, an input of it."""

    placeholder: Node
    whole: Node
    written: Node


@frozen
class PositionCheck:
    """A condition for writing rows inside a buffer: ``start + length <= size``, and no negative start."""

    starts: Node
    update: Node
    dim: int
    length: Expr
    size: int


@improvement(after="contract_products")
def update_in_place(rewriting: Rewriting) -> None:
    """Replace writes of consecutive rows to buffers by in-place updates, and check their positions at run time."""
    program = rewriting.program
    if any(output.kind == "check" for output in program.outputs):
        return
    nodes = {node.name: node for node in rewriting.graph.nodes}
    returned = {output.target for output in program.outputs if output.kind == "user"}
    buffers, checks, names = dict(program.buffers), list[PositionCheck](), list[str]()
    for at, output in enumerate(program.outputs):
        placeholder = next((p for p, name in program.buffers.items() if name == output.target), None)
        if output.kind != "buffer" or placeholder is None or placeholder in returned:
            continue
        held = _match_buffer_write(nodes[placeholder], nodes[output.value])
        updated = None if held is None else _use_cache_update(rewriting, held, at)
        if updated is not None:
            cache, check = updated
            buffers = {cache.name if name == placeholder else name: of for name, of in buffers.items()}
            names.append(output.target)
            checks.append(check)
        elif held is not None:
            _write_in_pytorch(rewriting, held, at)
    if checks:
        _add_position_check_output(rewriting, _unique_checks(rewriting, checks))
        outputs = (*program.outputs, Output("", "check", target=names[0], name="positions"))
        rewriting.program = evolve(program, buffers=FrozenDict(buffers), outputs=outputs)


def _match_buffer_write(placeholder: Node, new_value: Node) -> BufferWrite | None:
    """Match the write that computes a buffer's new value. None if another node reads the buffer's old value, or if the
    write changes neither the buffer itself nor just its first batches, ``buffer[:n]``."""
    value = placeholder.meta["val"]
    if new_value.op == "placeholder" or not value.numel():
        return None
    readers = [user for user in placeholder.users if not _is_read_only_to_be_overwritten(user)]
    if readers == [new_value]:
        return BufferWrite(placeholder, new_value, new_value)
    if len(readers) != 2 or new_value not in readers or not _replaces_only_first_batches(placeholder, new_value):
        return None
    view, written = next(user for user in readers if user is not new_value), new_value.args[1]
    if not isinstance(written, Node) or list(view.users) != [written] or is_output(written):
        return None
    return BufferWrite(placeholder, new_value, written) if _is_slice_that_was_written(view, new_value) else None


def _is_read_only_to_be_overwritten(view: Node) -> bool:
    """Return whether only copies that overwrite a slice, ``slice.copy_(x)``, take it: they use its shape alone."""
    return view.target is aten.slice.Tensor and all(
        user.target is aten.copy.default and user.args[0] is view for user in view.users
    )


def _replaces_only_first_batches(placeholder: Node, value: Node) -> bool:
    """Return whether a buffer's new value differs in ``buffer[:n]`` alone, and its readers take only ``buffer[:n]``."""
    if value.target is not aten.slice_scatter.default or value.args[0] is not placeholder:
        return False
    first = argument(value, "dim") == 0 and argument(value, "start") in (None, 0) and argument(value, "step") == 1
    return first and all(user.op == "output" or _is_slice_that_was_written(user, value) for user in value.users)


def _is_slice_that_was_written(view: Node, write: Node) -> bool:
    """Return whether a slice selects the part of a buffer that the write changed."""
    return view.target is aten.slice.Tensor and all(
        argument(view, key) == argument(write, key) for key in ("dim", "end", "step")
    )


def _use_cache_update(rewriting: Rewriting, buffer: BufferWrite, out_index: int) -> tuple[Node, PositionCheck] | None:
    """Replace the write that computes output ``out_index`` of the program, a buffer, by an in-place update. Return the
    placeholder of the updated cache and the condition to check at run time; None if nothing was replaced."""
    can = CAPABILITIES.kv_cache_update and buffer.placeholder.meta["val"].dtype in CACHE_DTYPES
    write = match_write(rewriting, buffer.written) if can else None
    if write is None:
        return None
    shape, rows = shape_of(buffer.written.meta["val"]), shape_of(write.update.meta["val"])
    size, length = shape[write.dim], rows[write.dim]
    update = _reshape(rewriting, write.update, _cache_shape(rows, write.dim), buffer.written)
    if not isinstance(size, int) or update is None:
        return None
    cache = _add_cache_placeholder(rewriting, buffer, _cache_shape(shape, write.dim))
    update_node = rewriting.create(CACHE_UPDATE, (cache, update, write.starts), {}, buffer.written)
    back = _reshape(rewriting, update_node, shape, buffer.written) if rewriting.accepted(update_node) else None
    if back is not None:
        _replace_written(rewriting, buffer, update_node, back, out_index)
    else:
        rewriting.erase(update_node)
    if cache is not buffer.placeholder:
        _erase_unread_placeholder(rewriting, cache if back is None else buffer.placeholder)
    return None if back is None else (cache, PositionCheck(write.starts, write.update, write.dim, length, size))


def _write_in_pytorch(rewriting: Rewriting, buffer: BufferWrite, out_index: int) -> None:
    """Let PyTorch write rows to the buffer that is output ``out_index`` of the program. Do nothing for few bytes
    (`SMALL`) or ``require_full_compilation``: then an engine writes, and copies the whole buffer."""
    value = buffer.placeholder.meta["val"]
    if rewriting.program.settings.require_full_compilation or buffer.written is not buffer.whole:
        return
    place = match_index_copy(buffer.whole)
    if place is None or value.numel() * value.itemsize < SMALL:
        return
    write = rewriting.create(CACHE_WRITE, (buffer.placeholder, *place), {}, buffer.whole)
    _replace_written(rewriting, buffer, write, write, out_index)


def _cache_shape(shape: tuple[Expr, ...], row_dim: int) -> tuple[Expr, ...]:
    """Return a shape as [B, N, S, D]: S is the size of ``row_dim``; N and D are products of the sizes around it."""
    if len(shape) == 4 and row_dim == 2:
        return shape
    batch = shape[0] if row_dim else 1
    return batch, math.prod(shape[1:row_dim]), shape[row_dim], math.prod(shape[row_dim + 1 :])


def _reshape(rewriting: Rewriting, node: Node, shape: tuple[Expr, ...], before: Node) -> Node | None:
    """Reshape a node; return None if more than one size is dynamic."""
    if shape_of(node.meta["val"]) == shape:
        return node
    sizes = [size if isinstance(size, int) else -1 for size in shape]
    return rewriting.create(aten.view.default, (node, sizes), {}, before) if sizes.count(-1) < 2 else None


def _add_cache_placeholder(rewriting: Rewriting, buffer: BufferWrite, shape: tuple[Expr, ...]) -> Node:
    """Return a new placeholder of this shape for the memory of the buffer or its first batches, or the buffer's own."""
    source = buffer.placeholder if buffer.written is buffer.whole else buffer.written.args[0]
    value = source.meta["val"]  # type: ignore[union-attr]
    if buffer.written is buffer.whole and shape_of(value) == shape:
        return buffer.placeholder
    if shape_of(value) != shape:
        sizes = [-1 if not isinstance(size, int) else size for size in shape]
        with suppress_guards(rewriting.mode):
            value = value.reshape(sizes)
    with rewriting.graph.inserting_before(buffer.placeholder):
        rows = rewriting.graph.placeholder(f"{buffer.placeholder.name}_rows")
    rows.target, rows.meta = rows.name, {**buffer.placeholder.meta, "val": value}
    return rows


def _replace_written(rewriting: Rewriting, buffer: BufferWrite, update: Node, new_value: Node, out_index: int) -> None:
    """Replace the written value by ``new_value`` for all readers; ``update`` becomes the program's output
    ``out_index``."""
    output = rewriting.graph.output_node()
    returned = list(results_of(rewriting.graph))
    returned[out_index] = update
    output.args = (tuple(returned),)
    for part in [user for user in buffer.whole.users if buffer.whole is not buffer.written and user is not output]:
        part.replace_all_uses_with(new_value)
        rewriting.erase(part)
    buffer.written.replace_all_uses_with(new_value, delete_user_cb=lambda user: user is not new_value)
    rewriting.erase(buffer.whole)


def _erase_unread_placeholder(rewriting: Rewriting, placeholder: Node) -> None:
    """Erase a placeholder, with the slices that read it and the copies that read these; nothing else reads them."""
    for view in list(placeholder.users):
        for copy in list(view.users):
            rewriting.erase(copy)
        rewriting.erase(view)
    rewriting.graph.erase_node(placeholder)


def _unique_checks(rewriting: Rewriting, checks: list[PositionCheck]) -> list[PositionCheck]:
    """Return the checks, without those that equal another one in how positions are computed, in length and in size."""
    first, known = dict[str, Node](), dict[Node, Node]()
    for node in rewriting.graph.nodes:
        given = map_arg((node.args, dict(node.kwargs)), known.__getitem__)
        known[node] = first.setdefault(f"{node.target} {given}", node) if node.op == "call_function" else node
    return list({(known[check.starts], check.length, check.size): check for check in reversed(checks)}.values())[::-1]


def _add_position_check_output(rewriting: Rewriting, checks: list[PositionCheck]) -> None:
    """Add an output to the program that tells whether a written row is outside of its buffer."""
    output = rewriting.graph.output_node()
    create, outside = rewriting.before(output), []
    for check in checks:
        end = create(aten.add.Tensor, check.starts, create.size(check.update, check.dim))
        last = create(aten.gt.Scalar, end, check.size)
        outside.append(create(aten.logical_or.default, last, create(aten.lt.Scalar, check.starts, 0)))
    every = outside[0] if len(outside) == 1 else create(aten.cat.default, outside)
    output.args = ((*results_of(rewriting.graph), create(aten.any.default, every)),)
