"""Define families of image and audio encoders, each with the rule that splits an encoder's call into parts.
Their inputs are patches with grids, padded images with sizes, or audio with lengths."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from attrs import field, frozen
from torch.utils._pytree import tree_leaves, tree_map_only

from pipeline.compat.transformers.attention import Windows
from pipeline.compat.transformers.encoder_parts import LENGTHS, EncoderInputs, Family, Part
from pipeline.compat.transformers.modality_encoders import CallArgs

Layout: TypeAlias = tuple[int, ...]
"""The layout of a part: frames, rows and columns of patches; rows and columns of pixels; or lengths of audio inputs."""
Tensors: TypeAlias = dict[str, Any]
"""Precomputed arguments of an encoder, by argument name."""

MAX_SIDE: Final = 64
"""The number of patches on each side of a test grid that is large enough to have full attention windows."""
LONG_SOUND: Final = 20_000
"""The number of frames of a test audio input that is long enough to have full chunks and attention windows."""
CACHED_GRIDS: Final = 64
"""The number of grids for which the precomputed arguments are cached."""


def precompute_values(encoder: torch.nn.Module, **tensors: torch.Tensor) -> Tensors:
    """Return the arguments that an encoder would compute in Python from its inputs: positions, windows, indices into a
    learned grid, chunks. transformers (5.17 or later) precomputes them; the keys are the encoder's argument names."""
    from transformers.exporters.utils import precompute_export_inputs

    found: dict[str, Any] = dict(tensors)
    precompute_export_inputs(encoder, found)
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor) and name not in tensors}


def _random_entries(tensor: torch.Tensor, dim: int, count: int) -> torch.Tensor:
    """Return ``count`` entries of a tensor along a dim, in a random but reproducible order."""
    order = torch.randint(tensor.shape[dim], (count,), generator=torch.Generator().manual_seed(0))
    return tensor.index_select(dim, order.to(tensor.device))


@frozen
class PatchEncoders(Family):
    """Encoders of concatenated image patches with grids (Qwen2-VL to Qwen3.5, GLM-4V, EXAONE 4.5); a part is a frame or
    (see ``apart``) a video.

    Attributes:
        largest: the grid of the largest frame.
        unit: the number of patches that become one token.
        window: the number of patches in the largest window; 0 if there are no windows.
        apart: True if each frame of a video attends only to itself, so that a part is a frame; else a part is a video.
        known: the cached function `_precompute_grid`.
    """

    largest: Layout
    unit: int
    window: int
    apart: bool
    known: Callable[[Layout, torch.device], tuple[torch.Tensor, Tensors]] = field(init=False, eq=False, repr=False)

    @known.default
    def _create_cached_precompute_grid(self) -> Callable[[Layout, torch.device], tuple[torch.Tensor, Tensors]]:
        """Return `_precompute_grid` with a cache of its latest results, which depend on the grid of patches alone."""
        return functools.lru_cache(CACHED_GRIDS)(self._precompute_grid)

    @classmethod
    def layouts(cls, inputs: EncoderInputs) -> list[Layout]:
        """Return the grids of a call's images: frames, rows and columns of patches."""
        x, numbers = inputs.floats, inputs.numbers
        grids = [tuple(grid) for grid in numbers.tolist()] if numbers.dim() == 2 and numbers.shape[1] == 3 else []
        return grids if x.dim() == 2 and sum(map(math.prod, grids)) == len(x) else []

    @classmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder by the largest frame of its example calls; a run shows how many patches give a token."""
        grids = [(grid, each) for each in examples for grid in cls.layouts(each)]
        two = precompute_values(encoder, grid_thw=torch.tensor([[2, *grids[0][0][1:]]]))
        apart = two["cu_seqlens"].numel() == 3
        (frames, rows, columns), example = max(grids, key=lambda found: math.prod(found[0][apart:]))
        windows = precompute_values(encoder, grid_thw=torch.tensor([[1, MAX_SIDE, MAX_SIDE]])).get("cu_window_seqlens")
        window = 0 if windows is None else min(int(windows.diff().max()), rows * columns)
        made = tree_leaves(encoder(*example.call.args, **example.call.kwargs))
        unit = len(example.floats) // min(len(x) for x in made if x is not None)
        return cls(encoder, example, (1 if apart else frames, rows, columns), unit, window, apart)

    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Split a call into frames, or videos if frames attend to each other; return patches and grid of each."""
        grids = [each for t, h, w in self.layouts(inputs) for each in ([(1, h, w)] * t if self.apart else [(t, h, w)])]
        return list(zip(inputs.floats.split(list(map(math.prod, grids))), grids, strict=True))

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for a frame or video: patches, grid, and values precomputed from the grid."""
        grid, found = self.known(part[1], part[0].device)
        args, kwargs = self.example.with_tensors(part[0], grid)
        return args, {**kwargs, **found}

    def _precompute_grid(self, grid: Layout, device: torch.device) -> tuple[torch.Tensor, Tensors]:
        """Return a grid as a tensor, and the encoder arguments that are precomputed from the grid."""
        numbers = torch.tensor([grid])
        found = precompute_values(self.tower, grid_thw=numbers)
        if self.window:
            found["cu_window_seqlens"] = Windows.from_ends(found["cu_window_seqlens"], self.window)
        moved: Tensors = tree_map_only(torch.Tensor, lambda x: x.to(device), found)
        return numbers.to(device, self.example.numbers.dtype), moved

    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls: the largest frame; several images, including a single token and a single row of tokens; and
        a video of two frames."""
        (frames, rows, columns), side = self.largest, math.isqrt(self.unit)
        thin = [1, side, frames * rows * columns // side]
        several = [[1, columns, rows], [1, side, side], [1, side, 2 * side], thin]
        for grids in [[*self.largest]], several, [[2 * frames, rows, columns]]:
            yield _random_entries(self.example.floats, 0, sum(map(math.prod, grids))), grids

    def __str__(self) -> str:
        return f"frames of up to {math.prod(self.largest)} patches"


@frozen
class ImageEncoders(Family):
    """Encoders of images of several sizes in one padded tensor (Pixtral, Mistral 3); a part is an image.

    Attributes:
        side: the longest side of any image, in pixels.
        patch: the patch size in pixels; an image's sides are multiples of the patch size.
    """

    side: int
    patch: int

    dim: ClassVar[int] = 1
    attention: ClassVar[str] = "pipeline_image"
    constants: ClassVar[Mapping[str, int]] = {}

    @classmethod
    def layouts(cls, inputs: EncoderInputs) -> list[Layout]:
        """Return the rows and columns of each image in a call's padded tensor [images, channels, rows, columns]."""
        x, numbers = inputs.floats, inputs.numbers
        sizes = [tuple(size) for size in numbers.tolist()] if x.dim() == 4 and numbers.shape == (len(x), 2) else []
        return sizes if all(0 < r <= x.shape[2] and 0 < c <= x.shape[3] for r, c in sizes) else []

    @classmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder by the longest image side in its example calls."""
        patch: Any = encoder.patch_size
        side = max(side for each in examples for size in cls.layouts(each) for side in size)
        return cls(encoder, examples[0], side // patch * patch, patch)

    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Split a call into images without padding [1, channels, rows, columns], each with its (rows, columns)."""
        each = zip(inputs.floats, self.layouts(inputs), strict=True)
        return [(image[None, :, :rows, :columns], (rows, columns)) for image, (rows, columns) in each]

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for one image, which is not padded, and whose size is not passed."""
        return self.example.with_tensors(part[0].contiguous(), None)

    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls: the largest image; and a tall, a wide and a small image in one call."""
        patch, side, x = self.patch, self.side, self.example.floats
        pixels = torch.randn(3, x.shape[1], side, side, generator=torch.Generator().manual_seed(0))
        for sizes in [[side, side]], [[side, patch], [patch, side], [patch, patch]]:
            yield pixels[: len(sizes)].to(x.device, x.dtype), sizes

    def __str__(self) -> str:
        return f"images with sides of up to {self.side}"


@frozen
class AudioEncoders(Family):
    """Encoders that split audio [bins, frames] into chunks of equal length (Qwen2.5-Omni, Qwen3-Omni). A call is not
    split into parts: it is a single part with at least one full chunk.

    Attributes:
        chunk: the number of frames in a chunk.
        most: the largest number of chunks in a call, over all its audio inputs.
        window: the number of positions in the largest window.
    """

    chunk: int
    most: int
    window: int

    @classmethod
    def layouts(cls, inputs: EncoderInputs) -> list[Layout]:
        """Return the lengths of all audio inputs of a call, as a single layout."""
        lengths = tuple(inputs.numbers.tolist()) if LENGTHS in inputs.call.kwargs and inputs.numbers.dim() == 1 else ()
        fits = inputs.floats.dim() == 2 and min(lengths, default=0) > 0 and sum(lengths) == inputs.floats.shape[1]
        return [lengths] if fits else []

    @classmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder by its example calls; a long audio input shows the sizes of full chunks and windows."""
        silence = examples[0].floats.new_zeros(len(examples[0].floats), LONG_SOUND)
        long = _precompute_arguments_from_audio(encoder, silence, (LONG_SOUND,))
        chunk, window = long["padded_feature"].shape[2], int(long["cu_seqlens"].diff().max())
        most = max(sum(-(-length // chunk) for length in lengths) for each in examples for lengths in cls.layouts(each))
        if most < 2:
            raise ValueError("no example has more than one chunk of audio: expected at least two chunks")
        return cls(encoder, examples[0], chunk, most, window)

    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Return the whole call as one part: the audio [bins, frames], and the length of each audio input."""
        return [(inputs.floats, lengths) for lengths in self.layouts(inputs)]

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for a call: chunks and windows, precomputed from the audio, replace it."""
        args, kwargs = self.example.with_tensors(None, None)
        found = _precompute_arguments_from_audio(self.tower, *part)
        return args, {**kwargs, **found, "cu_seqlens": Windows.from_ends(found["cu_seqlens"], self.window)}

    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls: the longest audio input, a single chunk, slightly more than one chunk, and several audio
        inputs with the maximum number of chunks."""
        longest, chunk = self.most * self.chunk, self.chunk
        several = [longest - chunk, chunk // 2 + 1], [chunk] * self.most
        for lengths in [longest], [chunk], [chunk + 1], [longest - chunk // 3], *several:
            yield _random_entries(self.example.floats, 1, sum(lengths)), lengths

    def __str__(self) -> str:
        return f"sounds of {self.chunk} to {self.most * self.chunk} frames"


def _precompute_arguments_from_audio(encoder: torch.nn.Module, audio: torch.Tensor, lengths: Layout) -> Tensors:
    return precompute_values(encoder, **{"input_features": audio, LENGTHS: torch.tensor(lengths, device=audio.device)})


FAMILIES: Final[tuple[type[Family], ...]] = (PatchEncoders, ImageEncoders, AudioEncoders)
"""All families of image and audio encoders; a call belongs to at most one of them."""
