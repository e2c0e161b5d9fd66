"""Bound the memory that a call of a program from a file takes on the CPU by what its file says, before it is taken.

A few bytes of text can ask for any size: two vectors may become a matrix. So `save` writes how many bytes the tensors
of a call have at the largest sizes, `pipeline inspect` prints it, and an operator that would make more is not called.
Its result is computed on a fake tensor first, which has sizes and no memory. On a GPU torch's allocator is the bound.
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
from attrs import frozen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map_only

from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Argument
from pipeline.compiled import Compiled
from pipeline.errors import ExecutionError
from pipeline.program import in_bytes
from pipeline.runtime.opened_file import FileWeights, file_of
from pipeline.shapes.environment import MAX_SIZE, Symbols, bounds, shape_of

T = TypeVar("T")
aten = torch.ops.aten

FACTOR: Final = 4
"""An operator may take so many times the memory of its result: an engine's layers compute it in steps."""
LITTLE: Final = 64 << 20
"""So many bytes any program may take."""
MOST_KNOWN: Final = 16384
"""For how many calls of operators their bytes are remembered."""

_known: Final[dict[object, int]] = {}


def call_bytes(compiled: Compiled) -> int:
    """The most bytes that a call takes on the CPU; 0 if sizes have no bound."""
    graphs = [compiled.program.graph_module]
    graphs += [m for m in compiled.program.graph_module.modules() if isinstance(m, torch.fx.GraphModule)]
    nodes = {node for graph in graphs for node in graph.graph.nodes}
    sizes = [_bytes(value, compiled.program.shapes) for node in nodes for value in tree_iter(node.meta.get("val"))]
    layers = sum(
        8 * math.prod(tensor.shape)
        for network in compiled.networks
        for layer in network.layers
        for tensor in layer.outputs
        if min(tensor.shape, default=0) >= 0
    )
    return 0 if None in sizes else LITTLE + layers + FACTOR * sum(filter(None, sizes))


def _bytes(value: object, symbols: Symbols) -> int | None:
    """The bytes of a tensor at the largest sizes; None if there is no largest one."""
    if not isinstance(value, torch.Tensor | TensorType):
        return 0
    shape = shape_of(value)
    if {s.name for size in shape if not isinstance(size, int) for s in size.free_symbols} - symbols.keys():
        return None
    largest = [bounds(size, symbols).max for size in shape]
    return None if max(largest, default=0) >= MAX_SIZE else value.dtype.itemsize * math.prod(largest)


class Bounded(TorchDispatchMode):
    """A context in which tensors of this thread take at most ``most`` bytes at a time. ``file`` is for the error."""

    supports_higher_order_operators = True

    def __init__(self, most: int, file: str) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most, self.file, self.taken = most, file, 0
        self.holders: Counter[int] = Counter()

    def __torch_dispatch__(
        self,
        func: Argument,
        types: object,
        args: tuple[Argument, ...] = (),
        kwargs: Mapping[str, Argument] | None = None,
    ) -> Argument:
        named = kwargs or {}
        if not isinstance(func, torch._ops.OpOverload):  # it runs graphs, in which this goes on
            return func(*[self._inside(arg) for arg in args], **named)
        asked = self._asked(func, args, named)
        if self.taken + asked > self.most:
            taken, most = in_bytes(self.taken), in_bytes(self.most)
            raise ExecutionError(
                f"{func} asks for {in_bytes(asked)} after {taken}; {self.file} says that a call takes at most {most}",
                "a file that was changed may ask for any size; if it was not, compile the model for larger inputs",
            )
        result = func(*args, **named)
        before = {_memory(value) for value in _tensors((args, named))}
        for value in _tensors(result):
            self._note(value, _memory(value) in before)
        return result

    def _inside(self, value: Argument) -> Argument:
        """A graph that control flow runs, in this context; any other argument itself."""
        if isinstance(value, torch.Tensor) or not callable(value):
            return value

        def call(*args: Argument) -> Argument:
            with self:
                return value(*args)

        return call

    def _asked(self, func: Argument, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
        """The bytes of a call's new tensors."""
        if func in BY_DATA:
            return BY_DATA[func](*args, **kwargs)
        key = func, _form(args), _form(kwargs)
        size = _known.get(key)
        if size is None:
            while len(_known) >= MOST_KNOWN:
                _known.pop(next(iter(_known)), None)
            size = _known[key] = _made_by(func, args, kwargs)
        return size

    def _note(self, value: torch.Tensor, shared: bool) -> None:
        """Count the memory of a result until nothing holds it."""
        memory = _memory(value)
        if memory in self.holders or not shared:
            size = value.untyped_storage().nbytes()
            self.taken += 0 if memory in self.holders else size
            self.holders[memory] += 1
            weakref.finalize(value, self._drop, memory, size).atexit = False

    def _drop(self, memory: int, size: int) -> None:
        self.holders[memory] -= 1
        if not self.holders[memory]:
            del self.holders[memory]
            self.taken -= size


def _made_by(func: Argument, args: tuple[Argument, ...], kwargs: Mapping[str, Argument]) -> int:
    """The bytes of the new tensors of a call, found on fake tensors; 0 if torch does not know them, or the call is
    wrong, which calling it says."""
    fakes = FakeTensorMode(allow_non_fake_inputs=True)
    try:
        given = tree_map_only(torch.Tensor, fakes.from_tensor, (args, dict(kwargs)))
        with fakes, _unlogged():
            made = func(*given[0], **given[1])
    except Exception:
        return 0
    before = {_memory(value) for value in _tensors(given)}
    new = {_memory(value): value.untyped_storage().nbytes() for value in _tensors(made)}
    return sum(size for memory, size in new.items() if memory not in before)


@contextmanager
def _unlogged() -> Iterator[None]:
    """A context in which torch does not log that this thread's fake tensors fail."""
    this = threading.get_ident()
    log = logging.getLogger(FakeTensorMode.__module__)

    def is_of_others(record: logging.LogRecord) -> bool:
        return record.thread != this

    log.addFilter(is_of_others)
    try:
        yield
    finally:
        log.removeFilter(is_of_others)


def _form(value: Argument) -> object:
    """What decides the sizes of results."""
    if isinstance(value, torch.Tensor):
        return value.shape, value.stride() if value.layout == torch.strided else None, value.dtype
    if isinstance(value, (tuple, list)):
        return tuple(map(_form, value))
    if isinstance(value, dict):
        return tuple((name, _form(part)) for name, part in value.items())
    return type(value), value


@frozen
class Bound:
    """The bound of the calls of one program from a file: ``most`` bytes each."""

    most: int
    file: str

    @classmethod
    def of(cls, parameters: object, device: torch.device, times: int = 1) -> Bound | None:
        """The bound that a program's file states, whose parameters these are; None where none is needed."""
        if device.type != "cpu" or not isinstance(parameters, FileWeights) or not parameters.call_bytes:
            return None
        return cls(parameters.call_bytes * times, file_of(parameters))

    def __call__(self, call: Callable[..., T], *args: Argument) -> T:
        """Return the result of a call that takes no more.

        Raises:
            ExecutionError: it asks for more.
        """
        with Bounded(self.most, self.file):
            return call(*args)


def _tensors(values: object) -> Iterator[torch.Tensor]:
    found: Iterable[Argument] = tree_iter(values)
    return (v for v in found if isinstance(v, torch.Tensor) and v.layout == torch.strided)


def _memory(value: torch.Tensor) -> int:
    return int(value.untyped_storage()._cdata)


def _selected(x: torch.Tensor, mask: torch.Tensor) -> int:
    return int(x.element_size() * math.prod(torch.broadcast_shapes(x.shape, mask.shape)))


def _counted(x: torch.Tensor, weights: torch.Tensor | None = None, minlength: int = 0) -> int:
    return 8 * max(minlength, int(x.max()) + 1 if x.numel() else 0)


BY_DATA: Final[Mapping[Argument, Callable[..., int]]] = {
    aten.nonzero.default: lambda x: 8 * x.numel() * x.dim(),
    aten.masked_select.default: _selected,
    aten.index.Tensor: lambda x, indices: x.nbytes,
    aten.repeat_interleave.Tensor: lambda repeats, output_size=None: 8 * int(repeats.sum()),
    aten.bincount.default: _counted,
    aten._unique2.default: lambda x, *args, **kwargs: 24 * x.numel(),
    aten.unique_dim.default: lambda x, *args, **kwargs: 24 * x.numel(),
    aten.unique_consecutive.default: lambda x, *args, **kwargs: 24 * x.numel(),
}
"""The most bytes of results whose sizes data decides."""
