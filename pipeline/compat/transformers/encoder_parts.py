"""Run towers (encoders of images and sound) in parts: split a call, precompute, run a program for each part, join.

`pipeline.compat.transformers.part_families` declares what a part is, by families of towers.
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from attrs import field, frozen
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only, tree_unflatten
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.aten.types import Argument
from pipeline.compat.transformers.attention import attention, attention_by
from pipeline.compat.transformers.modality_encoders import Inputs, TowerCall

log = logging.getLogger(__name__)

Tensors: TypeAlias = dict[str, torch.Tensor]
"""The inputs of a part's program, by name."""
Part: TypeAlias = tuple[torch.Tensor, tuple[int, ...]]
"""The pixels, patches or features of a part, and its layout: a grid, sizes or lengths."""
Along: TypeAlias = Mapping[int, tuple[str, int]]
"""For each dim of an input that varies, a symbol and a factor: the size is their product."""

LENGTHS: Final = "feature_lens"
"""The name of the parameter with the lengths of sounds."""
WINDOWS: Final = ("gather", "real", "back")
"""The names of the inputs that are the fields of `Windows`."""


@frozen
class Windows:
    """Positions padded to windows: ``gather`` [windows, size] has the indices of the positions in each window, ``real``
    [windows, size] is False at padding, and ``back`` [positions] has each position's index in the flattened windows."""

    gather: torch.Tensor
    real: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, ends: torch.Tensor, size: int) -> Windows:
        """Create windows of at most ``size`` positions from their cumulative ends [windows + 1], which begin with 0.

        Raises:
            ValueError: a window is larger.
        """
        starts, lengths = ends[:-1].long(), ends.long().diff()
        if int(lengths.max()) > size:
            raise ValueError(f"a window has {int(lengths.max())} positions; at most {size} are expected")
        within = torch.arange(size, device=ends.device)
        real = within < lengths[:, None]
        return cls(torch.where(real, starts[:, None] + within, 0), real, real.flatten().nonzero()[:, 0])

    @property
    def named(self) -> Tensors:
        """Return the fields by name."""
        return {name: getattr(self, name) for name in WINDOWS}


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    *,
    cu_seq_lens_q: Windows | torch.Tensor | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention [1, positions, heads, width] of queries to keys and values [1, heads, positions, width] of one
    part: among all positions, or within windows. The mask, which separates parts, is ignored.

    Raises:
        ValueError: there are several segments.
    """
    if not isinstance(cu_seq_lens_q, Windows):
        if cu_seq_lens_q is not None and cu_seq_lens_q.shape[0] != 2:
            raise ValueError("positions attend within several segments; one segment, or windows, are expected")
        return attention(module, query, key, value, None, scaling=scaling)
    windows, index = cu_seq_lens_q.gather.shape, cu_seq_lens_q.gather.flatten()
    q, k, v = (x[0].index_select(1, index).unflatten(1, windows).transpose(0, 1) for x in (query, key, value))
    found = attention(module, q, k, v, cu_seq_lens_q.real[:, None, None], scaling=scaling)[0]
    return found.flatten(0, 1).index_select(0, cu_seq_lens_q.back)[None], None


@contextmanager
def attending(tower: torch.nn.Module, name: str) -> Iterator[None]:
    """While entered, a tower's layers compute attention by `attend`, registered with transformers under this name."""
    ALL_ATTENTION_FUNCTIONS.register(name, attend)
    with attention_by(tower, name):
        yield


@frozen
class Described:
    """A call of a tower with one floating-point tensor and integers that describe its layout: grids, sizes, lengths."""

    call: TowerCall
    floats: torch.Tensor = field(repr=False)
    numbers: torch.Tensor = field(repr=False)

    @classmethod
    def of(cls, call: TowerCall) -> Described | None:
        """Return the tensors of a call; None if it has others. Integers beside the lengths of sounds are not read."""
        tensors = [x for x in call.flat[0] if isinstance(x, torch.Tensor)]
        floats = [x for x in tensors if x.is_floating_point()]
        lengths = call.kwargs.get(LENGTHS)
        numbers = [x for x in tensors if not x.is_floating_point()] if lengths is None else [lengths]
        return cls(call, floats[0], numbers[0]) if len(floats) == len(numbers) == 1 else None

    def replaced(self, floats: torch.Tensor | None, numbers: torch.Tensor | None) -> Inputs:
        """Return ``args`` and ``kwargs`` of a call with these tensors instead."""
        own = self.call.args, dict(self.call.kwargs)
        found: Inputs = tree_map_only(torch.Tensor, lambda x: floats if x.is_floating_point() else numbers, own)
        return found

    def is_like(self, other: Described) -> bool:
        """Return whether another call differs only in tensors; the dtype of floats is the same."""
        own, theirs = ((each.call.path, each.floats.dtype, *each.replaced(None, None)) for each in (self, other))
        return bool(own == theirs)


@frozen
class Parts:
    """Calls of a tower that one program runs part by part: the base class of families.

    Attributes:
        tower: the tower.
        example: the call of the tower with the largest part.
    """

    tower: torch.nn.Module
    example: Described

    dim: ClassVar[int] = 0
    """The dim along which the outputs of parts are joined."""
    attention: ClassVar[str] = "pipeline_flash"
    """The name of our attention. Towers pass the ends of segments if it contains ``flash``, and split them otherwise."""

    @classmethod
    @abstractmethod
    def layouts(cls, given: Described) -> list[tuple[int, ...]]:
        """Return the layouts in a call, such as the grids of its images; none for a call of another family."""

    @classmethod
    @abstractmethod
    def of(cls, tower: torch.nn.Module, given: Sequence[Described]) -> Self:
        """Create the family's record for the examples of a tower."""

    @abstractmethod
    def parts(self, given: Described) -> list[Part]:
        """Split a call."""

    @abstractmethod
    def fits(self, layouts: Sequence[tuple[int, ...]]) -> bool:
        """Return whether the program takes parts with these layouts."""

    @abstractmethod
    def precomputed(self, part: Part) -> Tensors:
        """Return the program's inputs for a part."""

    @abstractmethod
    def arguments(self, given: Mapping[str, torch.Tensor]) -> Inputs:
        """Return ``args`` and ``kwargs`` of the tower for the program's inputs."""

    @abstractmethod
    def largest(self) -> Part:
        """Return the largest part."""

    @abstractmethod
    def sizes(self, largest: Tensors) -> tuple[dict[str, int], dict[str, Along]]:
        """Return the largest value of each symbol, and the dims of each input that vary."""

    @abstractmethod
    def trials(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield floats and layouts of other calls, to check the tower with."""

    @property
    def path(self) -> str:
        """Return the path of the tower."""
        return self.example.call.path

    @property
    def module(self) -> torch.nn.Module:
        """Return the module to compile."""
        return OnePart(self).eval()

    def split(self, call: TowerCall) -> list[Inputs] | None:
        """Return the program's ``args`` and ``kwargs`` for each part of a call; None if the program is not for it."""
        given = Described.of(call)
        if given is None or not given.is_like(self.example) or not self.layouts(given):
            return None
        parts = self.parts(given)
        if not self.fits([layout for _, layout in parts]):
            return None
        return [((self.precomputed(part),), {}) for part in parts]

    @property
    def inputs(self) -> dict[str, Argument]:
        """Return ``args`` and ``dynamic_shapes`` for the capture."""
        largest = self.precomputed(self.largest())
        most, along = self.sizes(largest)
        dims = {name: Dim(name, min=1, max=size) for name, size in most.items()}
        shapes = {
            name: {i: dims[symbol] if factor == 1 else factor * dims[symbol] for i, (symbol, factor) in each.items()}
            for name, each in along.items()
        }
        return {"args": (largest,), "dynamic_shapes": ({name: shapes.get(name) for name in largest},)}

    @classmethod
    def found(cls, tower: torch.nn.Module, calls: Sequence[TowerCall]) -> Self | None:
        """Return the family's record for the calls of a tower. None if the calls are of another family; or, with the
        reason in the log, if the tower's outputs are not the joined outputs of parts, or the program cannot vary."""
        given = [each for call in calls if (each := Described.of(call)) is not None and cls.layouts(each)]
        if not given or len(given) < len(calls):
            return None
        try:
            with torch.no_grad():
                made = cls.of(tower, given)
                made._check([call for call in calls if made.split(call) is not None])
                _ = made.inputs
        except Exception as error:  # of any type: towers differ in their inputs
            log.info("%s has no program for every size: %s", calls[0].path, error)
            return None
        return made

    def _check(self, calls: Sequence[TowerCall]) -> None:
        """Raise a `ValueError` if the tower returns other values for these calls, or for others, than for their
        parts."""
        own: list[Inputs] = [(call.args, dict(call.kwargs)) for call in calls]
        own += (self.example.replaced(x, torch.tensor(each).to(self.example.numbers)) for x, each in self.trials())
        for args, kwargs in own:
            try:
                want = self.tower(*args, **kwargs)
            except IndexError:  # GLM-4V is called with the frames of videos as images
                continue
            parts = self.split(TowerCall(self.path, args, kwargs)) or []
            found = joined([self.module(*args, **kwargs) for args, kwargs in parts], self.dim)
            for ours, theirs in zip(tensors_in(found), tensors_in(want), strict=True):
                rounding = max(16 * torch.finfo(theirs.dtype).eps, 1e-3 if theirs.dtype == torch.float32 else 0.03)
                off = (ours.float() - theirs.float()).abs().max()
                if ours.shape != theirs.shape or not off <= rounding * theirs.float().abs().max():
                    raise ValueError(f"parts by themselves differ from all of them, by {off:.1e}")


class OnePart(torch.nn.Module):
    """A tower that takes the precomputed inputs of one part."""

    def __init__(self, parts: Parts) -> None:
        super().__init__()
        self.tower, self.parts = parts.tower, parts

    def forward(self, given: Mapping[str, torch.Tensor]) -> Argument:
        """Run the tower on one part."""
        args, kwargs = self.parts.arguments(given)
        with attending(self.tower, self.parts.attention):
            return self.tower(*args, **kwargs)


def joined(outputs: Sequence[Argument], dim: int = 0) -> Argument:
    """Concatenate the outputs of parts along a dim."""
    if len(outputs) == 1:
        return outputs[0]
    leaves, nested = zip(*map(tree_flatten, outputs), strict=True)
    every = [each[0] if each[0] is None else torch.cat(each, dim) for each in zip(*leaves, strict=True)]
    return tree_unflatten(every, nested[0])


def tensors_in(outputs: Argument) -> list[torch.Tensor]:
    """Return the tensors in outputs."""
    return [each for each in tree_leaves(outputs) if each is not None]
