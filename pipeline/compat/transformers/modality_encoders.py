"""The towers (vision and audio encoders) of multimodal models: programs for the examples' calls, PyTorch for others."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Final, Protocol, TypeAlias

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from pipeline.aten.types import Argument, Spec
from pipeline.compat.transformers.caches import Pretrained
from pipeline.compiled import Compiled, CompiledModule
from pipeline.errors import CaptureError, ShapeError
from pipeline.export_fixes.call_recorder import Call, Calls
from pipeline.export_fixes.input_checks import bound
from pipeline.inputs import Constant

log = logging.getLogger(__name__)

SMALL: Final = 8
"""The factor by which a projection has fewer parameters than the largest tower."""
MOST_REPORTED: Final = 8
"""The most kinds of calls that are reported to run in PyTorch."""

Called: TypeAlias = tuple[torch.nn.Module, tuple[Argument, ...], dict[str, Argument]]
"""A module, and the args and kwargs that it was called with."""
Compile: TypeAlias = Callable[[torch.nn.Module, torch.nn.Module, dict[str, Argument]], Compiled]
"""A function that compiles a module, most of which is the tower, for ``args``, ``kwargs``, ``dynamic_shapes``."""


@frozen
class TowerCall:
    """A model's call of its tower for an example: the tower's path, and the arguments."""

    path: str
    args: tuple[Argument, ...] = field(repr=False)
    kwargs: Mapping[str, Argument] = field(repr=False)

    @property
    def flat(self) -> tuple[list[Argument], Spec]:
        """Return the arguments as a flat list, and their pytree structure."""
        leaves, spec = tree_flatten((self.args, dict(self.kwargs)))
        return leaves, spec

    def is_like(self, other: TowerCall) -> bool:
        """Return whether another call differs only in the values and sizes of floating-point tensors."""
        (own, nested), (leaves, spec) = self.flat, other.flat
        return (self.path, nested) == (other.path, spec) and all(map(alike, own, leaves))

    def __str__(self) -> str:
        return ", ".join(_shown(each) for each in self.flat[0] if isinstance(each, torch.Tensor))


def _shown(x: torch.Tensor) -> str:
    """Return a tensor as text: up to 12 integers, else dtype and shape."""
    few = not x.is_floating_point() and x.numel() <= 12
    return str(x.tolist()) if few else f"{str(x.dtype).removeprefix('torch.')}{list(x.shape)}"


@frozen
class LaidOut:
    """The arguments of a tower with two tensors: ``floats``, and integers, ``numbers``, that describe their layout.
    ``places`` are their indices in ``leaves``; no other leaf is a tensor."""

    leaves: tuple[Argument, ...] = field(repr=False)
    nested: Spec = field(repr=False)
    places: tuple[int, int]

    @classmethod
    def of(cls, call: TowerCall) -> LaidOut | None:
        """Return the arguments of a call; None if it has other tensors."""
        leaves, nested = call.flat
        tensors = [i for i, x in enumerate(leaves) if isinstance(x, torch.Tensor)]
        at, *more = sorted(tensors, key=lambda i: not leaves[i].is_floating_point()) or [0]
        fits = len(more) == 1 and leaves[at].is_floating_point() and not leaves[more[0]].is_floating_point()
        return cls(tuple(leaves), nested, (at, more[0])) if fits else None

    @property
    def floats(self) -> torch.Tensor:
        """Return the floating-point tensor: pixels, patches or features."""
        found: torch.Tensor = self.leaves[self.places[0]]
        return found

    @property
    def numbers(self) -> torch.Tensor:
        """Return the tensor of integers: sizes or grids."""
        found: torch.Tensor = self.leaves[self.places[1]]
        return found

    def replaced(self, floats: torch.Tensor, numbers: torch.Tensor | None) -> tuple[Argument, Argument]:
        """Return ``args`` and ``kwargs`` of a call with these tensors instead."""
        leaves = list(self.leaves)
        leaves[self.places[0]], leaves[self.places[1]] = floats, numbers
        args, kwargs = tree_unflatten(leaves, self.nested)
        return args, kwargs

    def is_like(self, other: LaidOut) -> bool:
        """Return whether another call differs only in these two tensors; dim 1 of the floats has one size."""
        x, y = self.floats, other.floats
        if (self.nested, self.places, x.dim(), x.shape[1]) != (other.nested, other.places, y.dim(), y.shape[1]):
            return False
        pairs = zip(self.leaves, other.leaves, strict=True)
        return x.dtype == y.dtype and all(alike(a, b) for i, (a, b) in enumerate(pairs) if i not in self.places)


class Kind(Protocol):
    """A set of calls of a tower that one program runs."""

    @property
    def path(self) -> str:
        """Return the path of the tower."""

    def takes(self, call: TowerCall) -> bool:
        """Return whether the program may run a call."""

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """Return the module to compile."""

    def inputs(self, tower: torch.nn.Module) -> dict[str, Argument]:
        """Return ``args``, ``kwargs`` and ``dynamic_shapes`` for the capture."""

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """Return a function that runs a call of the tower by the program."""


@frozen
class TowerSizes:
    """Calls of a tower that differ only in sizes of floats: one program may run all of them."""

    calls: tuple[TowerCall, ...]

    def inputs(self, tower: torch.nn.Module) -> dict[str, Argument]:
        """Return ``args``, ``kwargs``, ``dynamic_shapes`` for the capture; integers, such as grids, are constants."""
        seen = Calls(tower, [Call.of(bound(tower, c.args, c.kwargs), None) for c in self.calls])
        seen.example = self.calls[0].args, dict(self.calls[0].kwargs)
        found = seen.inputs
        args, kwargs = tree_map_only(torch.Tensor, _as_input, (found["args"], found["kwargs"]))
        return {"args": args, "kwargs": kwargs, "dynamic_shapes": found["dynamic_shapes"]}

    @property
    def path(self) -> str:
        """Return the path of the tower."""
        return self.calls[0].path

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """Return the tower."""
        return tower

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """Return the program itself."""
        return program

    def takes(self, call: TowerCall) -> bool:
        """Return whether the program may run a call: it is like these, and its sizes are between theirs."""
        if not self.calls[0].is_like(call):
            return False
        every = zip(*(each.flat[0] for each in self.calls), strict=True)
        return all(_between(x, own) for x, own in zip(call.flat[0], every, strict=True) if isinstance(x, torch.Tensor))

    def __str__(self) -> str:
        return " to ".join(dict.fromkeys(map(str, (self.calls[0], self.calls[-1]))))


def _as_input(x: torch.Tensor) -> torch.Tensor | Constant:
    return x if x.is_floating_point() else Constant(x)


def alike(own: Argument, other: Argument) -> bool:
    """Return whether two arguments are equal; floating-point tensors may differ in values and sizes."""
    if not isinstance(own, torch.Tensor):
        return bool(type(own) is type(other) and own == other)
    if not isinstance(other, torch.Tensor) or (own.dim(), own.dtype) != (other.dim(), other.dtype):
        return False
    return own.is_floating_point() or (own.shape == other.shape and torch.equal(own, other.to(own.device)))


def _between(x: torch.Tensor, own: Sequence[torch.Tensor]) -> bool:
    """Return whether each size of ``x`` is between those of some tensors."""
    sizes = zip(*(each.shape for each in own), strict=True)
    return all(min(known) <= size <= max(known) for size, known in zip(x.shape, sizes, strict=True))


def kinds_of(calls: Sequence[TowerCall]) -> list[TowerSizes]:
    """Group calls that one program may run, in order."""
    found: list[TowerSizes] = []
    for call in calls:
        place = next((i for i, each in enumerate(found) if each.calls[0].is_like(call)), None)
        if place is None:
            found.append(TowerSizes((call,)))
        elif not found[place].takes(call):
            found[place] = TowerSizes((*found[place].calls, call))
    return found


def beside(model: Pretrained) -> Iterator[tuple[str, torch.nn.Module]]:
    """Yield the outermost modules, by path, that are neither the language model, its encoder nor its head."""
    decoder, head = model.get_decoder(), model.get_output_embeddings()
    encoder = model.get_encoder() if model.config.is_encoder_decoder else None
    path = next(name for name, each in model.named_modules() if each is decoder)
    parts = path.split(".")
    for i, on_the_way in enumerate(parts):
        within = ".".join(parts[:i])
        for name, child in model.get_submodule(within).named_children():
            if name != on_the_way and child is not head and child is not encoder:
                yield f"{within}.{name}".lstrip("."), child


@contextmanager
def noting(*modules: torch.nn.Module) -> Iterator[list[Called]]:
    """While entered, record the calls of modules that have floating-point tensors among their arguments."""
    found: list[Called] = []

    def note(module: torch.nn.Module, args: tuple[Argument, ...], kwargs: dict[str, Argument]) -> None:
        leaves = tree_flatten((args, kwargs))[0]
        if any(isinstance(each, torch.Tensor) and each.is_floating_point() for each in leaves):
            found.append((module, args, kwargs))

    handles = [each.register_forward_pre_hook(note, with_kwargs=True) for each in modules]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def tower_calls(model: Pretrained, called: Sequence[Called]) -> tuple[TowerCall, ...]:
    """Return the calls of the largest modules that were called; none if none was."""
    sizes = {id(each): _size(each) for each, _, _ in called}
    paths = {id(each): path for path, each in reversed([*model.named_modules()])}
    large = {each for each, size in sizes.items() if SMALL * size >= max(sizes.values())}
    return tuple(TowerCall(paths[id(each)], args, kwargs) for each, args, kwargs in called if id(each) in large)


def _size(module: torch.nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


def tower_programs(
    model: Pretrained, kinds: Sequence[Kind], compile: Compile, whole: bool
) -> dict[str, tuple[Kind, Compiled]]:
    """Return the programs of a model's towers, by name. A tower that cannot be captured is logged; with ``whole`` (full
    compilation) it is an error."""
    found: list[tuple[Kind, Compiled]] = []
    for kind in kinds:
        found += _programs(model, kind, compile, whole)
    return {f"tower_{i}" if i else "tower": each for i, each in enumerate(found)}


def _programs(model: Pretrained, kind: Kind, compile: Compile, whole: bool) -> list[tuple[Kind, Compiled]]:
    """Return a program for all sizes, or one for each size if that fails."""
    tower = model.get_submodule(kind.path)
    try:
        return [(kind, compile(tower, kind.module(tower), kind.inputs(tower)))]
    except CaptureError as error:
        if not isinstance(kind, TowerSizes):
            log.info("%s has no program for other sizes than those of examples: %s", kind.path, error)
            return []
        if len(kind.calls) > 1:
            return [made for call in kind.calls for made in _programs(model, TowerSizes((call,)), compile, whole)]
        if whole:
            raise
        log.warning("%s of %s stays in PyTorch: %s", kind.path, type(model).__name__, error)
        return []


class Tower(torch.nn.Module):
    """A tower whose programs run the calls that they were compiled for; the module runs others."""

    def __init__(self, real: torch.nn.Module, path: str, programs: Sequence[tuple[Kind, CompiledModule]]) -> None:
        super().__init__()
        self.real = real
        runners = tuple((kind, kind.runner(real, program)) for kind, program in programs)
        self.__dict__.update(path=path, programs=runners, reported=set())

    def __getattr__(self, name: str) -> Argument:
        if name == "real":
            return super().__getattr__(name)
        return getattr(super().__getattr__("real"), name)

    def forward(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Run a program, or the module for other calls."""
        call = TowerCall(self.__dict__["path"], args, kwargs)
        for kind, run in self.__dict__["programs"]:
            if kind.takes(call):
                with suppress(ShapeError):  # for example, sizes between the examples' that are no multiple of a patch
                    return run(*args, **kwargs)
        self._report_once(str(call))
        return self.real(*args, **kwargs)

    def _report_once(self, call: str) -> None:
        """Log that a call runs in PyTorch, once for each kind."""
        reported = self.__dict__["reported"]
        if call not in reported and len(reported) < MOST_REPORTED:
            reported.add(call)
            known = "; ".join(str(kind) for kind, _ in self.__dict__["programs"])
            log.warning(
                "%s runs in PyTorch for %s: it is compiled for %s. Pass an example of it beside others, in a list as "
                "encoder_example",
                self.__dict__["path"],
                call,
                known,
            )


def put(shell: Pretrained, programs: Sequence[tuple[Kind, CompiledModule]]) -> None:
    """Replace the towers of a model's shell by those that run programs."""
    for path in dict.fromkeys(kind.path for kind, _ in programs):
        within, _, name = path.rpartition(".")
        parent = shell.get_submodule(within)
        own = [each for each in programs if each[0].path == path]
        parent._modules[name] = Tower(parent._modules[name], path, own)
