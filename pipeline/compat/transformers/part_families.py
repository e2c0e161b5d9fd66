"""The families of towers that run in parts: patches with grids, padded images with sizes, and sound with lengths.

What a tower computes in Python from its grids or lengths (positions, windows, indices into a learned grid, the cut into
chunks) is precomputed by transformers, under the names that its towers accept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from attrs import evolve, field, frozen

from pipeline.compat.transformers.encoder_parts import (
    LENGTHS,
    WINDOWS,
    Along,
    Described,
    Part,
    Parts,
    Tensors,
    Windows,
    tensors_in,
)
from pipeline.compat.transformers.modality_encoders import Inputs

Grid: TypeAlias = tuple[int, ...]
"""Frames, and rows and columns of patches, of an image or a video."""

PATCHES: Final = "patches"
GRID: Final = "grid"
IMAGE: Final = "image"
"""The names of program inputs that are a part's own tensors: patches [patches, width] and their grid [1, 3], or an
image [1, channels, rows, columns]."""
SIDE: Final = 64
"""The patches on each side of a grid that has full windows."""
LONG: Final = 20_000
"""The frames of a sound that has full chunks and windows."""
KEPT: Final = 64
"""The number of grids whose precomputed tensors are cached."""


def precompute(tower: torch.nn.Module, **given: torch.Tensor) -> Tensors:
    """Return the tensors that a tower computes from its inputs, as transformers (from 5.17 on) computes them."""
    from transformers.exporters.utils import precompute_export_inputs

    found: dict[str, Any] = dict(given)
    precompute_export_inputs(tower, found)
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor) and name not in given}


def shuffled(x: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Return so many entries of a tensor along a dim, in a random order that is the same each time."""
    order = torch.randint(x.shape[dim], (count,), generator=torch.Generator().manual_seed(0))
    return x.index_select(dim, order.to(x.device))


@frozen
class Patches(Parts):
    """Concatenated patches of images with their grids (Qwen2-VL to Qwen3.5, GLM-4V, EXAONE 4.5): parts are frames.

    Attributes:
        grid: the largest frame.
        unit: the number of patches that become one token; sizes are multiples of it.
        window: the number of patches in the largest window; 0 if there are no windows.
        apart: True if each frame of a video attends to itself alone; else a part is a whole video.
        known: returns precomputed tensors by grid and device, from a cache.
    """

    grid: Grid
    unit: int
    window: int
    apart: bool
    known: Callable[[Grid, torch.device], Tensors] = field(init=False, eq=False, repr=False)

    @known.default
    def _known(self) -> Callable[[Grid, torch.device], Tensors]:
        return functools.lru_cache(KEPT)(self._of_grid)

    @classmethod
    def layouts(cls, given: Described) -> list[Grid]:
        """Return the grids of images."""
        x, numbers = given.floats, given.numbers
        if x.dim() != 2 or numbers.dim() != 2 or numbers.shape[1] != 3:
            return []
        grids = [tuple(grid) for grid in numbers.tolist()]
        return grids if sum(map(math.prod, grids)) == len(x) else []

    @classmethod
    def of(cls, tower: torch.nn.Module, given: Sequence[Described]) -> Self:
        """Create the record from the largest frame; a run of the tower finds the unit."""
        grids = [(grid, each) for each in given for grid in cls.layouts(each)]
        two = precompute(tower, grid_thw=torch.tensor([[2, *grids[0][0][1:]]]))
        apart = two["cu_seqlens"].numel() == 3
        (frames, rows, columns), example = max(grids, key=lambda found: math.prod(found[0][apart:]))
        windows = precompute(tower, grid_thw=torch.tensor([[1, SIDE, SIDE]])).get("cu_window_seqlens")
        window = 0 if windows is None else min(int(windows.diff().max()), rows * columns)
        made = cls(tower, example, (1 if apart else frames, rows, columns), 1, window, apart)
        patches = example.floats[: math.prod(made.grid)]
        tokens = min(map(len, tensors_in(made.module(made.precomputed((patches, made.grid))))))
        return evolve(made, unit=len(patches) // tokens)

    def parts(self, given: Described) -> list[Part]:
        """Return the patches and grid of each frame, or of each video."""
        grids = [each for t, h, w in self.layouts(given) for each in ([(1, h, w)] * t if self.apart else [(t, h, w)])]
        return list(zip(given.floats.split(list(map(math.prod, grids))), grids, strict=True))

    def fits(self, layouts: Sequence[Grid]) -> bool:
        """Return whether no frame has more patches than the largest."""
        return max(map(math.prod, layouts)) <= math.prod(self.grid)

    def precomputed(self, part: Part) -> Tensors:
        """Return the patches, the grid and what the tower computes from it."""
        patches, grid = part
        return {PATCHES: patches, **self.known(grid, patches.device)}

    def _of_grid(self, grid: Grid, device: torch.device) -> Tensors:
        numbers = torch.tensor([grid])
        found = {GRID: numbers, **precompute(self.tower, grid_thw=numbers)}
        ends = found.pop("cu_window_seqlens", None)
        found |= {} if ends is None else Windows.of(ends, self.window).named
        return {name: x.to(device) for name, x in found.items()}

    def arguments(self, given: Mapping[str, torch.Tensor]) -> Inputs:
        """Return the tower's arguments for one frame."""
        args, kwargs = self.example.replaced(given[PATCHES], given[GRID].to(self.example.numbers.dtype))
        kwargs |= {name: x for name, x in given.items() if name not in (PATCHES, GRID, *WINDOWS)} | {"max_seqlen": 1}
        if self.window:
            windows = Windows(*(given[name] for name in WINDOWS))
            kwargs |= {"cu_window_seqlens": windows, "max_window_seqlen": 1}
        return args, kwargs

    def largest(self) -> Part:
        """Return the largest frame."""
        return self.example.floats.new_zeros(math.prod(self.grid), self.example.floats.shape[1]), self.grid

    def sizes(self, largest: Tensors) -> tuple[dict[str, int], dict[str, Along]]:
        """Return sizes in units: of patches, and of tokens."""
        count = math.prod(self.grid)
        units = {count: ("units", self.unit), count // self.unit: ("units", 1)}
        along = {name: {0: units[len(x)]} for name, x in largest.items() if name not in (GRID, "cu_seqlens", *WINDOWS)}
        if self.window:
            along |= {"gather": {0: ("windows", 1)}, "real": {0: ("windows", 1)}, "back": {0: units[count]}}
        return {"units": count // self.unit, "windows": count // self.unit}, along

    def trials(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield several images, and a video of two frames."""
        (frames, rows, columns), side = self.grid, math.isqrt(self.unit)
        for grids in [[1, columns, rows], [1, side, 2 * side], [1, rows, columns]], [[2 * frames, rows, columns]]:
            yield shuffled(self.example.floats, 0, sum(map(math.prod, grids))), grids

    def __str__(self) -> str:
        return f"frames of up to {math.prod(self.grid)} patches"


@frozen
class Images(Parts):
    """Images of several sizes in one padded tensor (Pixtral, so Mistral 3): parts are images.

    Attributes:
        side: the longest side of an image, in pixels.
        patch: the pixels that sides are multiples of.
    """

    side: int
    patch: int

    dim: ClassVar[int] = 1
    attention: ClassVar[str] = "pipeline_image"

    @classmethod
    def layouts(cls, given: Described) -> list[tuple[int, ...]]:
        """Return the rows and columns of the images [images, channels, rows, columns]."""
        x, numbers = given.floats, given.numbers
        if x.dim() != 4 or numbers.shape != (len(x), 2):
            return []
        sizes = [tuple(size) for size in numbers.tolist()]
        return sizes if all(0 < r <= x.shape[2] and 0 < c <= x.shape[3] for r, c in sizes) else []

    @classmethod
    def of(cls, tower: torch.nn.Module, given: Sequence[Described]) -> Self:
        """Create the record from the longest side."""
        patch = int(tower.patch_size)  # type: ignore[arg-type]
        side = max(side for each in given for size in cls.layouts(each) for side in size)
        return cls(tower, given[0], side // patch * patch, patch)

    def parts(self, given: Described) -> list[Part]:
        """Return each image without its padding."""
        each = zip(given.floats, self.layouts(given), strict=True)
        return [(image[None, :, :rows, :columns], (rows, columns)) for image, (rows, columns) in each]

    def fits(self, layouts: Sequence[tuple[int, ...]]) -> bool:
        """Return whether sides are multiples of a patch, and at most as long as the longest."""
        return all(side <= self.side and side % self.patch == 0 for size in layouts for side in size)

    def precomputed(self, part: Part) -> Tensors:
        """Return the image."""
        return {IMAGE: part[0].contiguous()}

    def arguments(self, given: Mapping[str, torch.Tensor]) -> Inputs:
        """Return the tower's arguments for one image, which has no padding."""
        return self.example.replaced(given[IMAGE], None)

    def largest(self) -> Part:
        """Return the largest square image."""
        shape = 1, self.example.floats.shape[1], self.side, self.side
        return self.example.floats.new_zeros(shape), shape[2:]

    def sizes(self, largest: Tensors) -> tuple[dict[str, int], dict[str, Along]]:
        """Return rows and columns in patches."""
        most = dict.fromkeys(("rows", "columns"), self.side // self.patch)
        return most, {IMAGE: {2: ("rows", self.patch), 3: ("columns", self.patch)}}

    def trials(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield a high, a wide and a small image in one call."""
        patch, side, x = self.patch, self.side, self.example.floats
        pixels = torch.randn(3, x.shape[1], side, side, generator=torch.Generator().manual_seed(0))
        yield pixels.to(x.device, x.dtype), [[side, patch], [patch, side], [patch, patch]]

    def __str__(self) -> str:
        return f"images with sides of up to {self.side}"


@frozen
class Sounds(Parts):
    """Sounds [bins, frames] that are cut into chunks of one length (Qwen2.5-Omni, Qwen3-Omni): a call is one part, with
    at least one full chunk.

    Attributes:
        chunk: the number of frames in a chunk.
        most: the largest number of chunks in a call, over all its sounds.
        window: the number of positions in the largest window.
    """

    chunk: int
    most: int
    window: int

    @classmethod
    def layouts(cls, given: Described) -> list[tuple[int, ...]]:
        """Return the lengths of the sounds in a call."""
        x, numbers = given.floats, given.numbers
        lengths = tuple(numbers.tolist()) if LENGTHS in given.call.kwargs and numbers.dim() == 1 else ()
        fits = x.dim() == 2 and min(lengths, default=0) > 0 and sum(lengths) == x.shape[1]
        return [lengths] if fits else []

    @classmethod
    def of(cls, tower: torch.nn.Module, given: Sequence[Described]) -> Self:
        """Create the record from a sound with full chunks and windows, and the examples' lengths."""
        long = _of_sound(tower, (given[0].floats.new_zeros(len(given[0].floats), LONG), (LONG,)))
        made = cls(tower, given[0], long["padded_feature"].shape[2], 1, int(long["cu_seqlens"].diff().max()))
        most = max(made.chunks(lengths) for each in given for lengths in cls.layouts(each))
        if most < 2:
            raise ValueError("the examples have one chunk")
        return evolve(made, most=most)

    def chunks(self, lengths: Sequence[int]) -> int:
        """Return the number of chunks in sounds of these lengths."""
        return sum(-(-length // self.chunk) for length in lengths)

    def parts(self, given: Described) -> list[Part]:
        """Return all sounds as one part."""
        return [(given.floats, lengths) for lengths in self.layouts(given)]

    def fits(self, layouts: Sequence[tuple[int, ...]]) -> bool:
        """Return whether there is a full chunk, and no more chunks than in the examples."""
        return all(max(each) >= self.chunk and self.chunks(each) <= self.most for each in layouts)

    def precomputed(self, part: Part) -> Tensors:
        """Return the chunks, their lengths and windows."""
        found = _of_sound(self.tower, part)
        windows = Windows.of(found.pop("cu_seqlens").cpu(), self.window)
        return found | {name: x.to(part[0].device) for name, x in windows.named.items()}

    def arguments(self, given: Mapping[str, torch.Tensor]) -> Inputs:
        """Return the tower's arguments for chunks."""
        args, kwargs = self.example.replaced(None, None)
        windows = Windows(*(given[name] for name in WINDOWS))
        rest = {name: x for name, x in given.items() if name not in WINDOWS}
        return args, {**kwargs, **rest, "cu_seqlens": windows, "max_seqlen": 1}

    def largest(self) -> Part:
        """Return one sound with all chunks."""
        frames = self.most * self.chunk
        return self.example.floats.new_zeros(len(self.example.floats), frames), (frames,)

    def sizes(self, largest: Tensors) -> tuple[dict[str, int], dict[str, Along]]:
        """Return the numbers of chunks and of what is made of them."""
        tokens = len(largest["back"])
        most = {"chunks": self.most, "windows": self.most, "tokens": tokens, "pooled": tokens}
        along = {"padded_feature": "chunks", "chunk_lengths": "chunks", "valid_indices": "tokens"}
        along |= {"pool_indices": "pooled", "gather": "windows", "real": "windows", "back": "tokens"}
        return most, {name: {0: (along[name], 1)} for name in largest}

    def trials(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield a sound of another length, and two sounds."""
        longest = self.most * self.chunk
        for lengths in [longest - self.chunk // 3], [longest - self.chunk, self.chunk // 2 + 1]:
            yield shuffled(self.example.floats, 1, sum(lengths)), lengths

    def __str__(self) -> str:
        return f"sounds of {self.chunk} to {self.most * self.chunk} frames"


def _of_sound(tower: torch.nn.Module, part: Part) -> Tensors:
    x, lengths = part
    return precompute(tower, **{"input_features": x, LENGTHS: torch.tensor(lengths, device=x.device)})


FAMILIES: Final[tuple[type[Parts], ...]] = (Patches, Images, Sounds)
"""All families; a call is of one at most."""
