"""Arithmetic, reductions, linear algebra, activations and losses."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.zoo.rows import Row, b, f, i, m, t

X = t("n", 4, 5)
EQUATIONS = {
    "ij,jk->ik": (t("n", 4), t(4, 5)),
    "bij,bjk->bik": (X, t("n", 5, 3)),
    "bqhd,bkhd->bhqk": (t("n", "s", 2, 4), t("n", "s", 2, 4)),
    "bhqk,bkhd->bqhd": (t("n", 2, "s", "s"), t("n", "s", 2, 4)),
    "...i,ij->...j": (X, t(5, 3)),
    "bii->bi": (t("n", 4, 4),),
    "bij->b": (X,),
    "bij->ji": (X,),
    "i,j->ij": (t("n"), t("s")),
    "bi,bj,ij->b": (t("n", 4), t("n", 5), t(4, 5)),
    "nchw,nc->nhw": (t("n", 2, "h", "w"), t("n", 2)),
    "bhwc,hkc->bhwk": (t("n", 4, 5, 3), t(4, 6, 3)),
}


def _algebra() -> Iterator[Row]:
    yield from (
        f(f"einsum {equation}", lambda *xs, e=equation: torch.einsum(e, *xs), *xs) for equation, xs in EQUATIONS.items()
    )
    for p in (1.0, 2.0, 3.0, float("inf"), 0.0):
        yield f(f"cdist p={p}", lambda x, y, p=p: torch.cdist(x, y, p), X, t("n", 3, 5))
    yield f("cdist of free counts", lambda x, y: torch.cdist(x, y), t("n", "s", 5), t("n", 3, 5))
    yield f("pdist", lambda x: F.pdist(x), t(4, 5))
    yield f("cross", lambda x, y: torch.cross(x, y, 1), t("n", 3, 5), t("n", 3, 5))
    yield f("linalg.cross broadcast", lambda x, y: torch.linalg.cross(x, y), t("n", 4, 3), t(1, 4, 3))
    yield f("kron", torch.kron, t(3, 3), t(2, 4))
    yield f("trace", torch.trace, t(4, 5))
    yield f("tensordot", lambda x, y: torch.tensordot(x, y, ([2, 1], [0, 1])), X, t(5, 4, 3))
    yield f("tensordot of a free dim", lambda x, y: torch.tensordot(x, y, 1), X, t(5, 3))
    yield f("block_diag", torch.block_diag, t(2, 3), t("n", 2), t(3))
    yield f("cartesian_prod", torch.cartesian_prod, t("n"), t(3))
    yield m("Bilinear", lambda: nn.Bilinear(4, 5, 3), t("n", 4), t("n", 5))
    yield f("cosine_similarity", lambda x, y: F.cosine_similarity(x, y, 1), X, t("n", 4, 5))
    yield f(
        "cosine_similarity broadcast",
        lambda x, y: F.cosine_similarity(x[:, None], y[None], dim=-1),
        t("n", 5),
        t("s", 5),
    )
    yield f("pairwise_distance", lambda x, y: F.pairwise_distance(x, y, 3.0), t("n", 5), t("n", 5))
    yield f("outer", torch.outer, t("n"), t(3))
    yield f("dot", torch.dot, t(4), t(4))
    yield f("mv", torch.mv, t("n", 4), t(4))
    yield f("addmm", lambda a, x, y: torch.addmm(a, x, y, beta=0.5, alpha=2), t(5), t("n", 4), t(4, 5))
    yield f("baddbmm", lambda a, x, y: torch.baddbmm(a, x, y, beta=0), t("n", 4, 3), X, t("n", 5, 3))
    yield f("chain_matmul", lambda x, y: torch.linalg.multi_dot([x, y, y.T]), t(3, 4), t(4, 5))
    yield f("matrix_power", lambda x: torch.linalg.matrix_power(x, 3), t("n", 4, 4))
    yield f("matmul of a vector", lambda x, v: x @ v, X, t(5))
    yield f("matmul broadcast", lambda x, y: x @ y, t("n", 1, 4, 5), t(3, 5, 2))
    yield f("vander", lambda x: torch.vander(x, 4), t(3))
    yield f("meshgrid", lambda x, y: torch.meshgrid(x, y, indexing="ij"), t("n"), t(3))


def _reductions() -> Iterator[Row]:
    for name in ("var", "std"):
        for correction in (0, 1, 2):
            yield f(
                f"{name} correction={correction}",
                lambda x, n=name, c=correction: getattr(torch, n)(x, (1, 2), correction=c),
                X,
            )
        yield f(f"{name} of all", lambda x, n=name: getattr(torch, n)(x), X)
    yield f("var of a free dim", lambda x: x.var(1), t(2, "s", 3))
    yield f("var_mean", lambda x: torch.var_mean(x, 1, keepdim=True), X)
    yield f("std_mean", lambda x: torch.std_mean(x, (0, 2), correction=0), X)
    yield f("logsumexp", lambda x: x.logsumexp((1, 2), keepdim=True), X)
    yield f("nansum", lambda x: x.nansum(1), t("n", 4, values="special"))
    yield f("nanmean", lambda x: x.nanmean(1), t("n", 4, values="special"))
    yield f("prod", lambda x: x.prod(1), X)
    yield f("prod of all", lambda x: x.prod(), i("n", 4, values="small"))
    yield f("any and all", lambda x: (x.any(1), x.all()), b("n", 4))
    for order in (0, 1, 2, 3, 0.5, float("inf"), -float("inf"), -1):
        yield f(f"norm {order}", lambda x, p=order: x.norm(p, 1), X)
        yield f(f"linalg.vector_norm {order}", lambda x, p=order: torch.linalg.vector_norm(x, p), X)
    yield f("linalg.matrix_norm fro", torch.linalg.matrix_norm, X)
    for kind in (1, -1, 2, "nuc", float("inf"), -float("inf")):
        yield f(f"linalg.matrix_norm {kind}", lambda x, p=kind: torch.linalg.matrix_norm(x, p), t(2, 4, 5))
    yield f("renorm", lambda x: x.renorm(2, 1, 1.5), X)
    yield f("sum of bools", lambda x: (x > 0).sum(1), X)
    yield f("mean as float32", lambda x: x.mean(1, dtype=torch.float32), X)
    yield f("dist", lambda x, y: torch.dist(x, y, 3), X, t("n", 4, 5))


def _integers() -> Iterator[Row]:
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        yield f(name, lambda x, y, n=name: getattr(torch, n)(x, y), i("n", 4), i(4))
        yield f(f"{name} of bools", lambda x, y, n=name: getattr(torch, n)(x, y), b("n", 4), b(4))
        yield f(f"{name} of a number", lambda x, n=name: getattr(torch, n)(x, 5), i("n", 4, dtype=torch.int32))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        yield f(name, lambda x, y, n=name: getattr(torch, n)(x, y), i("n", 4), i(4, below=5))
        yield f(f"{name} of a number", lambda x, n=name: getattr(torch, n)(x, 2), i("n", 4, dtype=torch.int32))
    yield f("bitwise_not", torch.bitwise_not, i("n", 4))
    yield f("__lshift__", lambda x: (x << 3, x >> 1), i("n", 4))
    yield f("gcd", torch.gcd, i("n", 4), i(4))
    yield f("lcm", torch.lcm, i("n", 4), i(4))
    yield f("floor_divide", lambda x: (x // 3, x % 3, torch.fmod(x, 3)), i("n", 4))
    yield f("remainder of floats", lambda x: (x // 0.7, x % 0.7, torch.fmod(x, 0.7)), t("n", 4))
    yield f("where", lambda c, x: torch.where(c, x, 0.0), b("n", 1), t("n", 4))
    yield f("where of mixed dtypes", lambda c, x, y: torch.where(c, x, y), b("n", 4), t("n", 4), i(4))


def _shapes() -> Iterator[Row]:
    free = t("n", "h", "w")
    yield f("tril", lambda x: x.tril(-1), free)
    yield f("triu", lambda x: x.triu(2), free)
    yield f("tril of a constant", lambda x: x + torch.ones(4, 5).tril(), X)
    yield f("diagonal", lambda x: x.diagonal(1, 1, 2), X)
    yield f("diagonal of a free dim", lambda x: x.diagonal(0, 1, 2), t(2, "s", "s"))
    yield f("diag_embed", lambda x: torch.diag_embed(x, 1), t("n", 4))
    yield f("diag_embed of a free dim", lambda x: torch.diag_embed(x), t(2, "s"))
    yield f("diag", torch.diag, t(4))
    yield f("as_strided", lambda x: x.as_strided((3, 2, 2), (4, 1, 2), 3), t(4, 5))
    yield f("as_strided overlapping", lambda x: x.as_strided((8, 5), (2, 1)), t(20))
    yield f("as_strided of a free dim", lambda x: x.as_strided((x.shape[0], 2, 5), (20, 10, 1), 5), X)
    yield f("as_strided_scatter", lambda x, v: x.as_strided_scatter(v, (3, 2), (4, 1), 3), t(4, 5), t(3, 2))
    yield f("roll", lambda x: x.roll((1, -2), (0, 2)), X)
    yield f("roll flat", lambda x: x.roll(3), X)
    yield f("roll of free dims", lambda x: x.roll((2, -3), (1, 2)), free)
    yield f("flip", lambda x: x.flip(0, 2), free)
    yield f("fliplr", lambda x: (x.fliplr(), x.flipud()), free)
    yield f("movedim", lambda x: x.movedim(0, 2), free)
    yield f("unflatten", lambda x: x.unflatten(1, (2, 2)), X)
    yield f("chunk", lambda x: x.chunk(3, 2), X)
    yield f("split", lambda x: x.split((1, 3), 1), X)
    yield f("tensor_split", lambda x: x.tensor_split(3, 2), X)
    yield f("unbind", lambda x: x.unbind(1), X)
    yield f("tile", lambda x: x.tile(2, 1, 3), X)
    yield f("expand", lambda x: x[:, None].expand(-1, 3, -1, -1), X)
    yield f("stack and cat", lambda x, y: torch.cat([torch.stack([x, x], 1), y[:, None]], 1), X, t("n", 4, 5))
    yield f("hstack", lambda x: torch.hstack([x, x, x[:, :1]]), X)
    yield f("narrow", lambda x: x.narrow(1, 1, 2), X)
    yield f("broadcast_tensors", lambda x, y: torch.broadcast_tensors(x, y), X, t(4, 1))
    yield f("arange of a size", lambda x: torch.arange(x.shape[0]) + x[:, 0, 0], X)
    yield f("linspace", lambda x: x + torch.linspace(0, 1, 5), X)
    yield f("atleast_3d", torch.atleast_3d, t("n"))
    yield f("ravel", torch.ravel, free)
    yield f("polynomial mask", lambda x: torch.arange(x.shape[1])[None] < x.sum((1, 2))[:, None], X)


UNARY = """
    erf erfc erfinv lgamma digamma exp2 expm1 log1p log2 log10 sinc logit sgn sign frac trunc round asinh acosh atanh
    tan rsqrt i0 nan_to_num deg2rad square reciprocal signbit isfinite isneginf special.ndtr special.log_ndtr
    special.ndtri special.entr special.i1
"""
ORDERED = "special.xlog1py special.zeta special.gammaincc"
BINARY = "atan2 hypot logaddexp logaddexp2 xlogy fmax fmin copysign ldexp heaviside nextafter float_power maximum"


def _functions() -> Iterator[Row]:
    low, high = ("uniform", 0.05, 0.95), ("uniform", 1.05, 1.95)
    for name in UNARY.split():
        yield f(name, lambda x, n=name: _found(n)(x), t("n", 4, values=low))
    for name in ORDERED.split():
        yield f(name, lambda x, y, n=name: _found(n)(x, y), t("n", 4, values=high), t(4, values=low))
    for name in BINARY.split():
        yield f(name, lambda x, y, n=name: _found(n)(x, y), t("n", 4, values="positive"), t(4, values="positive"))
    for name in ("lgamma", "digamma", "erfc", "special.erfcx"):
        yield f(f"{name} below 0 too", lambda x, n=name: _found(n)(x), t("n", 7))
    yield f("polygamma", lambda x: torch.polygamma(1, x), t("n", 4, values="positive"))
    yield f("lerp", lambda x, y: torch.lerp(x, y, 0.3), X, t(4, 5))
    yield f("addcdiv", lambda x, y: torch.addcdiv(x, x, y, value=0.5), X, t(5, values="positive"))
    yield f("clamp by tensors", lambda x, y: x.clamp(min=y, max=y + 1), X, t(5))
    yield f("round to decimals", lambda x: x.round(decimals=2), X)
    yield f("angle of reals", torch.angle, X)


def _found(name: str) -> Any:
    at = torch
    for part in name.split("."):
        at = getattr(at, part)
    return at


ACTIVATIONS = """
    ELU SELU CELU GELU Hardshrink Hardsigmoid Hardtanh Hardswish LeakyReLU LogSigmoid Mish PReLU ReLU ReLU6 SiLU
    Sigmoid Softplus Softshrink Softsign Tanh Tanhshrink GLU Softmin LogSoftmax Softmax
"""
POINTWISE = (
    *("MSELoss", "L1Loss", "SmoothL1Loss", "HuberLoss", "KLDivLoss", "PoissonNLLLoss", "BCEWithLogitsLoss"),
    *("SoftMarginLoss", "MultiLabelSoftMarginLoss", "HingeEmbeddingLoss"),
)


def _activations() -> Iterator[Row]:
    for name in ACTIVATIONS.split():
        options = {"dim": -1} if name in ("Softmin", "LogSoftmax", "Softmax") else {}
        yield m(name, lambda n=name, o=options: getattr(nn, n)(**o), t("n", 4, 6))
    yield m("GELU tanh", lambda: nn.GELU("tanh"), X)
    yield m("Threshold", lambda: nn.Threshold(0.1, 2.0), X)
    yield m("PReLU by channel", lambda: nn.PReLU(4), X)
    yield m("RReLU in eval", lambda: nn.RReLU().eval(), X)
    yield m("Dropout in eval", lambda: nn.Sequential(nn.Dropout(), nn.AlphaDropout(), nn.Tanh()).eval(), X)
    yield f("gumbel_softmax", lambda x: F.gumbel_softmax(x), X)
    yield f("softmax as float32", lambda x: x.softmax(1, dtype=torch.float32), t("n", 4, dtype=torch.float16))


def _losses() -> Iterator[Row]:
    for name in POINTWISE:
        for reduction in ("mean", "none") if name == "MSELoss" else ("mean",):
            yield m(
                f"{name} {reduction}",
                lambda n=name, r=reduction: getattr(nn, n)(reduction=r),
                t("n", 5),
                t("n", 5, values="ones"),
            )
    probabilities = t("n", 5, values=("uniform", 0.05, 0.95))
    classes, images = i("n", below=5), i("n", 2, 3, below=5)
    yield m("BCELoss", nn.BCELoss, probabilities, probabilities)
    yield f("CosineEmbeddingLoss", nn.CosineEmbeddingLoss(), t("n", 5), t("n", 5), i("n", values="ones"))
    yield f("MarginRankingLoss", nn.MarginRankingLoss(0.2), t("n"), t("n"), i("n", values="ones"))
    yield m("TripletMarginLoss", nn.TripletMarginLoss, t("n", 5), t("n", 5), t("n", 5))
    yield m("MultiMarginLoss", nn.MultiMarginLoss, t("n", 5), classes)
    yield m("MultiLabelMarginLoss", nn.MultiLabelMarginLoss, t("n", 5), i("n", 5, below=5))
    for reduction in ("mean", "sum", "none"):
        yield m(
            f"CrossEntropyLoss {reduction}", lambda r=reduction: nn.CrossEntropyLoss(reduction=r), t("n", 5), classes
        )
    yield m("CrossEntropyLoss smoothed", lambda: nn.CrossEntropyLoss(label_smoothing=0.1), t("n", 5), classes)
    yield m("CrossEntropyLoss weighted", lambda: nn.CrossEntropyLoss(torch.rand(5), ignore_index=2), t("n", 5), classes)
    yield m("CrossEntropyLoss of images", nn.CrossEntropyLoss, t("n", 5, 2, 3), images)
    yield m("CrossEntropyLoss of probabilities", nn.CrossEntropyLoss, t("n", 5), probabilities)
    yield m("NLLLoss", nn.NLLLoss, t("n", 5), classes)
    yield m("NLLLoss of images", lambda: nn.NLLLoss(torch.rand(5)), t("n", 5, 2, 3), images)


ROWS = (*_algebra(), *_reductions(), *_integers(), *_shapes(), *_functions(), *_activations(), *_losses())
