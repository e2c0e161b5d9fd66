"""Audio towers that cut sound into chunks of one length (Qwen2.5-Omni, Qwen3-Omni): one program for every length.

Chunks attend to themselves, or to those of one window. The cut of features into chunks, and the windows, are computed
before, by transformers, and are inputs of the program.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import torch
from attrs import evolve, frozen
from torch.utils._pytree import tree_map_only

from pipeline.aten.types import Argument
from pipeline.compat.transformers import packed_patches
from pipeline.compat.transformers.modality_encoders import TowerCall
from pipeline.compat.transformers.packed_patches import NAME, WINDOWS, Answers, Windows, attending, of_patches, offered

LENGTHS: Final = "feature_lens"
"""The name of the parameter with the frames of each sound."""
ALONG: Final = {
    "padded_feature": "chunks",
    "chunk_lengths": "chunks",
    "valid_indices": "tokens",
    "pool_indices": "pooled",
    "gather": "windows",
    "real": "windows",
    "back": "tokens",
}
"""The dim along which each input varies."""
LONG: Final = 20_000
"""The frames of a sound that has full chunks and windows."""


@frozen
class Heard:
    """The inputs of a tower: ``features`` [bins, frames] of all sounds, and ``lengths``, the frames of each."""

    features: torch.Tensor
    lengths: tuple[int, ...]

    @classmethod
    def of(cls, call: TowerCall) -> Heard | None:
        """Return the inputs of a call; None if it has others."""
        tensors = [x for x in call.flat[0] if isinstance(x, torch.Tensor)]
        floats = [x for x in tensors if x.is_floating_point()]
        lengths = call.kwargs.get(LENGTHS)
        if len(floats) != 1 or floats[0].dim() != 2 or not isinstance(lengths, torch.Tensor) or lengths.dim() != 1:
            return None
        found = tuple(lengths.tolist())
        return cls(floats[0], found) if min(found, default=0) > 0 and sum(found) == floats[0].shape[1] else None

    def asked(self, tower: torch.nn.Module) -> Answers:
        """Return what a tower computes from the lengths of sounds, as transformers computes it."""
        lengths = torch.tensor(self.lengths, device=self.features.device)
        found: dict[str, Argument] = {"input_features": self.features, LENGTHS: lengths}
        assert packed_patches.precompute is not None
        packed_patches.precompute(tower, found)
        return {name: x for name, x in found.items() if isinstance(x, torch.Tensor) and name not in _GIVEN}


_GIVEN: Final = ("input_features", LENGTHS)


class Chunks(torch.nn.Module):
    """A tower that takes the answers computed from the lengths of sounds; ``example`` is one of its calls."""

    def __init__(self, tower: torch.nn.Module, example: TowerCall) -> None:
        super().__init__()
        self.tower = tower
        self.args, self.kwargs = tree_map_only(torch.Tensor, lambda x: None, (example.args, dict(example.kwargs)))

    def forward(self, answers: Mapping[str, torch.Tensor]) -> Argument:
        """Run the tower on the answers."""
        given = {name: x for name, x in answers.items() if name not in WINDOWS}
        windows = Windows(*(answers[name] for name in WINDOWS))
        with attending(self.tower, NAME, of_patches):
            return self.tower(*self.args, **self.kwargs, **given, cu_seqlens=windows, max_seqlen=1)


@frozen
class Sounds:
    """Calls of a tower with sounds: one program runs all that have at least one full chunk, and at most ``most``
    chunks.

    Attributes:
        path: the path of the tower.
        example: an example call.
        chunk: the number of frames in a chunk.
        most: the largest number of chunks in a call, over all its sounds.
        window: the number of positions in the largest window.
    """

    path: str
    example: TowerCall
    chunk: int
    most: int
    window: int

    def takes(self, call: TowerCall) -> bool:
        """Return whether a call is like the example, with enough frames and no more chunks."""
        heard, own = Heard.of(call), Heard.of(self.example)
        if call.path != self.path or heard is None or own is None or call.flat[1] != self.example.flat[1]:
            return False
        alike = (heard.features.dtype, len(heard.features)) == (own.features.dtype, len(own.features))
        pairs = zip(call.flat[0], self.example.flat[0], strict=True)
        same = all(isinstance(x, torch.Tensor) or x == y for x, y in pairs)
        return alike and same and max(heard.lengths) >= self.chunk and self.chunks(heard.lengths) <= self.most

    def chunks(self, lengths: Sequence[int]) -> int:
        """Return the number of chunks in sounds of these lengths."""
        return sum(-(-length // self.chunk) for length in lengths)

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """Return the module to compile."""
        return Chunks(tower, self.example).eval()

    def answers(self, tower: torch.nn.Module, heard: Heard) -> Answers:
        """Return what a tower computes from the lengths of sounds, by the names of its program's inputs.

        Raises:
            ValueError: a window is larger than those of long sounds.
        """
        found = heard.asked(tower)
        ends = found.pop("cu_seqlens")
        if int(ends.diff().max()) > self.window:
            raise ValueError(f"a window of {int(ends.diff().max())} positions, of at most {self.window}")
        windows = Windows.of(ends.cpu(), self.window)
        return found | {name: getattr(windows, name).to(heard.features.device) for name in WINDOWS}

    def inputs(self, tower: torch.nn.Module) -> dict[str, Argument]:
        """Return ``args`` and ``dynamic_shapes`` for the capture."""
        own = Heard.of(self.example)
        assert own is not None
        frames = self.most * self.chunk
        answers = self.answers(tower, Heard(own.features.new_zeros(len(own.features), frames), (frames,)))
        most = {
            "chunks": self.most,
            "windows": self.most,
            "tokens": len(answers["back"]),
            "pooled": len(answers["back"]),
        }
        dims = {name: torch.export.Dim(name, min=1, max=size) for name, size in most.items()}
        shapes = {name: {0: dims[ALONG[name]]} for name in answers}
        return {"args": (answers,), "dynamic_shapes": (shapes,)}

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """Return a function that runs a call of the tower."""

        def run(*args: Argument, **kwargs: Argument) -> Argument:
            heard = Heard.of(TowerCall(self.path, args, kwargs))
            assert heard is not None
            return program(self.answers(tower, heard))

        return run

    def __str__(self) -> str:
        return f"sounds of {self.chunk} to {self.most * self.chunk} frames"


def sounds_of(tower: torch.nn.Module, calls: Sequence[TowerCall]) -> Sounds | None:
    """Return the `Sounds` of a tower; None if its outputs are not those for the chunks."""
    heard = [each for call in calls if (each := Heard.of(call)) is not None]
    if packed_patches.precompute is None or not heard or len(heard) < len(calls):
        return None
    return offered(
        tower, calls, lambda: _sounds_of(tower, calls[0], heard), lambda x: _test_calls(x, heard[0].features)
    )


def _sounds_of(tower: torch.nn.Module, example: TowerCall, heard: Sequence[Heard]) -> Sounds:
    long = Heard(heard[0].features.new_zeros(len(heard[0].features), LONG), (LONG,)).asked(tower)
    chunk, window = long["padded_feature"].shape[2], int(long["cu_seqlens"].diff().max())
    one = Sounds(example.path, example, chunk, 1, window)
    most = max(one.chunks(each.lengths) for each in heard)
    if most < 2:
        raise ValueError("the examples have one chunk")
    return evolve(one, most=most)


def _test_calls(found: Sounds, features: torch.Tensor) -> Iterator[tuple[Argument, Argument]]:
    """Yield a call with a sound of another length, and one with two sounds; features are the example's, shuffled."""
    longest = found.most * found.chunk
    for lengths in (longest - found.chunk // 3,), (longest - found.chunk, found.chunk // 2 + 1):
        order = torch.randint(features.shape[1], (sum(lengths),), generator=torch.Generator().manual_seed(0))
        x = features[:, order.to(features.device)]

        def other(own: torch.Tensor, x: torch.Tensor = x, lengths: tuple[int, ...] = lengths) -> torch.Tensor:
            return x if own.is_floating_point() else torch.tensor(lengths).to(own)

        yield tree_map_only(torch.Tensor, other, (found.example.args, dict(found.example.kwargs)))
