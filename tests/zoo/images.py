"""Layers on images and volumes: resizing, sampling, pooling, convolution, padding, folding, normalisation."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.zoo.rows import Row, f, i, m, t

IMAGE, FREE, VOLUME, LINE = t("n", 2, 6, 8), t("n", 2, "h", "w"), t("n", 2, 4, 6, 5), t("n", 2, 9)
BY_RANK = {1: LINE, 2: IMAGE, 3: VOLUME}


def _options(options: dict[str, Any]) -> str:
    return " ".join(f"{k}={v}" for k, v in options.items())


def _interpolations() -> Iterator[Row]:
    ranks = {"nearest": (1, 2, 3), "nearest-exact": (1, 2, 3), "linear": (1,), "bilinear": (2,), "bicubic": (2,)}
    ranks |= {"trilinear": (3,), "area": (1, 2, 3)}
    for mode, rank in ((mode, rank) for mode, all_ranks in ranks.items() for rank in all_ranks):
        aligned = [{"align_corners": v} for v in (False, True)] if "linear" in mode or mode == "bicubic" else [{}]
        for more in aligned:
            yield _interpolation(BY_RANK[rank], size=(7, 5, 3)[:rank], mode=mode, **more)
            if rank == ranks[mode][-1]:
                yield _interpolation(BY_RANK[rank], scale_factor=1.7, mode=mode, **more)
    for mode in ("nearest", "bilinear", "bicubic"):
        yield _interpolation(IMAGE, scale_factor=(2.0, 0.6), mode=mode, recompute_scale_factor=True)
        yield _interpolation(FREE, scale_factor=2, mode=mode)
        yield _interpolation(FREE, size=(7, 5), mode=mode)
        yield _interpolation(FREE, scale_factor=1.5, mode=mode)
        yield _interpolation(FREE, scale_factor=1.5, mode=mode, recompute_scale_factor=True)
    for mode in ("bilinear", "bicubic"):
        for aligned in (False, True):
            yield _interpolation(IMAGE, size=(4, 11), mode=mode, antialias=True, align_corners=aligned)
        yield _interpolation(FREE, size=(4, 11), mode=mode, antialias=True)
        yield _interpolation(FREE, scale_factor=0.5, mode=mode, antialias=True)


def _interpolation(x: Any, **options: Any) -> Row:
    shape = ",".join(map(str, x.shape))
    return f(f"interpolate [{shape}] {_options(options)}", lambda x: F.interpolate(x, **options), x)


def _samplings() -> Iterator[Row]:
    grid, grid3 = t("n", 5, 4, 2, values=("uniform", -1.2, 1.2)), t("n", 3, 5, 4, 3, values=("uniform", -1.2, 1.2))
    for padding in ("zeros", "border", "reflection"):
        for aligned in (False, True):
            options = {"padding_mode": padding, "align_corners": aligned}
            for mode in ("bilinear", "bicubic") if aligned else ("bilinear", "nearest"):
                yield _sampling(FREE, grid, mode=mode, **options)
            yield _sampling(VOLUME, grid3, mode="nearest" if aligned else "bilinear", **options)
    theta = t("n", 2, 3, values=("uniform", -0.6, 0.6))
    yield f("affine_grid", lambda x, theta: F.grid_sample(x, F.affine_grid(theta, list(x.shape))), IMAGE, theta)


def _sampling(x: Any, grid: Any, **options: Any) -> Row:
    return f(f"grid_sample {len(x.shape)}-D {_options(options)}", lambda x, g: F.grid_sample(x, g, **options), x, grid)


POOLS: tuple[tuple[type[nn.Module], dict[str, Any]], ...] = (
    (nn.MaxPool1d, {"kernel_size": 3}),
    (nn.MaxPool1d, {"kernel_size": 2, "ceil_mode": True, "return_indices": True}),
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    (nn.MaxPool2d, {"kernel_size": 2, "stride": 1, "dilation": 2}),
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "return_indices": True}),
    (nn.MaxPool2d, {"kernel_size": 2, "stride": 1, "dilation": 2, "return_indices": True}),
    (nn.MaxPool3d, {"kernel_size": 2, "ceil_mode": True}),
    (nn.MaxPool3d, {"kernel_size": 2, "stride": 1, "dilation": 2, "return_indices": True}),
    (nn.AvgPool1d, {"kernel_size": 3, "padding": 1, "count_include_pad": False}),
    (nn.AvgPool1d, {"kernel_size": 4, "ceil_mode": True}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "ceil_mode": True}),
    (nn.AvgPool2d, {"kernel_size": (2, 3), "divisor_override": 5}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "divisor_override": 2, "ceil_mode": True}),
    (nn.AvgPool3d, {"kernel_size": 2, "padding": 1}),
    (nn.AvgPool3d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False, "ceil_mode": True}),
    (nn.AvgPool3d, {"kernel_size": 2, "divisor_override": 3}),
    (nn.LPPool1d, {"norm_type": 2, "kernel_size": 3}),
    (nn.LPPool2d, {"norm_type": 2, "kernel_size": 3, "stride": 2}),
    (nn.LPPool3d, {"norm_type": 2, "kernel_size": 2}),
    *(
        (kind, {"output_size": size})
        for kind, sizes in (
            (nn.AdaptiveAvgPool1d, (1, 4, 12)),
            (nn.AdaptiveAvgPool2d, (1, (5, 3), (None, 11))),
            (nn.AdaptiveAvgPool3d, (1, (3, 4, 2), (5, None, 7))),
            (nn.AdaptiveMaxPool1d, (1, 4, 12)),
            (nn.AdaptiveMaxPool2d, (1, (5, 3), (None, 11))),
            (nn.AdaptiveMaxPool3d, (1, (3, 4, 2), (5, None, 7))),
        )
        for size in sizes
    ),
    (nn.AdaptiveMaxPool1d, {"output_size": 4, "return_indices": True}),
    (nn.AdaptiveMaxPool2d, {"output_size": (5, 3), "return_indices": True}),
    (nn.AdaptiveMaxPool3d, {"output_size": (3, 4, 2), "return_indices": True}),
)
FREE_POOLS: tuple[tuple[type[nn.Module], dict[str, Any]], ...] = (
    (nn.MaxPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.MaxPool2d, {"kernel_size": 2, "ceil_mode": True}),
    (nn.MaxPool2d, {"kernel_size": 2, "dilation": 2, "return_indices": True}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "padding": 1, "count_include_pad": False}),
    (nn.AvgPool2d, {"kernel_size": 3, "stride": 2, "ceil_mode": True}),
    (nn.AvgPool2d, {"kernel_size": 40, "ceil_mode": True}),
    (nn.AvgPool2d, {"kernel_size": 2, "divisor_override": 3}),
    (nn.LPPool2d, {"norm_type": 2, "kernel_size": 2}),
    (nn.AdaptiveAvgPool2d, {"output_size": 1}),
    (nn.AdaptiveAvgPool2d, {"output_size": (3, 2)}),
    (nn.AdaptiveMaxPool2d, {"output_size": 1, "return_indices": True}),
    (nn.AdaptiveMaxPool2d, {"output_size": (3, 2)}),
)


def _pool(kind: type[nn.Module], options: dict[str, Any], x: Any, **more: Any) -> Row:
    name = f"{kind.__name__} [{','.join(map(str, x.shape))}] {_options(options)}"
    return m(name, lambda: kind(**options), x, **more)


class Unpooled(nn.Module):
    """Max pooling and back."""

    def __init__(self, rank: int, **options: Any) -> None:
        super().__init__()
        self.pool = getattr(nn, f"MaxPool{rank}d")(**options, return_indices=True)
        self.unpool = getattr(nn, f"MaxUnpool{rank}d")(**options)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x where it was the greatest of its window, else 0."""
        return self.unpool(*self.pool(x), output_size=x.shape)


TRANSPOSED: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3},
    {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1},
    {"kernel_size": 3, "groups": 2, "bias": False},
    {"kernel_size": 3, "dilation": 2, "padding": 1},
    {"kernel_size": 2, "stride": 2, "dilation": 2, "output_padding": 1},
    {"kernel_size": 2, "stride": 3, "groups": 2, "output_padding": 2},
)
CONVOLUTIONS: tuple[dict[str, Any], ...] = (
    {"kernel_size": 3, "padding": "same"},
    {"kernel_size": 4, "padding": "same", "dilation": 1},
    {"kernel_size": 3, "padding": "valid", "stride": 2},
    {"kernel_size": 3, "padding": 1, "groups": 2, "dilation": 2},
    *({"kernel_size": 3, "padding": 1, "padding_mode": mode} for mode in ("circular", "reflect", "replicate")),
)


def _convolutions() -> Iterator[Row]:
    for rank, x in BY_RANK.items():
        for options in CONVOLUTIONS:
            yield _conv(f"Conv{rank}d", options, x)
        for options in TRANSPOSED:
            yield _conv(f"ConvTranspose{rank}d", options, x)
    yield _conv("Conv2d", CONVOLUTIONS[0], FREE)
    yield _conv("ConvTranspose2d", TRANSPOSED[1], FREE)
    yield f("conv2d with a kernel of the input", lambda x, k: F.conv2d(x, k, padding=1), FREE, t(3, 2, 3, 3))
    yield f("conv2d without batch", lambda x, k: F.conv2d(x, k), t(2, 6, 6), t(3, 2, 3, 3))
    yield f("depthwise by groups of the batch", lambda x, k: F.conv2d(x, k, groups=4), t("n", 4, 6, 6), t(4, 1, 3, 3))


def _conv(kind: str, options: dict[str, Any], x: Any, **more: Any) -> Row:
    name = f"{kind} [{','.join(map(str, x.shape))}] {_options(options)}"
    return m(name, lambda: getattr(nn, kind)(2, 4, **options), x, **more)


def _pads() -> Iterator[Row]:
    for mode in ("circular", "reflect", "replicate"):
        for rank, x in BY_RANK.items():
            yield f(f"pad {rank}-D {mode}", lambda x, p=(2, 1) * rank, m=mode: F.pad(x, p, m), x)
        yield f(f"pad free {mode}", lambda x, m=mode: F.pad(x, (1, 2, 0, 3), m), FREE)
        yield f(f"pad free and cropped {mode}", lambda x, m=mode: F.pad(x, (-1, 2, 1, -1), m), FREE)
    yield f("pad constant", lambda x: F.pad(x, (1, 2, 0, 3), value=0.5), FREE)
    yield f("pad constant, cropped", lambda x: F.pad(x, (-1, 2, 1, -2)), FREE)
    yield f("pad of ints", lambda x: F.pad(x, (1, 2), value=7), i("n", 3))


def _normalisations() -> Iterator[Row]:
    yield m("GroupNorm", lambda: nn.GroupNorm(2, 4), t("n", 4, "h", "w"))
    yield m("GroupNorm without affine", lambda: nn.GroupNorm(4, 4, affine=False), t("n", 4, 5))
    for rank, x in BY_RANK.items():
        yield m(f"InstanceNorm{rank}d", lambda r=rank: getattr(nn, f"InstanceNorm{r}d")(2, affine=True), x)
        yield m(f"BatchNorm{rank}d", lambda r=rank: getattr(nn, f"BatchNorm{r}d")(2).eval(), x)
    yield m("InstanceNorm2d tracked", lambda: nn.InstanceNorm2d(2, track_running_stats=True).eval(), FREE)
    yield m("BatchNorm2d without affine", lambda: nn.BatchNorm2d(2, affine=False).eval(), FREE)
    yield m("BatchNorm2d without statistics", lambda: nn.BatchNorm2d(2, track_running_stats=False).eval(), FREE)
    yield m("LocalResponseNorm", lambda: nn.LocalResponseNorm(3), t("n", 4, "h", "w"))
    yield m("RMSNorm", lambda: nn.RMSNorm(5), t("n", "s", 5))
    yield m("RMSNorm of two dims", lambda: nn.RMSNorm((4, 5), eps=1e-3, elementwise_affine=False), t("n", 4, 5))
    yield m("LayerNorm", lambda: nn.LayerNorm((4, 5)), t("n", 4, 5))
    yield m("LayerNorm without bias", lambda: nn.LayerNorm(5, bias=False), t("n", "s", 5))
    yield m("Softmax2d", nn.Softmax2d, FREE)
    yield f("normalize", lambda x: F.normalize(x, p=3.0, dim=1), FREE)
    yield m("weight_norm", lambda: nn.utils.parametrizations.weight_norm(nn.Conv2d(2, 3, 3)), FREE)
    yield m("spectral_norm", lambda: nn.utils.parametrizations.spectral_norm(nn.Linear(8, 3)).eval(), t("n", 8))


def _foldings() -> Iterator[Row]:
    yield f("unfold", lambda x: F.unfold(x, (2, 3), dilation=2, padding=1, stride=2), IMAGE)
    yield f("unfold of free size", lambda x: F.unfold(x, 3, padding=1), FREE)
    yield f("fold", lambda x: F.fold(x, (6, 8), (2, 3), padding=1, stride=2), t("n", 12, 16))
    yield f("fold without overlap", lambda x: F.fold(x, (6, 8), 2, stride=2), t("n", 8, 12))
    yield f("Tensor.unfold", lambda x: x.unfold(2, 3, 2).unfold(3, 2, 2), IMAGE)
    yield f("Tensor.unfold of free size", lambda x: x.unfold(2, 3, 1), FREE)
    yield f("patches of free size", lambda x: x.unfold(3, 2, 2), FREE)
    yield f("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), t("n", 8, "h", "w"))
    yield f("pixel_unshuffle", lambda x: F.pixel_unshuffle(x, 2), IMAGE)
    yield f("channel_shuffle", lambda x: F.channel_shuffle(x, 2), t("n", 4, "h", "w"))
    yield f("rot90", lambda x: torch.rot90(x, 1, (2, 3)), FREE)
    yield f("upsample module", nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True), FREE)


def _unpoolings() -> Iterator[Row]:
    for rank, x in BY_RANK.items():
        yield m(f"MaxUnpool{rank}d", lambda r=rank: Unpooled(r, kernel_size=2), x)
    yield m("MaxUnpool2d with padding", lambda: Unpooled(2, kernel_size=3, stride=2, padding=1), IMAGE)
    yield m("MaxUnpool2d of free size", lambda: Unpooled(2, kernel_size=2), FREE)


ROWS = (
    *_interpolations(),
    *_samplings(),
    *(_pool(kind, options, BY_RANK[int(kind.__name__[-2])]) for kind, options in POOLS),
    *(_pool(kind, options, FREE) for kind, options in FREE_POOLS),
    *_unpoolings(),
    *_convolutions(),
    *_pads(),
    *_normalisations(),
    *_foldings(),
)
