"""Capture the state that a model keeps between calls in buffers; reject state that it keeps elsewhere.

During an export, our wrapper calls the model's ``forward`` and compares the attributes of its modules before and after.
If ``forward`` assigned another tensor to a buffer, the tensor is written to the buffer as if by ``copy_``. If any other
attribute changed that the model's code reads, the model is exported again with two calls in one graph. If the second
call computes the same function of its own inputs as the first, no state is carried between calls. Otherwise a
`CaptureError` names the attribute and the line that assigns it.
"""

from __future__ import annotations

import dis
import functools
import inspect
import logging
import operator
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from itertools import chain
from types import CodeType, FunctionType
from typing import Final

import torch
from attrs import define, field, frozen
from torch.export import ExportedProgram
from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import TreeSpec, tree_flatten, tree_leaves, tree_map_only

from pipeline.aten.own_ops import AGAIN
from pipeline.aten.types import Argument
from pipeline.errors import CaptureError
from pipeline.export_fixes.call_twice import is_second_call_equal, nodes_depending_on
from pipeline.export_fixes.error_attribution import NOT_MODEL_CODE, Inputs, source_line_text
from pipeline.export_fixes.export_steps import collect_range_violations
from pipeline.export_fixes.interrupts import set_contextvar, undo_at_exit
from pipeline.export_fixes.model_calls import assigned_tensors
from pipeline.export_fixes.restore_model_state import Snapshot, class_and_file_contents, held_objects, join_path

log = logging.getLogger(__name__)

REGISTRIES: Final = ("_buffers", "_parameters")
DERIVED_ATTRIBUTES: Final = ("_flat_weights", "_flat_weight_refs")
"""Attributes in which torch's recurrent layers list their parameters; a trace replaces the listed tensors."""

HINT: Final = (
    "register the state as a buffer and assign only tensors of the same shape and dtype to it, or take the state "
    "as an input, and return it"
)

kept_state: ContextVar[KeptState | None] = ContextVar("what an export's model keeps", default=None)
"""Collects the state that the exported model keeps between calls; None outside of an export."""


@define
class KeptState:
    """The state that an exported model keeps between calls: traced calls record it, `raise_if_stateful` checks it.

    Attributes:
        changes: for each attribute that changed (its path), except buffers, its value after each traced call.
        memos: the changed attributes that were empty before, and now have a value that is independent of inputs.
        repeat_export: exports the model again as in the last successful export, with two calls if `calls_twice`.
        containers: the names of inputs (lists or dicts) whose entries the last call changed.
        calls_twice: whether the export traces two calls of the model.
        structures: for each traced call, the pytree structure of its outputs.
    """

    model: torch.nn.Module
    changes: dict[str, list[object]] = field(factory=dict)
    memos: set[str] = field(factory=set)
    containers: Sequence[str] = ()
    repeat_export: Callable[[], ExportedProgram] | None = None
    calls_twice: bool = False
    structures: list[TreeSpec] = field(factory=list)

    def call_model(self, model: torch.nn.Module, forward: Callable[..., Argument], inputs: Inputs) -> object:
        """Call ``forward`` of the exported ``model``, or of its copy with fake tensors, during a trace; return its
        outputs. If `calls_twice`, call it twice, so that the graph shows whether the second call uses state of the
        first: return the leaves of both calls' outputs, and the second call's inputs."""
        self.changes, self.structures = {}, []
        before = _ModelBefore.of(model, inputs)
        outputs = self.call_once(before, forward, inputs)
        if not self.calls_twice:
            return outputs
        inputs = tree_map_only(torch.Tensor, AGAIN, inputs)
        second = self.call_once(before, forward, inputs)
        (one, *structure), (other, *its) = map(tree_flatten, (outputs, second))
        self.structures = [*structure, *its]
        marks = [leaf for leaf in tree_leaves(inputs) if isinstance(leaf, torch.Tensor)]
        return [one, other, marks]  # a mark that is no result would vanish from the graph

    def call_once(self, before: _ModelBefore, forward: Callable[..., Argument], inputs: Inputs) -> Argument:
        """Call the model, return its outputs, and record what changed since ``before``, the model's state before the
        first call. A tensor that the model assigned to a buffer is copied into the buffer."""
        args, kwargs = inputs
        given = inspect.signature(forward).bind(*args, **kwargs).arguments
        leaves = {name: tree_flatten(value) for name, value in given.items()}
        with set_contextvar(assigned_tensors, list[torch.Tensor]()) as rebound:
            outputs = before.write_back(forward(*args, **kwargs), rebound)
        self.containers = [name for name, found in leaves.items() if not _has_same_contents(given[name], *found)]
        changes = before.changed_values(rebound)
        if not self.calls_twice:
            self.memos = before.memoized_attributes(changes, _dependence_predicate(inputs)) if changes else set()
        for place, value in changes.items():
            self.changes.setdefault(place, []).append(value)
        return outputs

    def raise_if_stateful(self) -> None:
        """Raise `CaptureError` if a call depends on state that an earlier call left in the model. The error names
        the attribute and the line that assigns it."""
        if self.containers:
            what = f"{type(self.model).__name__} changes entries of its input {', '.join(self.containers)}"
            log.warning("%s: the compiled program does not change them, but returns the same results", what)
        kept = {place: values for place, values in self.changes.items() if place not in self.memos}
        if not kept or self.repeat_export is None:
            return
        self.calls_twice, changes = True, self.changes
        try:
            with collect_range_violations():
                same = is_second_call_equal(self.repeat_export(), self.structures)
        except Exception as error:
            log.debug("the model cannot be captured for two calls", exc_info=error)
            log.warning("the compiled program does not keep %s between calls", self.lines_that_assign(kept))
            return
        finally:
            self.calls_twice, self.changes, after = False, changes, self.changes
        if not same:
            moving = [place for place in kept if len(values := after.get(place, [])) < 2 or values[0] is not values[1]]
            why = f"{type(self.model).__name__} keeps state between calls in {self.lines_that_assign(moving or kept)}"
            raise CaptureError(f"{why}: a compiled program would start each call from the initial state", HINT)
        read = _attribute_names_read(self.model)
        unread = [place for place in kept if place.rpartition(".")[2] not in read]
        if shown := [place for place in unread if any(map(_is_tensor, tree_leaves(kept[place])))]:
            log.warning("the model assigns %s: the compiled program does not", self.lines_that_assign(shown))

    def lines_that_assign(self, attribute_paths: Sequence[str] | Mapping[str, object]) -> str:
        """Return as text the attributes that a call changed, each with the line that assigns it."""
        lines = {place: _assigning_line(self.model, place) for place in attribute_paths}
        return "; ".join(place + (line and f" ({line})") for place, line in lines.items())


def _has_same_contents(value: object, leaves: Sequence[object], spec: TreeSpec) -> bool:
    """Return whether an input still has the leaves and structure that it had before the call."""
    now, its = tree_flatten(value)
    return its == spec and all(map(operator.is_, now, leaves))


@contextmanager
def watch_state(model: torch.nn.Module, may_draw_random: bool) -> Iterator[None]:
    """Return a context in which a call of the model records in `kept_state` what it keeps for later calls. Unless
    ``may_draw_random`` is true, raise `CaptureError` if the model seeds torch's random generator."""
    kept, own, inside = kept_state.get(), model.forward, [False]
    assert kept is not None

    @functools.wraps(own, updated=())
    def watching(*args: Argument, **kwargs: Argument) -> object:  # torch takes frames of another name for the model's
        if inside[0] or kept_state.get() is not kept:  # it calls itself, or another thread does
            return own(*args, **kwargs)
        inside[0] = True
        try:
            return kept.call_model(model, own, (args, kwargs))
        finally:
            inside[0] = False

    space, before = vars(model), vars(model).get("forward")

    def restore() -> None:
        space.pop("forward", None)
        space.update({} if before is None else {"forward": before})

    with undo_at_exit(restore), nullcontext() if may_draw_random else _reject_seeding():
        space["forward"] = watching
        yield


@contextmanager
def _reject_seeding() -> Iterator[None]:
    """Return a context that raises an error if a model seeds the random generator, which a trace must not change."""
    numbers = torch.get_rng_state()
    with undo_at_exit(lambda: torch.set_rng_state(numbers)):
        torch.default_generator.manual_seed(0x7C15F39CC0605CED)  # a seed that no model has
        traced = torch.get_rng_state()
        yield
        if not torch.equal(torch.get_rng_state(), traced):
            why = "the model seeds torch's random generator when it is called, which a compiled program cannot do"
            raise CaptureError(why, "seed before calling the model; in the model, sample without a torch.Generator")


@frozen
class _TensorBefore:
    """A parameter, buffer or input before a call: its attribute path, shape, storage, and node in the traced graph."""

    place: str
    space: dict[str, torch.Tensor]
    name: str
    tensor: torch.Tensor
    is_writable: bool
    copy_key: tuple[object, ...]
    memory: StorageWeakRef | None
    slot: Argument

    @classmethod
    def of(cls, path: str, namespace: dict[str, torch.Tensor], name: str, is_writable: bool = True) -> _TensorBefore:
        """Return the record of ``namespace[name]``, such as a module's buffer; ``is_writable``: a call may write it."""
        mode, tensor = get_proxy_mode(), namespace[name]
        slot = None if mode is None else get_proxy_slot(tensor, mode.tracer, None)
        return cls(path, namespace, name, tensor, is_writable, _copy_key(tensor), _storage_of(tensor), slot)

    def is_replaced(self, reassigned: Sequence[torch.Tensor]) -> bool:
        """Return whether the attribute is another tensor now, or its tensor is in ``reassigned`` (`write_back`)."""
        return self.space.get(self.name) is not self.tensor or any(self.tensor is each for each in reassigned)


def _dependence_predicate(inputs: object) -> Callable[[object], bool]:
    """Return a function that tells if a value may depend on these inputs: a tensor by the graph, others always."""
    mode = get_proxy_mode()
    if mode is None:
        return lambda value: True
    slots = [get_proxy_slot(leaf, mode.tracer, None) for leaf in tree_leaves(inputs) if _is_tensor(leaf)]
    nodes = nodes_depending_on(mode.tracer.graph, {slot.proxy.node for slot in slots if slot is not None})

    def may_depend(value: object) -> bool:
        leaves = tree_leaves([*value] if isinstance(value, set) else value)
        if not all(map(_is_tensor, leaves)):
            return True
        slots = [get_proxy_slot(leaf, mode.tracer, None) for leaf in leaves]
        return any(slot is not None and slot.proxy.node in nodes for slot in slots)

    return may_depend


def _is_tensor(value: object) -> bool:
    return isinstance(value, torch.Tensor)


def _copy_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Return a key, equal for tensors of the same static sizes, dtype, device and layout; unique for dynamic sizes."""
    sizes = (size if isinstance(size, int) else object() for size in tensor.shape)
    return (*sizes, tensor.dtype, tensor.device, tensor.layout)


def _storage_of(tensor: torch.Tensor) -> StorageWeakRef | None:
    return StorageWeakRef(tensor.untyped_storage()) if tensor.layout == torch.strided else None


@frozen
class _ModelBefore:
    """The tensors and attributes of a model before a traced call."""

    registered: Sequence[_TensorBefore]
    spaces: Sequence[tuple[str, Snapshot]]

    @classmethod
    def of(cls, model: torch.nn.Module, inputs: object) -> _ModelBefore:
        """Return the record of a model's tensors and attributes, and of the input tensors, before a call."""
        modules = [*model.named_modules()]
        spaces = [(path, kind, vars(module)[kind]) for path, module in modules for kind in REGISTRIES]
        rows = [
            _TensorBefore.of(join_path(path, name), space, name, kind == "_buffers")
            for path, kind, space in spaces
            for name, tensor in space.items()
            if tensor is not None
        ]
        rows += [_TensorBefore.of("an input", {"": leaf}, "") for leaf in tree_leaves(inputs) if _is_tensor(leaf)]
        return cls(rows, [(place, Snapshot.of(vars(each))) for place, each in (*modules, *held_objects(model))])

    def write_back(self, outputs: Argument, reassigned: list[torch.Tensor]) -> Argument:
        """Copy each tensor that the model assigned to a buffer into the buffer itself, if shape and dtype fit. Return
        the outputs, cloned if the copies would change them. ``reassigned``: the tensors to whose ``.data`` the model
        assigned; remove those that are restored by a copy."""
        moved = [row for row in self.registered if row.is_writable and row.is_replaced(reassigned)]
        pairs = [
            (row, new)
            for row in moved
            if (new := row.space.get(row.name)) is not None and _copy_key(new) == row.copy_key
        ]
        if not pairs:
            return outputs
        olds = {row.memory for row, _ in pairs}

        def apart(tensor: torch.Tensor) -> torch.Tensor:
            """Return a tensor, cloned if the write to the buffers would change it."""
            return tensor.clone() if _storage_of(tensor) in olds else tensor

        outputs = tree_map_only(torch.Tensor, apart, outputs)
        values = [new.clone() if new is row.tensor else apart(new) for row, new in pairs]
        with torch.no_grad() if torch.is_grad_enabled() else nullcontext():  # the model may have left it enabled
            for (row, _), value in zip(pairs, values, strict=True):
                if (mode := get_proxy_mode()) is not None and row.slot is not None:
                    set_proxy_slot(row.tensor, mode.tracer, row.slot)
                row.space[row.name] = row.tensor
                row.tensor.copy_(value)
                reassigned[:] = [tensor for tensor in reassigned if tensor is not row.tensor]
        return outputs

    def memoized_attributes(self, changes: Mapping[str, object], may_depend: Callable[[object], bool]) -> set[str]:
        """Return the ``changes`` of attributes that were empty before, and have new values that depend on no input."""
        found: set[str] = set()
        for path, space in self.spaces:
            for name in space.current:
                if (place := join_path(path, name)) in changes and (new := space.added_values(name)) is not None:
                    found.update([place] if not any(map(may_depend, new)) else [])
        return found

    def changed_values(self, reassigned: Sequence[torch.Tensor]) -> dict[str, object]:
        """Return {path: new value} of attributes, except hooks, that a call changed; ``reassigned``: `write_back`."""
        found: dict[str, object] = {r.place: r.space.get(r.name) for r in self.registered if r.is_replaced(reassigned)}
        for path, space in self.spaces:
            for name, value in space.changed_items():
                if name in REGISTRIES:
                    known = {row.name for row in self.registered if row.space is value}
                    found |= {join_path(path, n): t for n, t in space.current[name].items() if n not in known}
                elif not name.endswith("_hooks") and name not in DERIVED_ATTRIBUTES:
                    found[join_path(path, name)] = value
        return found


_READS: Final = ("LOAD_ATTR", "LOAD_METHOD")


def _attribute_names_read(model: torch.nn.Module) -> frozenset[str]:
    """Return the names of the attributes that the model's code may read: as attributes or as strings (``getattr``)."""
    found: set[str] = set()
    for code in _model_codes(model):
        found.update(i.argval for i in dis.get_instructions(code) if i.opname in _READS)
        found.update(value for value in code.co_consts if isinstance(value, str))
    return frozenset(found)


def _assigning_line(model: torch.nn.Module, path: str) -> str:
    """Return the source line that assigns an attribute, or else a line that reads it; "" if there is none."""
    path, _, name = path.rpartition(".")
    owner = dict(model.named_modules()).get(path, model)
    creating = ("__init__", "__new__", "__setstate__")
    codes = [code for code in (*_model_codes(owner), *_model_codes(model)) if code.co_name not in creating]
    for operations in (("STORE_ATTR",), _READS):
        for code in codes:
            line = code.co_firstlineno
            for instruction in dis.get_instructions(code):
                line = instruction.positions.lineno if instruction.positions and instruction.positions.lineno else line
                if instruction.opname in operations and instruction.argval == name:
                    return source_line_text(code.co_filename, line)
    return ""


def _model_codes(model: torch.nn.Module) -> Iterator[CodeType]:
    """Yield the code objects, except torch's own, that may read a model's attributes: of the classes of its modules and
    of the objects in them, of the files that define these classes, and of functions that modules hold."""
    objects = (*model.modules(), *(each for _, each in held_objects(model)))
    contents = class_and_file_contents(objects, torch_too=True)  # a class that was made by exec is in builtins
    held = (value for module in model.modules() for value in [*vars(module).values()])
    left = deque(code for value in chain(contents, held) for code in _code_of(value))
    while left:
        code = left.popleft()
        if not code.co_filename.startswith(NOT_MODEL_CODE[0]):
            yield code
            left.extendleft(each for each in code.co_consts if isinstance(each, CodeType))


def _code_of(value: object) -> Iterator[CodeType]:
    """Yield the code objects of a function, method or property, also of functions that a decorator wraps."""
    functions = (value, *(getattr(value, name, None) for name in ("fget", "fset", "func", "__func__")))
    for function in functions:
        while function is not None:
            if isinstance(function, FunctionType):
                yield function.__code__
            function = getattr(function, "__wrapped__", None)
