"""Random calls of operators over spatial dims: convolutions, pooling, resizing, padding."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from pipeline.aten.types import Target, aten
from pipeline.testing.calls import Call, TensorSpec
from pipeline.testing.strategies.common import (
    DTYPES,
    Draw,
    Shape,
    any_tensors,
    dtypes,
    floats,
    name_sizes,
    shapes,
    spatial_rank,
    strategy,
    tensors,
)


@strategy(aten.convolution.default)
def draw_convolution(draw: Draw, target: object) -> Call:
    rank, transposed = draw(st.sampled_from((2, 1, 3))), draw(st.booleans())
    dtype, groups = draw(floats), draw(st.sampled_from((1, 2, 1, 3)))
    channels, maps = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    kernel, stride, dilation = (_draw_ints(draw, 1, most, rank) for most in (3, 3, 2))
    weight = [channels, maps // groups] if transposed else [maps, channels // groups]
    more = [draw(st.integers(0, max(s, d) - 1)) if transposed else 0 for s, d in zip(stride, dilation, strict=True)]
    shape = [draw(st.integers(1, 2)), channels, *_draw_ints(draw, 5, 7, rank)]
    constant = draw(st.booleans())
    specs = (
        draw(tensors(shape, dtype)),
        draw(tensors([*weight, *kernel], dtype, constant=constant)),
        draw(st.none() | tensors([maps], dtype, constant=constant)),
    )
    call = Call(target, (*specs, stride, _draw_ints(draw, 0, 2, rank), dilation, transposed, more, groups))
    return draw(name_sizes(call, {0: [0, *range(2, rank + 2)]}, least=5))


def packets(family: str, ranks: str = "123") -> list[Target]:
    """Return the operator packets of a family, such as ``max_pool1d``, ``max_pool2d`` and ``max_pool3d``."""
    return [getattr(aten, f"{family}{rank}d") for rank in ranks]


def overloads(family: str, ranks: str = "123") -> list[Target]:
    """Return the overloads of a family of operators, such as ``max_pool1d``, ``2d`` and ``3d``."""
    return [packet.default for packet in packets(family, ranks)]


def _draw_ints(draw: Draw, low: int, high: int, rank: int) -> list[int]:
    """Generate a list of ``rank`` integers, each from ``low`` to ``high``."""
    return draw(st.lists(st.integers(low, high), min_size=rank, max_size=rank))


def _draw_image(draw: Draw, rank: int, value_kind: object = "normal") -> TensorSpec:
    """Generate a float tensor with ``rank`` spatial dims, a channel dim and, mostly, a batch dim."""
    leading = [2] * draw(st.sampled_from((2, 2, 1)))
    return draw(tensors([*leading, *_draw_ints(draw, 5, 7, rank)], draw(floats), value_kind))


def _draw_kernel_stride_padding(draw: Draw, rank: int) -> tuple[list[int], list[int], list[int]]:
    """Generate a pooling's kernel, stride (or an empty list, the default) and padding, each with ``rank`` sizes."""
    kernel = _draw_ints(draw, 1, 4, rank)
    stride = draw(st.just([]) | st.just(_draw_ints(draw, 1, 3, rank)))
    return kernel, stride, [draw(st.integers(0, k // 2)) for k in kernel]


def _name_pooled_sizes(draw: Draw, call: Call, rank: int) -> Call:
    """Replace sizes by names: of the batch and of pooled dims, except that of ``max_pool1d``, which is static."""
    pooled = range(-rank, 0) if call.target is not aten.max_pool1d.default and draw(st.booleans()) else ()
    return draw(name_sizes(call, {0: [0, *pooled]}, least=5))


@strategy(*overloads("max_pool"), aten.max_pool2d_with_indices.default, aten.max_pool3d_with_indices.default)
def draw_max_pool(draw: Draw, target: Target) -> Call:
    rank = spatial_rank(target)
    values = draw(st.sampled_from(("normal", "small", "special")))
    x, windows = _draw_image(draw, rank, values), _draw_kernel_stride_padding(draw, rank)
    dilation, ceil_mode = draw(st.sampled_from((1, 1, 2))), draw(st.sampled_from((False, False, True)))
    outputs = draw(st.sampled_from((None, (0,)))) if len(target._schema.returns) == 2 else None
    call = Call(target, (x, *windows, [dilation] * rank, ceil_mode), outputs=outputs)
    return _name_pooled_sizes(draw, call, rank)


@strategy(*overloads("avg_pool"))
def draw_avg_pool(draw: Draw, target: object) -> Call:
    rank = spatial_rank(target)
    ceil_mode, include_pad = draw(st.sampled_from((False, False, True))), draw(st.booleans())
    divisor = [draw(st.sampled_from((None, 3)))] if rank > 1 else []
    arguments = (_draw_image(draw, rank), *_draw_kernel_stride_padding(draw, rank), ceil_mode, include_pad, *divisor)
    return _name_pooled_sizes(draw, Call(target, arguments), rank)


@strategy(*overloads("adaptive_avg_pool"), *overloads("_adaptive_avg_pool", "23"), *overloads("adaptive_max_pool"))
def draw_adaptive_pool(draw: Draw, target: Target) -> Call:
    rank = spatial_rank(target)
    size = draw(st.just([1] * rank) | st.just(_draw_ints(draw, 1, 6, rank)))
    is_max = "max" in str(target)
    values = draw(st.sampled_from(("normal", "small", *(["special"] if is_max else []))))
    outputs = draw(st.sampled_from((None, (0,)))) if len(target._schema.returns) == 2 else None
    return _name_pooled_sizes(draw, Call(target, (_draw_image(draw, rank, values), size), outputs=outputs), rank)


RESIZED = (
    *packets("upsample_nearest"),
    *packets("_upsample_nearest_exact"),
    *(aten.upsample_linear1d, aten.upsample_bilinear2d, aten.upsample_trilinear3d, aten.upsample_bicubic2d),
    *(aten._upsample_bilinear2d_aa, aten._upsample_bicubic2d_aa),
)
factors = st.sampled_from((2.0, 1.5, 0.5, 3.0, 1.7, 0.6))


@strategy(*(packet.vec for packet in RESIZED), *(packet.default for packet in RESIZED))
def draw_upsample(draw: Draw, target: Target) -> Call:
    """Generate upsampling calls with output sizes; those of the overloads ``vec`` may have scale factors instead. With
    antialiasing the last size is not 1: torch 2.13 would repeat the first row on a CPU."""
    rank, antialiased, vec = spatial_rank(target), "_aa" in str(target), target._overloadname == "vec"
    x = draw(tensors([2, 2, *_draw_ints(draw, 3, 6, rank)], draw(st.just(torch.float32) | floats)))
    *others, last = _draw_ints(draw, 1, 9, rank)
    sizes = None if vec and draw(st.booleans()) else [*others, max(last, 2) if antialiased else last]
    align_corners = [draw(st.booleans()) for argument in target._schema.arguments if argument.name == "align_corners"]
    some = factors.filter(lambda factor: not antialiased or factor > 0.6)
    scales = [draw(st.lists(some, min_size=rank, max_size=rank)) if sizes is None else None] if vec else []
    call = Call(target, (x, sizes, *align_corners, *scales))
    return draw(name_sizes(call, {0: draw(st.sampled_from(([0], range(rank + 2))))}, least=3))


@strategy(aten.grid_sampler.default, aten.grid_sampler_2d.default)
def draw_grid_sampler(draw: Draw, target: object) -> Call:
    values = draw(st.sampled_from(("unit", "small", "normal")))
    x, grid = draw(tensors(("n", 2, "h", 5), torch.float32)), draw(tensors(("n", "m", 4, 2), torch.float32, values))
    modes = (draw(st.integers(0, 2)), draw(st.integers(0, 2)), draw(st.booleans()))
    return Call(target, (x, grid, *modes), sizes={"n": 2, "h": (2, 4, 8), "m": 3})


@st.composite
def _paddings(draw: Draw, shape: Shape, count: int, mode: str) -> list[int]:
    """Generate padding (before, after) of the last ``count`` dims, within the mode's limits; crops leave elements."""
    found: list[int] = []
    for size in reversed(shape[len(shape) - count :]):
        most = {"reflect": size - 1, "circular": size - 1}.get(mode, 3)
        before = draw(st.integers(-1, min(most, 3)))
        found += [before, draw(st.integers(-1, min(most, 3)))]
    return found


@strategy(aten.constant_pad_nd.default)
def draw_constant_pad_nd(draw: Draw, target: object) -> Call:
    shape, dtype = draw(shapes(1, 4)), draw(dtypes)
    amounts = draw(_paddings(shape, draw(st.integers(0, len(shape))), "constant"))
    value = draw(st.sampled_from([0, 1, 2.5, -3] if dtype.is_floating_point else [0, 1]))
    return draw(name_sizes(Call(target, (draw(any_tensors(shape, dtype)), amounts, value)), least=3))


@strategy(*overloads("reflection_pad"), *overloads("replication_pad"))
def draw_pad_nd(draw: Draw, target: Target) -> Call:
    """Generate calls of ``reflection_pad1d``, ``2d``, ``3d`` and ``replication_pad1d``, ``2d``, ``3d``."""
    count, mode = spatial_rank(target), "reflect" if "reflection" in str(target) else "replicate"
    shape = draw(st.tuples(*[st.integers(2, 4)] * (count + draw(st.integers(1, 2)))))
    x = draw(any_tensors(shape, draw(floats)))
    return draw(name_sizes(Call(target, (x, draw(_paddings(shape, count, mode)))), {0: range(len(shape))}, least=4))


@strategy(aten.pad.default, aten._pad_circular.default)
def draw_pad(draw: Draw, target: object) -> Call:
    modes = ["circular"] if target is aten._pad_circular.default else ["constant", "reflect", "replicate", "circular"]
    mode, count = draw(st.sampled_from(modes)), draw(st.integers(1, 3))
    shape = draw(st.tuples(*[st.integers(2, 4)] * (count + 2)))
    dtype = draw(st.sampled_from(DTYPES) if mode == "constant" else floats)
    value = draw(st.none() | st.sampled_from([1.0, 2.0])) if mode == "constant" else None
    how = (mode, value) if target is aten.pad.default else ()
    call = Call(target, (draw(any_tensors(shape, dtype)), draw(_paddings(shape, count, mode)), *how))
    return draw(name_sizes(call, least=4))
