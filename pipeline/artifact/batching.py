"""Determine whether requests can be batched: whether each row of the outputs depends only on that row of the inputs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import sympy
import torch
from attrs import evolve

from pipeline.artifact.named_io import outputs_by_name
from pipeline.aten.types import Leaf
from pipeline.compiled import Compiled
from pipeline.program import Port, Program
from pipeline.shapes.environment import Range
from pipeline.trt import has_gpu
from pipeline.verification.samples import create_sample, sizes_to_try

ROWS = 3
"""The number of rows in the test batch, whose results are compared with those of calls with a single row."""


def batch_size_range(program: Program, ports: list[Port]) -> Range | None:
    """Return the range of the batch size; None if requests cannot be batched. They can if all inputs and outputs
    (``ports``) have two or more dims and the same first dim, with minimum 1, and the program has no state."""
    symbol = _shared_batch_symbol(ports)
    written = any(output.kind != "user" for output in program.outputs)
    if written or symbol is None or any(len(port.shape) < 2 for port in ports):
        return None
    found = ports[0].ranges[0]
    return found if found.min == 1 else None


def _shared_batch_symbol(ports: list[Port]) -> sympy.Symbol | None:
    first = {port.shape[0] if port.shape and port.kind == "tensor" else None for port in ports}
    size = first.pop() if len(first) == 1 else None
    return size if isinstance(size, sympy.Symbol) else None


def batching_obstacle(compiled: Compiled, ports: list[Port]) -> str:
    """Return why requests cannot be batched; empty if they can. The check compares a call with a few random rows to a
    call for each row. ``ports``: the program's inputs and outputs, which share their first dim."""
    symbol, rows = _shared_batch_symbol(ports), min(ROWS, ports[0].ranges[0].max)
    if symbol is None or rows == 1:
        return ""
    try:
        joined, *single = _batch_and_row_outputs(compiled, symbol.name, rows)
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0]
        return f"the test whether a row depends on others failed ({type(error).__name__}: {reason})"
    separate = {name: torch.cat([row[name] for row in single]) for name in joined}
    wrong = [name for name, value in joined.items() if not _is_equal_up_to_rounding(value, separate[name])]
    return f"a row of {', '.join(wrong)} depends on the other rows of a call" if wrong else ""


def _batch_and_row_outputs(compiled: Compiled, batch_symbol: str, row_count: int) -> Iterator[Mapping[str, Leaf]]:
    """Yield the outputs, by name, of a call with ``row_count`` random rows, then of a call for each of these rows."""
    program, device = compiled.program, torch.device("cuda" if has_gpu() else "cpu")
    drawn = create_sample(program, {**dict(sizes_to_try(program))["optimal"], batch_symbol: row_count})
    module = compiled.module()
    for part in (slice(row_count), *(slice(row, row + 1) for row in range(row_count))):
        leaves = tuple(leaf[part] if isinstance(leaf, torch.Tensor) else leaf for leaf in drawn.leaves)
        args, kwargs = evolve(drawn, leaves=leaves).arguments(program, device)
        yield outputs_by_name(program, module(*args, **kwargs))


def _is_equal_up_to_rounding(actual: torch.Tensor, expected: torch.Tensor) -> bool:
    if actual.shape != expected.shape or not expected.is_floating_point():
        return torch.equal(actual, expected)
    finite, bound = expected.isfinite(), max(1e-3, 8 * torch.finfo(expected.dtype).eps)
    if not torch.allclose(actual[~finite], expected[~finite], equal_nan=True):
        return False
    a, b = actual[finite].double(), expected[finite].double()
    return not b.numel() or bool((a - b).abs().max() <= bound * b.abs().max())
