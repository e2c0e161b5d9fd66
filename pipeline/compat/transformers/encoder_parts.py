"""Run image and audio encoders in parts: split each call, run a program for each part, join the outputs.

`pipeline.compat.transformers.part_families` declares how each family of encoders is split.
"""

from __future__ import annotations

import logging
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Final, Self, TypeAlias

import torch
from attrs import field, frozen
from torch.export import Dim
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from pipeline.aten.types import Argument
from pipeline.compat.transformers.attention import attend_in_windows, use_attention
from pipeline.compat.transformers.caches import Pretrained
from pipeline.compat.transformers.modality_encoders import CallArgs, EncoderCall
from pipeline.compiled import Compiled, CompiledModule
from pipeline.errors import CaptureError, ShapeError
from pipeline.export_fixes.call_recorder import Call, Calls
from pipeline.export_fixes.input_checks import bind_args
from pipeline.inputs import Constant

log = logging.getLogger(__name__)

Part: TypeAlias = tuple[torch.Tensor, tuple[int, ...]]
"""A part of an encoder call: an image's or sound's pixels, patches or features, and its grid, sizes or lengths."""
LENGTHS: Final = "feature_lens"
"""The name of the encoder parameter that has the lengths of audio inputs."""
MOST_REPORTED: Final = 8
"""The maximum number of different calls that the log reports to run in PyTorch."""


@frozen
class EncoderInputs:
    """The inputs of an encoder call: a floating-point tensor, and a tensor of integers (grids, sizes or lengths)."""

    call: EncoderCall
    floats: torch.Tensor = field(repr=False)
    numbers: torch.Tensor = field(repr=False)

    @classmethod
    def from_call(cls, call: EncoderCall) -> EncoderInputs | None:
        """Return a call's one float tensor and one integer tensor (for audio, the lengths); None if it has others."""
        tensors = [x for x in call.flat[0] if isinstance(x, torch.Tensor)]
        floats = [x for x in tensors if x.is_floating_point()]
        lengths = call.kwargs.get(LENGTHS)
        numbers = [x for x in tensors if not x.is_floating_point()] if lengths is None else [lengths]
        return cls(call, floats[0], numbers[0]) if len(floats) == len(numbers) == 1 else None

    def with_tensors(self, floats: torch.Tensor | None, numbers: torch.Tensor | None) -> CallArgs:
        """Return the ``args`` and ``kwargs`` of the call with these tensors in place of its floats and integers."""
        call = self.call.args, dict(self.call.kwargs)
        replaced: CallArgs = tree_map_only(torch.Tensor, lambda x: floats if x.is_floating_point() else numbers, call)
        return replaced

    def is_equal_but_for_tensors(self, other: EncoderInputs) -> bool:
        """Return whether another call differs only in the values and sizes of its tensors, not in the float dtype."""
        own, theirs = ((each.call.path, each.floats.dtype, *each.with_tensors(None, None)) for each in (self, other))
        return bool(own == theirs)


@frozen
class Family:
    """A family of image or audio encoders: how to split a call into parts, and what to precompute for each part."""

    tower: torch.nn.Module
    example: EncoderInputs

    dim: ClassVar[int] = 0
    """The dim along which the outputs of the parts are concatenated."""
    attention: ClassVar[str] = "pipeline_flash"
    """The name under which our attention function is registered. Encoders pass the ends of segments to attention if the
    name contains ``flash``, and split the sequence otherwise."""
    constants: ClassVar[Mapping[str, int]] = {"max_seqlen": 1, "max_window_seqlen": 1}
    """Arguments that are passed with every part, and that `attend_in_windows` ignores."""

    @classmethod
    @abstractmethod
    def layouts(cls, inputs: EncoderInputs) -> list[tuple[int, ...]]:
        """Return the layout, such as (frames, rows, columns), of each image in a call; [] for another family's call."""

    @classmethod
    @abstractmethod
    def from_examples(cls, encoder: torch.nn.Module, examples: Sequence[EncoderInputs]) -> Self:
        """Describe an encoder of this family, and the largest part that it gets, from example calls of it."""

    @abstractmethod
    def split_inputs(self, inputs: EncoderInputs) -> list[Part]:
        """Split an encoder call into parts, such as images, that can run alone; return (tensor, layout) of each."""

    def split_call(self, call: EncoderCall) -> list[CallArgs]:
        """Return the encoder's ``args`` and ``kwargs`` for each part of a call; [] if it is unlike the example call."""
        inputs = EncoderInputs.from_call(call)
        if inputs is None or not inputs.is_equal_but_for_tensors(self.example) or not self.layouts(inputs):
            return []
        return list(map(self.arguments_for_part, self.split_inputs(inputs)))

    @abstractmethod
    def arguments_for_part(self, part: Part) -> CallArgs:
        """Return an encoder's arguments for a part, including values that the encoder otherwise computes in Python."""

    @abstractmethod
    def test_inputs(self) -> Iterator[tuple[torch.Tensor, list[Any]]]:
        """Yield test calls as (float tensor, integers), such as (patches, grids). Their parts have the smallest, the
        largest and other sizes. The first call is the largest part; for the others, the encoder's outputs are compared.
        """


@frozen
class CallGroup:
    """The calls of an encoder that one program can run: as a whole, or split into parts, such as single images.

    Attributes:
        path, tower: the encoder's path in the model, and the encoder.
        module, inputs: the module to compile, and ``args``, ``kwargs`` and ``dynamic_shapes`` for the capture.
        sizes: the sizes that the program accepts, for each dim of each tensor.
        parts: a function that returns the program's ``args`` and ``kwargs`` for each part of a call.
        text: a description of these calls for the log.
        dim: the dim along which the outputs of the parts are concatenated.
        calls: the example calls; empty if calls are split.
    """

    path: str
    tower: torch.nn.Module = field(repr=False)
    module: torch.nn.Module = field(repr=False)
    inputs: dict[str, Argument] = field(repr=False)
    sizes: tuple[range, ...]
    parts: Callable[[EncoderCall], list[CallArgs]] = field(repr=False)
    text: str
    dim: int = 0
    calls: tuple[EncoderCall, ...] = ()

    def split_call(self, call: EncoderCall) -> list[CallArgs]:
        """Return the program's ``args`` and ``kwargs`` for each part of a call; [] if the program cannot run it."""
        parts = self.parts(call)
        fit = all(size in own for part in parts for size, own in zip(_tensor_sizes(part), self.sizes, strict=True))
        return parts if fit else []


def group_of_whole_calls(encoder: torch.nn.Module, calls: Sequence[EncoderCall]) -> CallGroup:
    """Return a `CallGroup` for example calls that differ only in the sizes of float tensors. Its program runs calls
    without splitting them, and integer tensors become its constants."""
    first = calls[0]
    seen = Calls(encoder, [Call.from_inputs(bind_args(encoder, each.args, each.kwargs), None) for each in calls])
    seen.example = first.args, dict(first.kwargs)
    inputs = seen.inputs
    args, kwargs = tree_map_only(
        torch.Tensor, lambda x: x if x.is_floating_point() else Constant(x), (inputs["args"], inputs["kwargs"])
    )
    sizes_of_dims = zip(*(_tensor_sizes((each.args, dict(each.kwargs))) for each in calls), strict=True)
    text = " to ".join(dict.fromkeys(map(str, (first, calls[-1]))))

    def whole_call(call: EncoderCall) -> list[CallArgs]:
        return [(call.args, dict(call.kwargs))] if first.is_equal_but_for_floats(call) else []

    inputs = {**inputs, "args": args, "kwargs": kwargs}
    sizes = tuple(range(min(each), max(each) + 1) for each in sizes_of_dims)
    return CallGroup(first.path, encoder, encoder, inputs, sizes, whole_call, text, calls=tuple(calls))


def group_of_split_calls(family: Family, example_parts: Sequence[CallArgs]) -> CallGroup:
    """Return a `CallGroup` for calls that a family can split into parts with sizes like those of ``example_parts``, the
    largest first, or between them. Sizes that differ become dynamic; proportional sizes become derived dims."""
    dims: dict[tuple[int, ...], Dim] = {}

    def dynamic_dim(*sizes: int) -> Argument:
        unit = math.gcd(*sizes)
        counts = tuple(size // unit for size in sizes)
        own = dims.setdefault(counts, Dim(f"count_{len(dims)}", min=min(counts), max=max(counts)))
        return own if unit == 1 else unit * own

    def dynamic_dims(*leaves: Argument) -> Argument:
        if not isinstance(leaves[0], torch.Tensor):
            return None
        every = enumerate(zip(*(each.shape for each in leaves), strict=True))
        return {dim: dynamic_dim(*sizes) for dim, sizes in every if len({*sizes}) > 1}

    every = zip(*map(_tensor_sizes, example_parts), strict=True)
    sizes = tuple(range(min(each), max(each) + 1, math.gcd(*each)) for each in every)
    names, path, module = ("args", "kwargs"), family.example.call.path, PartModule(family).eval()
    dynamic = {name: each for name, each in zip(names, tree_map(dynamic_dims, *example_parts), strict=True) if each}
    inputs = {**dict(zip(names, example_parts[0], strict=True)), "dynamic_shapes": dynamic}
    return CallGroup(path, family.tower, module, inputs, sizes, family.split_call, str(family), family.dim)


def _tensor_sizes(part: CallArgs) -> list[int]:
    """Return the sizes of all tensors among a call's arguments, in order."""
    return [size for x in tree_leaves(part) if isinstance(x, torch.Tensor) for size in x.shape]


class PartModule(torch.nn.Module):
    """The module to compile for a `Family`: its encoder for one part of a call (an image), with `attend_in_windows`."""

    def __init__(self, family: Family) -> None:
        super().__init__()
        self.tower, self.attention, self.constants = family.tower, family.attention, family.constants

    def forward(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Run the encoder with these arguments of one part of a call."""
        ALL_ATTENTION_FUNCTIONS.register(self.attention, attend_in_windows)
        with use_attention(self.tower, self.attention):
            return self.tower(*args, **kwargs, **self.constants)


def group_of_any_size(family: type[Family], encoder: torch.nn.Module, calls: Sequence[EncoderCall]) -> CallGroup | None:
    """Return a `CallGroup` that runs an encoder on each part (such as an image) of a call, for any size up to that in
    the examples ``calls``; None if these are of another family or (this is logged) the encoder cannot run parts."""
    given = [each for call in calls if (each := EncoderInputs.from_call(call)) is not None and family.layouts(each)]
    if not given or len(given) < len(calls):
        return None
    try:
        with torch.no_grad():
            return _create_checked_group(family.from_examples(encoder, given), given)
    except Exception as error:  # of any type: encoders differ in their inputs
        log.info("encoder %s is compiled for the sizes of the examples only: %s", calls[0].path, error)
        return None


def _create_checked_group(family: Family, examples: Sequence[EncoderInputs]) -> CallGroup:
    """Return a `CallGroup` for calls whose parts have sizes in the range of `Family.test_inputs`. Raise a `ValueError`
    if all have one size, or if the encoder's outputs for a call differ from the joined outputs of the call's parts."""
    own, path = family.example, family.example.call.path
    test_calls = (own.with_tensors(x, torch.tensor(each).to(own.numbers)) for x, each in family.test_inputs())
    calls = [EncoderCall(path, *each) for each in test_calls]
    group = group_of_split_calls(family, [part for call in calls for part in family.split_call(call)])
    if all(len(each) == 1 for each in group.sizes):
        raise ValueError("all test calls of the encoder have the same sizes, so no size can be dynamic")
    for call in [*calls[1:], *(each.call for each in examples)]:
        try:
            expected = family.tower(*call.args, **call.kwargs)
        except IndexError:  # GLM-4V is called with the frames of videos as images
            continue
        if parts := group.split_call(call):
            outputs = [group.module(*args, **kwargs) for args, kwargs in parts]
            _check_outputs(join_outputs(outputs, family.dim), expected)
    return group


def _check_outputs(outputs_of_parts: Argument, expected: Argument) -> None:
    """Raise a `ValueError` if the joined outputs of parts differ from the whole call's by more than rounding."""
    tensors = ([x for x in tree_leaves(outputs) if x is not None] for outputs in (outputs_of_parts, expected))
    for ours, theirs in zip(*tensors, strict=True):
        if ours.shape != theirs.shape:
            raise ValueError(f"the outputs for separate parts have shape {[*ours.shape]}, not {[*theirs.shape]}")
        rounding = max(16 * torch.finfo(theirs.dtype).eps, 1e-3 if theirs.dtype == torch.float32 else 0.03)
        off = (ours.float() - theirs.float()).abs().max()
        if not off <= rounding * theirs.float().abs().max():
            raise ValueError(f"the outputs for separate parts differ from those for the whole call by {off:.1e}")


def group_calls(model: Pretrained, calls: Sequence[EncoderCall]) -> list[CallGroup]:
    """Group encoder calls that can share a program; the groups are in the order of the calls."""
    groups: list[CallGroup] = []
    for call in calls:
        place = next((i for i, each in enumerate(groups) if each.parts(call)), None)
        if place is None:
            groups.append(group_of_whole_calls(model.get_submodule(call.path), [call]))
        elif not groups[place].split_call(call):
            groups[place] = group_of_whole_calls(groups[place].tower, [*groups[place].calls, call])
    return groups


def join_outputs(outputs: Sequence[Argument], dim: int = 0) -> Argument:
    """Concatenate the outputs of parts along a dim."""
    if len(outputs) == 1:
        return outputs[0]
    leaves, nested = zip(*map(tree_flatten, outputs), strict=True)
    every = [each[0] if each[0] is None else torch.cat(each, dim) for each in zip(*leaves, strict=True)]
    return tree_unflatten(every, nested[0])


def compile_encoders(
    groups: Sequence[CallGroup], compile: Callable[[CallGroup], Compiled], must_compile: bool
) -> dict[str, tuple[CallGroup, Compiled]]:
    """Compile a program for each `CallGroup`; return both by the program's name (``tower``, ``tower_1``). If compiling
    fails, log the error or, if ``must_compile``, raise it."""
    found = [each for group in groups for each in _compile_group(group, compile, must_compile)]
    return {f"tower_{i}" if i else "tower": each for i, each in enumerate(found)}


def _compile_group(
    group: CallGroup, compile: Callable[[CallGroup], Compiled], must_compile: bool
) -> list[tuple[CallGroup, Compiled]]:
    """Compile a program for a `CallGroup` or, if that fails, one for each of its example calls; return (group, program)
    pairs. If an example call fails, raise the error (``must_compile``), or log it and leave the call out."""
    try:
        return [(group, compile(group))]
    except CaptureError as error:
        if not group.calls:
            log.info("encoder %s is compiled for the sizes of the examples only: %s", group.path, error)
            return []
        if len(group.calls) > 1:
            alone = (group_of_whole_calls(group.tower, [call]) for call in group.calls)
            return [made for each in alone for made in _compile_group(each, compile, must_compile)]
        if must_compile:
            raise
        log.warning("encoder %s (%s) runs in PyTorch: %s", group.path, type(group.tower).__name__, error)
        return []


class ModalityEncoder(torch.nn.Module):
    """An encoder that runs a compiled program if one accepts the call, and the original module otherwise."""

    def __init__(self, real: torch.nn.Module, path: str, programs: Sequence[tuple[CallGroup, CompiledModule]]) -> None:
        super().__init__()
        self.real = real
        self.__dict__.update(path=path, programs=programs, reported=set())

    def __getattr__(self, name: str) -> Argument:
        if name == "real":
            return super().__getattr__(name)
        return getattr(super().__getattr__("real"), name)

    def forward(self, *args: Argument, **kwargs: Argument) -> Argument:
        """Run a compiled program, or the original module if no program supports the call."""
        path, reported = self.__dict__["path"], self.__dict__["reported"]
        call = EncoderCall(path, args, kwargs)
        for kind, program in self.__dict__["programs"]:
            if parts := kind.split_call(call):
                with suppress(ShapeError):  # for example, sizes between the examples' that are no multiple of a patch
                    return join_outputs([program(*args, **kwargs) for args, kwargs in parts], kind.dim)
        if str(call) not in reported and len(reported) < MOST_REPORTED:
            reported.add(str(call))
            known = "; ".join(kind.text for kind, _ in self.__dict__["programs"])
            how = "To compile it for these sizes too, pass a list of examples as encoder_example"
            log.warning("encoder %s runs in PyTorch for %s: it is compiled for %s. %s", path, call, known, how)
        return self.real(*args, **kwargs)


def insert_encoders(model_copy: Pretrained, programs: Sequence[tuple[CallGroup, CompiledModule]]) -> None:
    """Replace the image and audio encoders in a model's copy by `ModalityEncoder` modules."""
    for path in dict.fromkeys(kind.path for kind, _ in programs):
        within, _, name = path.rpartition(".")
        parent = model_copy.get_submodule(within)
        own = [each for each in programs if each[0].path == path]
        parent._modules[name] = ModalityEncoder(parent._modules[name], path, own)
