"""Vision towers that take images of several sizes in one padded tensor (Pixtral): a program runs image by image."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final

import torch
from attrs import frozen

from pipeline.aten.types import Argument
from pipeline.compat.transformers.attention import attention
from pipeline.compat.transformers.modality_encoders import LaidOut, TowerCall
from pipeline.compat.transformers.packed_patches import attending, joined, offered

NAME: Final = "pipeline_crop"


def of_one(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention among all patches of one image; ignore the mask, which separates images, as there is one."""
    return attention(module, query, key, value, None, scaling=scaling)


def crops_of(given: LaidOut) -> list[torch.Tensor]:
    """Return the images [1, channels, rows, columns] of a call whose floats are padded images [images, channels, rows,
    columns] and whose numbers are their sizes [images, 2]; none for another call."""
    x, numbers = given.floats, given.numbers
    if x.dim() != 4 or numbers.shape != (len(x), 2):
        return []
    sizes = [(rows, columns) for rows, columns in numbers.tolist()]
    if not all(0 < rows <= x.shape[2] and 0 < columns <= x.shape[3] for rows, columns in sizes):
        return []
    return [image[None, :, :rows, :columns] for image, (rows, columns) in zip(x, sizes, strict=True)]


def _sides(images: Sequence[torch.Tensor]) -> list[int]:
    return [side for image in images for side in image.shape[2:]]


class OneImage(torch.nn.Module):
    """A tower of one image [1, channels, rows, columns]; ``example`` is what the tower is called with."""

    def __init__(self, tower: torch.nn.Module, example: LaidOut) -> None:
        super().__init__()
        self.tower, self.example = tower, example

    def forward(self, image: torch.Tensor) -> Argument:
        """Run the tower on one image."""
        args, kwargs = self.example.replaced(image, None)
        with attending(self.tower, NAME, of_one):
            return self.tower(*args, **kwargs)


@frozen
class Images:
    """Calls of a tower with images of several sizes: one program runs each image.

    Attributes:
        path: the path of the tower.
        example: an example call.
        side: the longest side of an image, in pixels.
        patch: the pixels that sides are multiples of.
    """

    path: str
    example: LaidOut
    side: int
    patch: int

    def takes(self, call: TowerCall) -> bool:
        """Return whether a call is like the example, with images whose sides are at most as long."""
        given = LaidOut.of(call) if call.path == self.path else None
        sides = _sides(crops_of(given)) if given is not None and given.is_like(self.example) else []
        return bool(sides) and max(sides) <= self.side and not any(side % self.patch for side in sides)

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """Return the module to compile."""
        return OneImage(tower, self.example).eval()

    def inputs(self, tower: torch.nn.Module) -> dict[str, Argument]:
        """Return ``args`` and ``dynamic_shapes`` for the capture."""
        image = self.example.floats.new_zeros(1, self.example.floats.shape[1], self.side, self.side)
        rows, columns = (torch.export.Dim(name, min=1, max=self.side // self.patch) for name in ("rows", "columns"))
        return {"args": (image,), "dynamic_shapes": ({2: self.patch * rows, 3: self.patch * columns},)}

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """Return a function that runs a call of the tower image by image."""

        def run(*args: Argument, **kwargs: Argument) -> Argument:
            given = LaidOut.of(TowerCall(self.path, args, kwargs))
            assert given is not None
            return joined([program(image.contiguous()) for image in crops_of(given)], 1)

        return run

    def __str__(self) -> str:
        return f"images with sides of up to {self.side}"


def images_of(tower: torch.nn.Module, calls: Sequence[TowerCall]) -> Images | None:
    """Return the `Images` of a tower; None if its outputs for several images are not the joined outputs of each."""
    given = [each for call in calls if (each := LaidOut.of(call)) is not None and crops_of(each)]
    patch = getattr(tower, "patch_size", None)
    if not given or len(given) < len(calls) or not isinstance(patch, int):
        return None
    side = max(side for each in given for side in _sides(crops_of(each)))
    found = Images(calls[0].path, given[0], side // patch * patch, patch)
    return offered(tower, calls, lambda: found, _test_calls)


def _test_calls(found: Images) -> Iterator[tuple[Argument, Argument]]:
    """Yield a call with a high and a wide image, and a small one, to check the tower with."""
    patch, side, x = found.patch, found.side, found.example.floats
    sizes = torch.tensor([[side, patch], [patch, side], [patch, patch]]).to(found.example.numbers)
    pixels = torch.randn(3, x.shape[1], side, side, generator=torch.Generator().manual_seed(0))
    yield found.example.replaced(pixels.to(x.device, x.dtype), sizes)
