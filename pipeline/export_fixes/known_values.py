"""Track the values of fake tensors whose elements are known during an export.

A fake tensor stores all its elements (`FakeTensor.constant`) if they are computed from values that are the same in all
calls: literals, buffers that the model never writes, inputs that are a `Constant`. Otherwise it may store its largest
element as an expression of sizes (`FakeTensor.item_memo`, a `Ratio` for floats; see `known_numbers`). If Python reads a
number from such a tensor, the graph is valid for this number only. A write to the tensor clears both attributes.

Each known value has the names of the buffers from which it was computed. The program records the buffers whose numbers
Python read, since other numbers may lead to another graph. The elements are stored on the CPU, whatever the tensor's
device: so a value of a GPU buffer can be combined with a `Constant`, and the machine needs no GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, Final

import torch
from attrs import define, field
from torch._ops import OpOverload
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._mode_utils import no_dispatch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten

from pipeline.aten.op_predicates import LIFTS, READS
from pipeline.aten.types import Argument, Function, Target, aten
from pipeline.export_fixes.interrupts import set_contextvar
from pipeline.export_fixes.known_numbers import FUNCTIONAL_VARIANTS, RATIO_RULES, RULES, Number, Ratio, largest_element
from pipeline.inputs import Constant

BUFFERS_ATTRIBUTE: Final = "_pipeline_buffers"
"""The attribute of a fake tensor that holds the names of the buffers from which its known value was computed."""
RATIO_ATTRIBUTE: Final = "_pipeline_ratio"
"""The attribute of a fake tensor that holds its `Ratio`, and the tensor's version for which the `Ratio` is valid."""

MAX_TRACKED: Final = 64
"""The maximum number of elements of a tensor whose value is tracked, in a model without `Constant` inputs."""
MAX_TRACKED_WITH_CONSTANTS: Final = 1 << 20
"""The maximum number of elements of a tensor whose value is tracked, in a model with a `Constant` input."""

CREATION_OPERATORS: Final = frozenset(
    getattr(aten, name)
    for name in ("arange", "eye", "full", "linspace", "ones", "scalar_tensor", "tril_indices", "triu_indices", "zeros")
)
"""Operators that create a tensor from numbers only, without an input tensor."""


@define
class Known:
    """What is known during an export about the values of tensors.

    Attributes:
        inputs: the values of the `Constant` inputs, by index among the leaves of the inputs.
        is_of_model: whether a model is exported; False while torch traces an exported graph again.
        read_buffers: the names of buffers whose elements became constants of the graph, since Python read them.
        written: the names of buffers that the model writes, so that their elements differ from call to call.
        storages: for the storage of a buffer's fake tensor, or of its known elements, the names of the buffer.
        names_by_id: the model's names of each buffer, by the tensor's id, because Dynamo renames buffers.
        held_fakes: fake tensors of the tensors that the model holds outside of its buffers; the list keeps them alive.
    """

    inputs: Mapping[int, torch.Tensor] = field(factory=dict)
    is_of_model: bool = False
    read_buffers: frozenset[str] = frozenset()
    written: frozenset[str] = frozenset()
    storages: dict[StorageWeakRef, frozenset[str]] = field(factory=dict)
    names_by_id: dict[int, frozenset[str]] = field(factory=dict)
    held_fakes: list[FakeTensor] = field(factory=list)

    @property
    def max_elements(self) -> int:
        """The maximum number of elements of a tensor whose value is tracked."""
        return MAX_TRACKED_WITH_CONSTANTS if self.inputs else MAX_TRACKED

    def reset(self, written_buffers: frozenset[str] = frozenset()) -> None:
        """Forget the last export before the next one, in which ``written_buffers`` have no known values."""
        self.is_of_model, self.read_buffers, self.written = True, frozenset(), written_buffers
        self.storages.clear()
        self.held_fakes.clear()


known: ContextVar[Known | None] = ContextVar("known values", default=None)


def track_values(constants: Mapping[int, Constant] | None = None) -> AbstractContextManager[Known]:
    """Return a context in which exports record what is known of tensors' values in a `Known`, which the context yields.
    ``constants``: the `Constant` inputs, by index among the leaves of the inputs."""
    return set_contextvar(known, Known({place: constant.value for place, constant in (constants or {}).items()}))


def is_small_dense(tensor: torch.Tensor, max_elements: int = MAX_TRACKED) -> bool:
    """Return whether a tensor is dense, not on the meta device, and has at most ``max_elements`` elements."""
    return tensor.layout == torch.strided and not tensor.is_meta and tensor.numel() <= max_elements


def has_few_elements(tensor: torch.Tensor) -> bool:
    """Return whether a tensor has few elements, so that Python may read them as numbers."""
    return is_small_dense(tensor) and tensor.numel() > 0 and not tensor.is_complex()


def attach_value(fake: FakeTensor, value: torch.Tensor) -> FakeTensor:
    """Store the elements of a fake tensor in it; torch removes them when an operator writes to the tensor."""
    fake.constant = value
    fake.fake_mode.fake_tensor_converter.add_constant_storage_mapping(fake)
    return fake


def known_maximum(tensor: torch.Tensor) -> Number | None:
    """Return a fake tensor's largest element, or a float's `Ratio` (its exact quotient); None if it is unknown."""
    elements = getattr(tensor, "constant", None)
    if tensor.is_floating_point() or tensor.is_complex():
        if RATIO_ATTRIBUTE not in vars(tensor):  # tensors of inference mode count no writes
            return None
        version, ratio = vars(tensor)[RATIO_ATTRIBUTE]
        return ratio if version == tensor._version else None
    if elements is not None and elements.numel() > 0:
        return elements.max().item()  # type: ignore[no-any-return]
    return getattr(tensor, "item_memo", None)


def dispatch_with_known_values(
    dispatch: Function, mode: FakeTensorMode, func: Target, types: object, args: Argument = (), kwargs: Argument = None
) -> object:
    """Replace `FakeTensorMode.dispatch`, which runs an operator on fake tensors: store in the results what is known of
    their values; record the buffers whose numbers Python reads in `known`."""
    state = known.get()
    kwargs = kwargs or {}
    if not isinstance(func, OpOverload):
        return dispatch(mode, func, types, args, kwargs)
    if state is None:
        return _call_and_store_largest(func, args, kwargs, lambda: dispatch(mode, func, types, args, kwargs))
    if state.is_of_model and func not in LIFTS and not func._schema.is_mutable:
        args = _fake_held_tensors(mode, state, args)
    names, places = _source_buffers(args), _written_storages(func, args)
    found = _run_on_values(mode, state, func, args, kwargs)
    if found is NotImplemented:
        with nullcontext() if _has_cpu_kernel(func) else _hide_known_values(mode, func, args):
            found = _call_and_store_largest(func, args, kwargs, lambda: dispatch(mode, func, types, args, kwargs))
    if names:
        _record_buffer_uses(state, func, names, places, args, found)
    return found


def _call_and_store_largest(func: OpOverload, args: Argument, kwargs: Argument, call: Function) -> object:
    """Run the operator ``func`` by ``call()``, and return its result. If `RULES` or `RATIO_RULES` have a rule for it,
    store the largest element, or the `Ratio`, as an attribute of the result (see `known_maximum`)."""
    rule = FUNCTIONAL_VARIANTS.get(func, func)
    if rule not in RULES and rule not in RATIO_RULES:
        return call()
    numbers = [known_maximum(arg) if isinstance(arg, torch.Tensor) else arg for arg in args]
    made = call()
    if isinstance(made, FakeTensor) and not (func in FUNCTIONAL_VARIANTS and made.is_floating_point()):
        number = largest_element(rule, made.dtype, made.dim(), args, kwargs, numbers)
        if isinstance(number, Ratio):
            vars(made)[RATIO_ATTRIBUTE] = made._version, number
        elif number is not None:
            made.item_memo = number
    return made


def _run_on_values(mode: FakeTensorMode, known: Known, func: OpOverload, args: Argument, kwargs: Argument) -> object:
    """Run an operator on known values; return fake results with values; NotImplemented if one is unknown or large."""
    leaves, structure = tree_flatten((args, kwargs))
    if not _can_run_on_values(known, func, leaves):
        return NotImplemented
    fakes = {id(x.constant): x for x in leaves if isinstance(x, FakeTensor)}
    with no_dispatch():
        positional, named = tree_unflatten([_value_on_cpu(x) for x in leaves], structure)
        found = func(*positional, **named)
    made = [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
    if not all(id(x) in fakes or (type(x) is torch.Tensor and is_small_dense(x, known.max_elements)) for x in made):
        return NotImplemented
    device = result_device(leaves)
    return tree_map_only(torch.Tensor, lambda x: fakes[id(x)] if id(x) in fakes else _fake_of(mode, x, device), found)


def _can_run_on_values(state: Known, func: OpOverload, leaves: Sequence[object]) -> bool:
    """Return whether an operator computes only from known values, or creates a tensor from numbers or a literal."""
    tensors = [x for x in leaves if isinstance(x, torch.Tensor)]
    if any(isinstance(x, torch.SymInt | torch.SymFloat | torch.SymBool) for x in leaves):
        return False
    if not tensors:
        return bool(state.inputs) and func.overloadpacket in CREATION_OPERATORS
    if func in LIFTS and not isinstance(tensors[0], FakeTensor):
        return is_small_dense(tensors[0], state.max_elements)
    if not all(isinstance(x, FakeTensor) and x.constant is not None for x in tensors):
        return False
    if torch.Tag.nondeterministic_seeded in func.tags:
        return False
    return _has_cpu_kernel(func) and (torch.Tag.inplace_view not in func.tags or func is aten.detach_.default)


def _has_cpu_kernel(func: OpOverload) -> bool:
    """Return whether an operator has a CPU kernel: torch's operators have one, custom operators may have none."""
    if func.namespace in ("aten", "prims", "prim"):  # those of `prim` are TorchScript's alone
        return func.namespace != "prim"
    return torch._C._dispatch_has_computed_kernel_for_dispatch_key(func.name(), "CPU")


@contextmanager
def _hide_known_values(mode: FakeTensorMode, func: OpOverload, args: Argument) -> Iterator[None]:
    """Return a context in which ``args`` store no known elements: with them, torch would run ``func`` on the CPU, and
    ``func`` has no CPU kernel. At the end they are known again, unless the operator is in-place."""
    elements = {x: x.constant for x in tree_leaves(args) if isinstance(x, FakeTensor) and x.constant is not None}
    for fake, value in elements.items():
        if func._schema.is_mutable:
            mode.fake_tensor_converter.invalidate_constant_aliases(value)
        fake.constant = None
    try:
        yield
    finally:
        for fake, value in elements.items():
            fake.constant = None if func._schema.is_mutable else value


def _value_on_cpu(leaf: Argument) -> Argument:
    """Return an argument for a run on the CPU: a fake tensor's known value, a tensor's copy, the CPU for any device."""
    if isinstance(leaf, FakeTensor):
        return leaf.constant
    if isinstance(leaf, torch.Tensor):
        return leaf.cpu().clone()  # the graph has the literal itself, which nothing may write to
    return torch.device("cpu") if isinstance(leaf, torch.device) else leaf


def result_device(leaves: Sequence[object]) -> torch.device:
    """Return an operator's result device: its device argument, or else its tensors' device, a GPU before the CPU."""
    named = [x for x in leaves if isinstance(x, torch.device)]
    tensors = [x.device for x in leaves if isinstance(x, torch.Tensor)]
    return next(iter((*named, *sorted(tensors, key=lambda device: device.type == "cpu"))), torch.device("cpu"))


def _fake_of(mode: FakeTensorMode, value: torch.Tensor, device: torch.device) -> FakeTensor:
    """Return a fake tensor on a device that stores this value. On the CPU, fakes share memory if their values do."""
    if device.type == "cpu":
        return mode.fake_tensor_converter.from_real_tensor(mode, value, make_constant=True)
    with no_dispatch():
        elements = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
        return attach_value(FakeTensor(mode, elements, device), value)


def _fake_held_tensors(mode: FakeTensorMode, state: Known, args: Argument) -> Argument:
    """Return an operator's arguments with fake tensors of known value in place of small tensors that the model holds,
    but not as buffers. Such tensors are real or, for a GPU that the machine lacks, fakes of another mode."""

    def faked(tensor: torch.Tensor) -> torch.Tensor:
        value = tensor.constant if isinstance(tensor, FakeTensor) else tensor
        is_plain = type(value) is torch.Tensor and has_few_elements(value) and not value.requires_grad
        if value is None or not is_plain or mode.is_our_fake(tensor):
            return tensor
        fake: FakeTensor = mode.fake_tensor_converter.from_real_tensor(mode, tensor)
        if fake.constant is None:
            state.held_fakes.append(attach_value(fake, value.to("cpu", copy=True)))
        return fake

    return tree_map_only(torch.Tensor, faked, args)


def _source_buffers(args: Argument) -> frozenset[str]:
    """Return the names of the buffers from which the known values of an operator's arguments were computed."""
    found: frozenset[str] = frozenset()
    for arg in args:
        if isinstance(arg, FakeTensor):
            found |= vars(arg).get(BUFFERS_ATTRIBUTE, frozenset()) if _has_known_value(arg) else frozenset()
        elif type(arg) in (list, tuple):
            found |= _source_buffers(arg)
    return found


def _has_known_value(tensor: FakeTensor) -> bool:
    """Return whether a fake tensor stores all its elements, its largest element, or the `Ratio` of its only float."""
    return tensor.constant is not None or tensor.item_memo is not None or RATIO_ATTRIBUTE in vars(tensor)


def _written_storages(func: OpOverload, args: Argument) -> tuple[StorageWeakRef, ...]:
    """Return the storages that ``func`` writes if it is in-place: those of its first argument, and of the tensor that
    stores this argument's known elements."""
    if not func._schema.is_mutable or not isinstance(args[0], FakeTensor):
        return ()
    tensors = [x for x in (args[0], args[0].constant) if x is not None and x.layout == torch.strided]
    return tuple(StorageWeakRef(x.untyped_storage()) for x in tensors)


def _record_buffer_uses(
    state: Known, func: OpOverload, buffers: frozenset[str], written: Sequence[StorageWeakRef], args: Argument, out: Any
) -> None:
    """Record that an operator (result: ``out``) reads numbers or computes known results from ``buffers``, and writes
    the ``written`` storages. If it writes a known value, the buffers of the value also count as read, since views of
    the written tensor may be read later."""
    if READS.intersection(func.tags) and not free_unbacked_symbols(out):  # torch has made no symbol for it
        state.read_buffers |= buffers
    valued = [each for each in tree_leaves(out) if isinstance(each, FakeTensor) and _has_known_value(each)]
    if written:
        state.written = state.written.union(*(state.storages.get(place, frozenset()) for place in written))
        state.read_buffers |= _source_buffers(args[1:]) if valued else frozenset()
    for each in valued:
        vars(each)[BUFFERS_ATTRIBUTE] = buffers
