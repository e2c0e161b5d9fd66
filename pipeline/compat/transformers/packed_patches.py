"""Vision towers that take concatenated patches of images: one program for images of every size, frame by frame.

Patches of a frame attend to those of the same frame alone, so a call is made frame by frame. What a tower asks of a
grid (positions, windows, indices into a learned grid) is computed before, by transformers, and passed to the program,
under the names that ``transformers.vision_utils`` uses.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias, TypeVar

import torch
from attrs import evolve, frozen
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.aten.types import Argument
from pipeline.compat.transformers.attention import attention
from pipeline.compat.transformers.modality_encoders import Kind, LaidOut, TowerCall

precompute: Callable[[torch.nn.Module, dict[str, Argument]], None] | None
try:
    from transformers.exporters.utils import precompute_export_inputs as precompute
except ImportError:  # of this version
    precompute = None

log = logging.getLogger(__name__)

Grid: TypeAlias = tuple[int, int, int]
"""Frames, and rows and columns of patches, of an image or a video."""
Answers: TypeAlias = dict[str, torch.Tensor]
"""The tensors that a tower computes from a grid, by name."""

NAME: Final = "pipeline_flash"
"""The name of our attention. Towers pass the ends of segments if it contains ``flash``, and split them otherwise."""
WINDOWS: Final = ("gather", "real", "back")
"""The names of the inputs that are the fields of `Windows`."""
GRID: Final = "grid"
"""The name of the input with the grid itself."""
SIDE: Final = 64
"""The patches on each side of a grid that has full windows."""
KEPT: Final = 64
"""The number of grids whose answers are cached."""


@frozen
class Windows:
    """Patches padded to windows: ``gather`` [windows, size] has the patch indices of each window, ``real`` [windows,
    size] is False at padding, and ``back`` [patches] has each patch's index in the flattened windows."""

    gather: torch.Tensor
    real: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, ends: torch.Tensor, size: int) -> Windows:
        """Create windows of at most ``size`` patches from their cumulative ends [windows + 1], the first of which is
        0."""
        starts, lengths = ends[:-1].long(), ends.long().diff()
        within = torch.arange(size)
        real = within < lengths[:, None]
        return cls(torch.where(real, starts[:, None] + within, 0), real, real.flatten().nonzero()[:, 0])


def of_patches(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None = None,
    scaling: float | None = None,
    *,
    cu_seq_lens_q: Windows | torch.Tensor,
    **_: object,
) -> tuple[torch.Tensor, None]:
    """Compute attention [1, patches, heads, width] of queries to keys and values [1, heads, patches, width]: among all
    patches, or within windows.

    Raises:
        ValueError: there is a mask, or there are several segments.
    """
    if not isinstance(cu_seq_lens_q, Windows):
        if attention_mask is not None or cu_seq_lens_q.shape[0] != 2:
            raise ValueError("patches attend to other than those of their frame, or their window")
        return attention(module, query, key, value, None, scaling=scaling)
    windows, index = cu_seq_lens_q.gather.shape, cu_seq_lens_q.gather.flatten()
    q, k, v = (x[0].index_select(1, index).unflatten(1, windows).transpose(0, 1) for x in (query, key, value))
    found = attention(module, q, k, v, cu_seq_lens_q.real[:, None, None], scaling=scaling)[0]
    return found.flatten(0, 1).index_select(0, cu_seq_lens_q.back)[None], None


@contextmanager
def attending(tower: torch.nn.Module, name: str, by: Callable[..., object]) -> Iterator[None]:
    """While entered, a tower's layers compute attention by a function registered with transformers under this name."""
    ALL_ATTENTION_FUNCTIONS.register(name, by)
    parts: list[Argument] = [getattr(each, "config", None) for each in tower.modules()]
    configs = {id(each): each for each in parts if hasattr(each, "_attn_implementation_internal")}
    before = {key: config._attn_implementation_internal for key, config in configs.items()}
    for config in configs.values():
        config._attn_implementation_internal = name
    try:
        yield
    finally:
        for key, config in configs.items():
            config._attn_implementation_internal = before[key]


def grids_of(given: LaidOut) -> list[Grid]:
    """Return the grids of the images in a call whose floats are patches [patches, width]; none for another call."""
    x, numbers = given.floats, given.numbers
    if x.dim() != 2 or numbers.dim() != 2 or numbers.shape[1] != 3:
        return []
    grids = [(t, h, w) for t, h, w in numbers.tolist()]
    return grids if sum(map(math.prod, grids)) == len(x) else []


class OneFrame(torch.nn.Module):
    """A tower for the patches [patches, width] of one frame, with the answers computed from its grid.

    ``example`` is an example call of the tower; its other arguments are the same in each call.
    """

    def __init__(self, tower: torch.nn.Module, example: LaidOut) -> None:
        super().__init__()
        self.tower, self.example = tower, example

    def forward(self, patches: torch.Tensor, answers: Mapping[str, torch.Tensor]) -> Argument:
        """Run the tower on one frame."""
        given: dict[str, Argument] = {name: x for name, x in answers.items() if name not in (GRID, *WINDOWS)}
        if WINDOWS[0] in answers:
            given |= {"cu_window_seqlens": Windows(*(answers[n] for n in WINDOWS)), "max_window_seqlen": 1}
        args, kwargs = self.example.replaced(patches, answers[GRID].to(self.example.numbers.dtype))
        with attending(self.tower, NAME, of_patches):
            return self.tower(*args, **kwargs, **given, max_seqlen=1)


@frozen
class Frames:
    """Calls of a tower with the patches of images and their grids: one program runs each frame.

    Attributes:
        path: the path of the tower.
        example: the call with the largest frame.
        largest: the grid of that frame.
        unit: the number of patches that become one token; sizes are multiples of it.
        window: the number of patches in the largest window; 0 if there are no windows.
        apart: True if each frame of a video attends to itself alone.
    """

    path: str
    example: LaidOut
    largest: Grid
    unit: int
    window: int
    apart: bool

    def takes(self, call: TowerCall) -> bool:
        """Return whether a call is like the example, with frames of at most as many patches."""
        given = LaidOut.of(call) if call.path == self.path else None
        if given is None or not given.is_like(self.example):
            return False
        counts = list(map(math.prod, self.parts(grids_of(given))))
        return bool(counts) and max(counts) <= math.prod(self.largest)

    def parts(self, grids: Sequence[Grid]) -> list[Grid]:
        """Return the grids of the parts that attend to themselves alone: frames, or whole videos."""
        return [part for t, h, w in grids for part in ([(1, h, w)] * t if self.apart else [(t, h, w)])]

    def answers(self, tower: torch.nn.Module, frame: Grid, device: torch.device) -> Answers:
        """Return what a tower computes from a frame's grid, by the names of its program's inputs.

        Raises:
            ValueError: a window is larger than those of the example.
        """
        found = {GRID: torch.tensor([frame]), **_asked(tower, frame)}
        ends = found.pop("cu_window_seqlens", None)
        if ends is not None:
            if int(ends.diff().max()) > self.window:
                raise ValueError(f"a window of {int(ends.diff().max())} patches, of at most {self.window}")
            windows = Windows.of(ends, self.window)
            found |= {name: getattr(windows, name) for name in WINDOWS}
        return {name: x.to(device) for name, x in found.items()}

    def inputs(self, tower: torch.nn.Module) -> dict[str, Argument]:
        """Return ``args`` and ``dynamic_shapes`` for the capture."""
        count, x = math.prod(self.largest), self.example.floats
        patches, answers = x.new_zeros(count, x.shape[1]), self.answers(tower, self.largest, x.device)
        units = torch.export.Dim("units", min=1, max=count // self.unit)
        sizes = {count: units if self.unit == 1 else self.unit * units, count // self.unit: units}
        windows = torch.export.Dim("windows", min=1, max=count // self.unit)
        dims: dict[str, object] = {GRID: None, "cu_seqlens": None} | {name: {0: windows} for name in WINDOWS[:2]}
        dims = {name: dims[name] if name in dims else {0: sizes[len(each)]} for name, each in answers.items()}
        return {"args": (patches, answers), "dynamic_shapes": ({0: sizes[count]}, dims)}

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """Return the module to compile."""
        return OneFrame(tower, self.example).eval()

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """Return a function that runs a call of the tower frame by frame."""
        known: dict[tuple[Grid, torch.device], Answers] = {}

        def answers(frame: Grid, device: torch.device) -> Answers:
            if (frame, device) not in known:
                while len(known) >= KEPT:
                    known.pop(next(iter(known)), None)
                known[frame, device] = self.answers(tower, frame, device)
            return known[frame, device]

        def run(*args: Argument, **kwargs: Argument) -> Argument:
            given = LaidOut.of(TowerCall(self.path, args, kwargs))
            assert given is not None
            x, parts = given.floats, self.parts(grids_of(given))
            each = zip(x.split([math.prod(part) for part in parts]), parts, strict=True)
            return joined([program(patches, answers(part, x.device)) for patches, part in each])

        return run

    def __str__(self) -> str:
        return f"frames of up to {math.prod(self.largest)} patches"


def joined(outs: Sequence[Argument], dim: int = 0) -> Argument:
    """Concatenate the outputs of parts along a dim."""
    if len(outs) == 1:
        return outs[0]
    leaves, nested = zip(*map(tree_flatten, outs), strict=True)
    every = [each[0] if each[0] is None else torch.cat(each, dim) for each in zip(*leaves, strict=True)]
    return tree_unflatten(every, nested[0])


def _asked(tower: torch.nn.Module, frame: Grid) -> Answers:
    """Return what a tower computes from a grid, as transformers computes it."""
    found: dict[str, Argument] = {"grid_thw": torch.tensor([frame])}
    assert precompute is not None
    precompute(tower, found)
    del found["grid_thw"]
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def frames_of(tower: torch.nn.Module, calls: Sequence[TowerCall]) -> Frames | None:
    """Return the `Frames` of a tower; None if its outputs for several frames are not the joined outputs of each."""
    given = [each for call in calls if (each := LaidOut.of(call)) is not None and grids_of(each)]
    if precompute is None or not given or len(given) < len(calls):
        return None
    return offered(tower, calls, lambda: _frames_of(tower, calls[0].path, given), _test_calls)


def _frames_of(tower: torch.nn.Module, path: str, given: Sequence[LaidOut]) -> Frames:
    grids = [(grid, each) for each in given for grid in grids_of(each)]
    apart = _asked(tower, (2, *grids[0][0][1:]))["cu_seqlens"].numel() == 3
    (frames, rows, columns), example = max(grids, key=lambda found: math.prod(found[0][apart:]))
    windows = _asked(tower, (1, SIDE, SIDE)).get("cu_window_seqlens")
    window = 0 if windows is None else min(int(windows.diff().max()), rows * columns)
    one = Frames(path, example, (1 if apart else frames, rows, columns), 1, window, apart)
    patches = example.floats[: math.prod(one.largest)]
    made = _tensors(one.module(tower)(patches, one.answers(tower, one.largest, patches.device)))
    return evolve(one, unit=len(patches) // min(len(x) for x in made))


def _test_calls(found: Frames) -> Iterator[tuple[Argument, Argument]]:
    """Yield a call with several images, and one with a video of two frames; patches are the example's, shuffled."""
    (frames, rows, columns), side, x = found.largest, math.isqrt(found.unit), found.example.floats
    for grids in [[1, columns, rows], [1, side, 2 * side], [1, rows, columns]], [[2 * frames, rows, columns]]:
        count = sum(map(math.prod, grids))
        order = torch.randint(len(x), (count,), generator=torch.Generator().manual_seed(0))
        yield found.example.replaced(x[order.to(x.device)], torch.tensor(grids).to(found.example.numbers))


Found = TypeVar("Found", bound=Kind)


def offered(
    tower: torch.nn.Module,
    calls: Sequence[TowerCall],
    find: Callable[[], Found],
    others: Callable[[Found], Iterable[tuple[Argument, Argument]]],
) -> Found | None:
    """Return the result of ``find`` if the tower's outputs for its examples and other calls equal the joined outputs of
    their parts, and the program's inputs can be dynamic; else None, with the reason in the log."""
    try:
        with torch.no_grad():
            found = find()
            own = ((call.args, call.kwargs) for call in calls if found.takes(call))
            check(found, tower, [*own, *others(found)])
            found.inputs(tower)
    except Exception as error:  # of any type: towers differ in their inputs
        log.info("%s has no program for every size: %s", calls[0].path, error)
        return None
    return found


def check(found: Kind, tower: torch.nn.Module, calls: Sequence[tuple[Argument, Argument]]) -> None:
    """Check that a tower returns the same for a call as for its parts, joined.

    Raises:
        ValueError: the results differ.
    """
    run = found.runner(tower, found.module(tower))
    for args, kwargs in calls:
        try:
            want = tower(*args, **kwargs)
        except IndexError:  # GLM-4V is called with the frames of videos as images
            continue
        for ours, theirs in zip(_tensors(run(*args, **kwargs)), _tensors(want), strict=True):
            rounding = max(16 * torch.finfo(theirs.dtype).eps, 1e-3 if theirs.dtype == torch.float32 else 0.03)
            off = (ours.float() - theirs.float()).abs().max()
            if ours.shape != theirs.shape or not off <= rounding * theirs.float().abs().max():
                raise ValueError(f"parts by themselves differ from all of them, by {off:.1e}")


def _tensors(outputs: Argument) -> list[torch.Tensor]:
    return [each for each in tree_leaves(outputs) if each is not None]
