"""Limit the memory that a call of a loaded program allocates to the size stated in its file.

A malicious file can make a small graph allocate any size: the outer product of two vectors is a matrix. So `save`
writes the bytes of a call's tensors at the largest sizes, and `pipeline inspect` prints this limit. Result sizes are
first computed on fake tensors, and an operator that would exceed the limit is not called. On a GPU later calls with the
same shapes run unchecked, unless sizes are data-dependent. Memory of TensorRT plans is not counted.
"""

from __future__ import annotations

import logging
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

import torch
from attrs import field, frozen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.aten.op_predicates import READS
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.traits import is_view
from pipeline.aten.types import Argument, aten
from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.program import Program
from pipeline.records.wording import format_bytes
from pipeline.runtime.opened_file import FileWeights, source_file_name
from pipeline.shapes.environment import MAX_SIZE, Symbols, bounds, shape_of

T = TypeVar("T")

FACTOR: Final = 4
"""How many times the bytes of its result an operator may allocate: an engine's layers need intermediate results."""
ALWAYS_ALLOWED: Final = 64 << 20
"""The bytes that a call of any program may allocate, whatever its file states."""
CACHED_CALLS: Final = 16384
"""The number of operator calls whose result sizes are cached."""

_sizes: Final[dict[object, int]] = {}


def max_call_bytes(compiled: Compiled) -> int:
    """Return an upper bound for the bytes that a call allocates; 0 if a dynamic size has no upper bound."""
    nodes = _all_nodes(compiled.program)
    sizes = [_max_bytes(v, compiled.program.shapes) for node in nodes for v in tree_leaves(node.meta.get("val"))]
    layers = sum(
        8 * math.prod(tensor.shape)
        for network in compiled.networks
        for layer in network.layers
        for tensor in layer.outputs
        if min(tensor.shape, default=0) >= 0
    )
    return 0 if None in sizes else ALWAYS_ALLOWED + layers + FACTOR * sum(filter(None, sizes))


def _all_nodes(program: Program) -> set[torch.fx.Node]:
    """Return the nodes of a program's graph and of the graphs that its control-flow operators run."""
    graphs = [program.graph_module]
    graphs += [m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    return {node for graph in graphs for node in graph.graph.nodes}


def _max_bytes(value: object, symbols: Symbols) -> int | None:
    """Return the bytes of a tensor at its largest sizes; None if a size has no upper bound."""
    if not isinstance(value, torch.Tensor | TensorType):
        return 0
    shape = shape_of(value)
    if {s.name for size in shape if not isinstance(size, int) for s in size.free_symbols} - symbols.keys():
        return None
    largest = [bounds(size, symbols).max for size in shape]
    return None if max(largest, default=0) >= MAX_SIZE else value.dtype.itemsize * math.prod(largest)


class AllocationLimit(TorchDispatchMode):
    """A context in which all tensors that this thread has allocated and not freed take at most ``limit`` bytes.

    file: the name of the program's file, for the error.
    """

    supports_higher_order_operators = True

    def __init__(self, limit: int, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.file, self.taken = limit, file, 0
        self.holders: Counter[int] = Counter()

    def __torch_dispatch__(
        self,
        func: Argument,
        types: object,
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> Argument:
        named = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # control flow: its graphs run in this mode
            return func(*[self._wrap_graph(arg) for arg in args], **named)
        asked = self._requested_bytes(func, args, named)
        if self.taken + asked > self.most:
            taken, most = format_bytes(self.taken), format_bytes(self.most)
            raise ExecutionError(
                f"{func} needs {format_bytes(asked)} beside {taken} in use; {self.file} allows a call at most {most}",
                "if you do not trust the file, do not run it; if you trust it, compile the model for larger inputs",
            )
        result = func(*args, **named)
        before = {_storage_address(value) for value in _strided_tensors_in((args, named))}
        for value in _strided_tensors_in(result):
            self._count_storage(value, _storage_address(value) in before)
        return result

    def _wrap_graph(self, argument: Argument) -> Argument:
        """Wrap a control-flow graph so that it also runs under this limit; return any other argument unchanged."""
        if isinstance(argument, torch.Tensor) or not callable(argument):
            return argument

        def call(*args: Argument) -> Argument:
            with self:
                return argument(*args)

        return call

    def _requested_bytes(self, func: Argument, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
        """Return the bytes of the tensors that a call of an operator would allocate."""
        if is_view(func):
            return 0
        if func in FORMULAS:
            return FORMULAS[func](*args, **kwargs)
        key = func, _sizes_cache_key(args), _sizes_cache_key(kwargs)
        size = _sizes.get(key)
        if size is None:
            while len(_sizes) >= CACHED_CALLS:
                _sizes.pop(next(iter(_sizes)), None)
            size = _sizes[key] = _allocated_bytes(func, args, kwargs)
        return size

    def _count_storage(self, result: torch.Tensor, is_argument_storage: bool) -> None:
        """Add the storage of an operator's result to the bytes in use, until the counted tensors on it are freed.

        is_argument_storage: whether an argument of the operator has this storage, so that the call did not allocate it.
        """
        address = _storage_address(result)
        if address in self.holders or not is_argument_storage:
            size = result.untyped_storage().nbytes()
            self.taken += 0 if address in self.holders else size
            self.holders[address] += 1
            weakref.finalize(result, self._release_storage, address, size).atexit = False

    def _release_storage(self, address: int, nbytes: int) -> None:
        """Subtract a storage from the bytes in use if its last counted tensor was freed; called after each is freed."""
        self.holders[address] -= 1
        if not self.holders[address]:
            del self.holders[address]
            self.taken -= nbytes


def _allocated_bytes(func: Argument, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
    """Compute on fake tensors how many bytes an operator's call allocates; 0 if the call fails on fake tensors."""
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        given = tree_map_only(torch.Tensor, fakes.from_tensor, (args, dict(kwargs)))
        with fakes, _silence_fake_tensor_log():
            results = func(*given[0], **given[1])
    except Exception:
        return 0
    before = {_storage_address(value) for value in _strided_tensors_in(given)}
    new = {_storage_address(value): value.untyped_storage().nbytes() for value in _strided_tensors_in(results)}
    return sum(size for memory, size in new.items() if memory not in before)


@contextmanager
def _silence_fake_tensor_log() -> Iterator[None]:
    """Silence torch's log of failures on fake tensors in this thread."""
    this = threading.get_ident()
    log = logging.getLogger(FakeTensorMode.__module__)

    def from_other_thread(record: logging.LogRecord) -> bool:
        return record.thread != this

    log.addFilter(from_other_thread)
    try:
        yield
    finally:
        log.removeFilter(from_other_thread)


def _sizes_cache_key(argument: Argument) -> object:
    """Return a cache key for an argument: the properties of the argument that determine the sizes of results."""
    if isinstance(argument, torch.Tensor):
        return argument.shape, argument.stride() if argument.layout == torch.strided else None, argument.dtype
    if isinstance(argument, (tuple, list)):
        return tuple(map(_sizes_cache_key, argument))
    if isinstance(argument, dict):
        return tuple((name, _sizes_cache_key(part)) for name, part in argument.items())
    return type(argument), argument


@frozen
class CallLimit:
    """The memory limit of each call of a program from a file.

    most: the limit in bytes. file: the file's name. once: whether to check only the first call with each `CallPlan`.
    """

    most: int
    file: str
    once: bool = False
    _seen: weakref.WeakSet[object] = field(factory=weakref.WeakSet, init=False, eq=False, repr=False)

    @classmethod
    def from_file(cls, parameters: object, program: Program, scale: int = 1, *, once: bool = False) -> CallLimit | None:
        """Return the memory limit that is stated in the file of a loaded program; None if there is no file or limit.

        parameters: the program's parameters: `FileWeights` if the program was loaded from a file.
        scale: a factor for the limit, for a program that computes in wider dtypes.
        once: check only the first call with each `CallPlan`, if no size is data-dependent.
        """
        if not isinstance(parameters, FileWeights) or not parameters.call_bytes:
            return None
        called = {node.target for node in _all_nodes(program) if node.op == "call_function"}
        reads = any(READS.intersection(getattr(target, "tags", ())) for target in called)
        by_values = reads or any(isinstance(target, torch._ops.HigherOrderOperator) for target in called)
        return cls(parameters.call_bytes * scale, source_file_name(parameters), once and not by_values)

    def __call__(self, call: Callable[..., T], plan: object, *args: Argument) -> T:
        """Return the result of ``call(plan, *args)``. ``plan``: the call's `CallPlan`; see ``once``.

        Raises:
            ExecutionError: the call would allocate more bytes than ``most``.
        """
        if plan in self._seen:
            return call(plan, *args)
        with AllocationLimit(self.most, self.file):
            result = call(plan, *args)
        if self.once:
            self._seen.add(plan)
        return result


def _strided_tensors_in(values: object) -> Iterator[torch.Tensor]:
    found: Iterable[Argument] = tree_leaves(values)
    return (v for v in found if isinstance(v, torch.Tensor) and v.layout == torch.strided)


def _storage_address(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _dtype_of_result(dtype: torch.dtype | None) -> torch.dtype:
    """Return the dtype of a new tensor for which this dtype is stated."""
    return torch.get_default_dtype() if dtype is None else dtype


def _bincount_bytes(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> int:
    """Return an upper bound in bytes for the result of ``torch.bincount``; it reads the greatest value of ``x``."""
    return 8 * max(minlength, int(x.max()) + 1 if x.numel() else 0)


FORMULAS: Final[Mapping[Argument, Callable[..., int]]] = {
    aten.empty.memory_format: lambda size, *, dtype=None, **_: math.prod(size) * _dtype_of_result(dtype).itemsize,
    aten.copy_.default: lambda *args: 0,
    aten.clone.default: lambda x, **_: x.numel() * x.itemsize,
    aten.nonzero.default: lambda x: 8 * x.numel() * x.dim(),
    aten.masked_select.default: lambda x, mask: x.itemsize * math.prod(torch.broadcast_shapes(x.shape, mask.shape)),
    aten.index.Tensor: lambda x, indices: x.nbytes,
    aten.repeat_interleave.Tensor: lambda repeats, output_size=None: 8 * int(repeats.sum()),
    aten.bincount.default: _bincount_bytes,
    aten._unique2.default: lambda x, *args, **kwargs: 24 * x.numel(),
    aten.unique_dim.default: lambda x, *args, **kwargs: 24 * x.numel(),
    aten.unique_consecutive.default: lambda x, *args, **kwargs: 24 * x.numel(),
}
"""For operators whose result size depends on data, and for those that a call of an engine needs: functions that return
an upper bound in bytes. Fake tensors would import torch's compiler at a program's first call, which takes a second."""
