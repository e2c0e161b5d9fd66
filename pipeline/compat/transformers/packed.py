"""Towers that take the patches of images one behind the other: one program for images of every size, each on its own.

Patches of a frame attend to those of the same frame alone, so a call is made frame by frame. What a tower asks of a
grid (positions, windows, where a learned grid is read) is answered before, by transformers, and is input to the
program, by the names by which ``transformers.vision_utils`` takes such answers.
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
from pipeline.compat.transformers.towers import Kind, LaidOut, TowerCall

precompute: Callable[[torch.nn.Module, dict[str, Argument]], None] | None
try:
    from transformers.exporters.utils import precompute_export_inputs as precompute
except ImportError:  # of this version
    precompute = None

log = logging.getLogger(__name__)

Grid: TypeAlias = tuple[int, int, int]
"""Frames, and rows and columns of patches, of an image or a video."""
Answers: TypeAlias = dict[str, torch.Tensor]
"""What a tower asks of a grid."""

NAME: Final = "pipeline_flash"
"""Towers say where segments end to an attention with ``flash`` in its name, and cut them apart for others."""
WINDOWS: Final = ("gather", "real", "back")
"""The inputs that make `Windows`."""
GRID: Final = "grid"
"""The input with the grid itself."""
SIDE: Final = 64
"""Patches on each side of a grid whose windows are whole."""
KEPT: Final = 64
"""Answers for so many grids are kept."""


@frozen
class Windows:
    """Patches of windows. Of each window ``gather`` [windows, size] has the patches, ``real``, of the same sizes, says
    which of them it has, and ``back`` [patches] where each patch is among them."""

    gather: torch.Tensor
    real: torch.Tensor
    back: torch.Tensor

    @classmethod
    def of(cls, ends: torch.Tensor, size: int) -> Windows:
        """Those that end at ``ends`` [windows + 1], which begin with 0, each of at most ``size`` patches."""
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
    """Attention [1, patches, heads, width] of queries to keys and values [1, heads, patches, width]: everywhere, or
    within windows.

    Raises:
        ValueError: there is a mask, or segments are something else.
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
    """While entered, a tower's layers attend by a function, which transformers knows by this name."""
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
    """Those of the images whose patches [patches, width] a tower is called with; none if it is called otherwise."""
    x, numbers = given.floats, given.numbers
    if x.dim() != 2 or numbers.dim() != 2 or numbers.shape[1] != 3:
        return []
    grids = [(t, h, w) for t, h, w in numbers.tolist()]
    return grids if sum(map(math.prod, grids)) == len(x) else []


class OneFrame(torch.nn.Module):
    """A tower of the patches [patches, width] of one frame, and of the answers to what it asks of its grid.

    ``example`` is what the tower is called with; other values are the same in each call.
    """

    def __init__(self, tower: torch.nn.Module, example: LaidOut) -> None:
        super().__init__()
        self.tower, self.example = tower, example

    def forward(self, patches: torch.Tensor, answers: Mapping[str, torch.Tensor]) -> Argument:
        """As the tower's."""
        given: dict[str, Argument] = {name: x for name, x in answers.items() if name not in (GRID, *WINDOWS)}
        if WINDOWS[0] in answers:
            given |= {"cu_window_seqlens": Windows(*(answers[n] for n in WINDOWS)), "max_window_seqlen": 1}
        args, kwargs = self.example.replaced(patches, answers[GRID].to(self.example.numbers.dtype))
        with attending(self.tower, NAME, of_patches):
            return self.tower(*args, **kwargs, **given, max_seqlen=1)


@frozen
class Frames:
    """Calls of a tower with the patches of images and their grids: one program is for each frame of all of them.

    Attributes:
        path: of the tower.
        example: the call with the largest frame.
        largest: that frame.
        unit: patches that become one token, and that sizes are multiples of.
        window: patches of the largest window; 0 if there are none.
        apart: whether the frames of a video attend to themselves alone.
    """

    path: str
    example: LaidOut
    largest: Grid
    unit: int
    window: int
    apart: bool

    def takes(self, call: TowerCall) -> bool:
        """Whether a call is like the example, with frames of at most as many patches."""
        given = LaidOut.of(call) if call.path == self.path else None
        if given is None or not given.is_like(self.example):
            return False
        counts = list(map(math.prod, self.parts(grids_of(given))))
        return bool(counts) and max(counts) <= math.prod(self.largest)

    def parts(self, grids: Sequence[Grid]) -> list[Grid]:
        """The parts of images that attend to themselves alone."""
        return [part for t, h, w in grids for part in ([(1, h, w)] * t if self.apart else [(t, h, w)])]

    def answers(self, tower: torch.nn.Module, frame: Grid, device: torch.device) -> Answers:
        """What a tower asks of a frame, by the names of its program's inputs.

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
        """``args`` and ``dynamic_shapes`` of a program."""
        count, x = math.prod(self.largest), self.example.floats
        patches, answers = x.new_zeros(count, x.shape[1]), self.answers(tower, self.largest, x.device)
        units = torch.export.Dim("units", min=1, max=count // self.unit)
        sizes = {count: units if self.unit == 1 else self.unit * units, count // self.unit: units}
        windows = torch.export.Dim("windows", min=1, max=count // self.unit)
        dims: dict[str, object] = {GRID: None, "cu_seqlens": None} | {name: {0: windows} for name in WINDOWS[:2]}
        dims = {name: dims[name] if name in dims else {0: sizes[len(each)]} for name, each in answers.items()}
        return {"args": (patches, answers), "dynamic_shapes": ({0: sizes[count]}, dims)}

    def module(self, tower: torch.nn.Module) -> torch.nn.Module:
        """What becomes a program."""
        return OneFrame(tower, self.example).eval()

    def runner(self, tower: torch.nn.Module, program: Callable[..., Argument]) -> Callable[..., Argument]:
        """A call of the tower, frame by frame."""
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
    """The outputs of parts, one behind the other."""
    if len(outs) == 1:
        return outs[0]
    leaves, nested = zip(*map(tree_flatten, outs), strict=True)
    every = [each[0] if each[0] is None else torch.cat(each, dim) for each in zip(*leaves, strict=True)]
    return tree_unflatten(every, nested[0])


def _asked(tower: torch.nn.Module, frame: Grid) -> Answers:
    """What a tower asks of a grid, as transformers answers it."""
    found: dict[str, Argument] = {"grid_thw": torch.tensor([frame])}
    assert precompute is not None
    precompute(tower, found)
    del found["grid_thw"]
    return {name: x for name, x in found.items() if isinstance(x, torch.Tensor)}


def frames_of(tower: torch.nn.Module, calls: Sequence[TowerCall]) -> Frames | None:
    """Return how a tower takes frames of any size; None if its outputs for all of them are not those for each."""
    given = [each for call in calls if (each := LaidOut.of(call)) is not None and grids_of(each)]
    if precompute is None or not given or len(given) < len(calls):
        return None
    return offered(tower, calls, lambda: _frames_of(tower, calls[0].path, given), _others)


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


def _others(found: Frames) -> Iterator[tuple[Argument, Argument]]:
    """A call with several images, and one with a video of two frames; patches are the example's in another order."""
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
    """Return what is found, if the tower's outputs for its examples and other calls are those for their parts, and the
    program's inputs vary; None, which the log explains, if not."""
    try:
        with torch.no_grad():
            found = find()
            own = ((call.args, call.kwargs) for call in calls if found.takes(call))
            check(found, tower, [*own, *others(found)])
            found.inputs(tower)
    except Exception as error:  # of whatever kind: towers differ in what they ask
        log.info("%s has no program for every size: %s", calls[0].path, error)
        return None
    return found


def check(found: Kind, tower: torch.nn.Module, calls: Sequence[tuple[Argument, Argument]]) -> None:
    """Whether a tower gives the same for parts of calls, each by itself.

    Raises:
        ValueError: it does not.
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
