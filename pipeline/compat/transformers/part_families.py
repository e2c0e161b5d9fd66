"""Define families of image and audio encoders, each with the rule that splits an encoder's call into parts.
Their inputs are patches with grids, padded images with sizes, or audio with lengths."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from attrs import frozen
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


@frozen(slots=False)
class PatchEncoders(Family):
    """Encoders that get the patches of all images, concatenated, and the grid of each image: the numbers of its frames
    (1 unless it is a video), rows and columns of patches. Examples: Qwen2-VL to Qwen3.5, GLM-4V, EXAONE 4.5.

    Attributes:
        largest_grid: the grid of the largest part.
        token_patches: the number of patches that become one token.
        window: the number of patches in the largest window of attention; 0 if there are no windows.
        separate_frames: True if frames of a video do not attend to each other, so that a part is a frame, not a video.
    """

    largest_grid: Layout
    token_patches: int
    window: int
    separate_frames: bool

    @functools.cached_property
    def grid_arguments(self) -> Callable[[Layout, torch.device], tuple[torch.Tensor, Tensors]]:
        """`_precompute_grid` with a cache of its latest results, which depend on the grid of patches alone."""
        return functools.lru_cache(CACHED_GRIDS)(self._precompute_grid)

    @classmethod
    def layouts(cls, inputs: EncoderInputs) -> list[Layout]:
        """Return the grids of a call's images: frames, rows and columns of patches."""
        x, numbers = inputs.floats, inputs.numbers
        grids = [tuple(grid) for grid in numbers.tolist()] if numbers.dim() == 2 and numbers.shape[1] == 3 else []
        return grids if x.dim() == 2 and sum(map(math.prod, grids)) == len(x) else []

    @classmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder by its largest example frame; run it to count the patches that become one token."""
        grids = [(grid, each) for each in examples for grid in cls.layouts(each)]
        two = precompute_values(encoder, grid_thw=torch.tensor([[2, *grids[0][0][1:]]]))
        separate = two["cu_seqlens"].numel() == 3
        (frames, rows, columns), example = max(grids, key=lambda found: math.prod(found[0][separate:]))
        windows = precompute_values(encoder, grid_thw=torch.tensor([[1, MAX_SIDE, MAX_SIDE]])).get("cu_window_seqlens")
        window = 0 if windows is None else min(int(windows.diff().max()), rows * columns)
        made = tree_leaves(encoder(*example.call.args, **example.call.kwargs))
        unit = len(example.floats) // min(len(x) for x in made if x is not None)
        return cls(encoder, example, (1 if separate else frames, rows, columns), unit, window, separate)

    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Split a call into frames or, if frames attend to each other, into images and videos. Return, for each, its
        patches and its grid (frames, rows, columns)."""
        split = self.separate_frames
        grids = [each for t, h, w in self.layouts(inputs) for each in ([(1, h, w)] * t if split else [(t, h, w)])]
        return list(zip(inputs.floats.split(list(map(math.prod, grids))), grids, strict=True))

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for a frame or video: patches, grid, and values precomputed from the grid."""
        grid, found = self.grid_arguments(part[1], part[0].device)
        args, kwargs = self.example.with_tensors(part[0], grid)
        return args, {**kwargs, **found}

    def _precompute_grid(self, grid: Layout, device: torch.device) -> tuple[torch.Tensor, Tensors]:
        """Return the tensor of a grid (frames, rows, columns), and the arguments that are computed from it, by name."""
        numbers = torch.tensor([grid])
        found = precompute_values(self.tower, grid_thw=numbers)
        if self.window:
            found["cu_window_seqlens"] = Windows.from_ends(found["cu_window_seqlens"], self.window)
        moved: Tensors = tree_map_only(torch.Tensor, lambda x: x.to(device), found)
        return numbers.to(device, self.example.numbers.dtype), moved

    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls as (patches, grids): the largest frame; several images, one of which has a single token and
        one a single row of tokens; and a video of two frames."""
        (frames, rows, columns), side = self.largest_grid, math.isqrt(self.token_patches)
        thin = [1, side, frames * rows * columns // side]
        several = [[1, columns, rows], [1, side, side], [1, side, 2 * side], thin]
        for grids in [[*self.largest_grid]], several, [[2 * frames, rows, columns]]:
            yield _random_entries(self.example.floats, 0, sum(map(math.prod, grids))), grids

    def __str__(self) -> str:
        return f"frames of up to {math.prod(self.largest_grid)} patches"


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
        """Split a padded tensor into images; return (image [1, channels, rows, columns], (rows, columns)) of each."""
        each = zip(inputs.floats, self.layouts(inputs), strict=True)
        return [(image[None, :, :rows, :columns], (rows, columns)) for image, (rows, columns) in each]

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for one image of `split_inputs`, with None in place of the sizes of images."""
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
    """Encoders that themselves cut audio [bins, frames] into chunks of equal length (Qwen2.5-Omni, Qwen3-Omni). We run
    each call as a whole, that is, as a single part. It must have at least one full chunk.

    Attributes:
        chunk_frames: the number of frames in a chunk.
        max_chunks: the largest number of chunks in a call, over all its audio inputs.
        window: the number of positions in the largest window of attention.
    """

    chunk_frames: int
    max_chunks: int
    window: int

    @classmethod
    def layouts(cls, inputs: EncoderInputs) -> list[Layout]:
        """Return one layout, since a call is one part: the lengths of all audio inputs, such as [(300, 120)]."""
        lengths = tuple(inputs.numbers.tolist()) if LENGTHS in inputs.call.kwargs and inputs.numbers.dim() == 1 else ()
        fits = inputs.floats.dim() == 2 and min(lengths, default=0) > 0 and sum(lengths) == inputs.floats.shape[1]
        return [lengths] if fits else []

    @classmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder by the largest example, and by the chunks and windows that it makes of a long silence."""
        silence = examples[0].floats.new_zeros(len(examples[0].floats), LONG_SOUND)
        long = _precompute_arguments_from_audio(encoder, silence, (LONG_SOUND,))
        chunk, window = long["padded_feature"].shape[2], int(long["cu_seqlens"].diff().max())
        most = max(sum(-(-length // chunk) for length in lengths) for each in examples for lengths in cls.layouts(each))
        if most < 2:
            raise ValueError("no example has more than one chunk of audio: expected at least two chunks")
        return cls(encoder, examples[0], chunk, most, window)

    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Return one part, the whole call: (audio [bins, frames] of all inputs, the number of frames of each input)."""
        return [(inputs.floats, lengths) for lengths in self.layouts(inputs)]

    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return the encoder's arguments for a part: chunks and windows that it would compute from the part's audio."""
        args, kwargs = self.example.with_tensors(None, None)
        found = _precompute_arguments_from_audio(self.tower, *part)
        return args, {**kwargs, **found, "cu_seqlens": Windows.from_ends(found["cu_seqlens"], self.window)}

    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls: the longest audio input, a single chunk, slightly more than one chunk, and several audio
        inputs with the maximum number of chunks."""
        longest, chunk = self.max_chunks * self.chunk_frames, self.chunk_frames
        several = [longest - chunk, chunk // 2 + 1], [chunk] * self.max_chunks
        for lengths in [longest], [chunk], [chunk + 1], [longest - chunk // 3], *several:
            yield _random_entries(self.example.floats, 1, sum(lengths)), lengths

    def __str__(self) -> str:
        return f"sounds of {self.chunk_frames} to {self.max_chunks * self.chunk_frames} frames"


def _precompute_arguments_from_audio(encoder: torch.nn.Module, audio: torch.Tensor, lengths: Layout) -> Tensors:
    """Return the arguments (chunks, windows) that an encoder would compute from ``audio``, inputs of ``lengths``."""
    return precompute_values(encoder, **{"input_features": audio, LENGTHS: torch.tensor(lengths, device=audio.device)})


FAMILIES: Final[tuple[type[Family], ...]] = (PatchEncoders, ImageEncoders, AudioEncoders)
"""All families of image and audio encoders; a call belongs to at most one of them."""
