"""Expressions that compute: each function adds one to the scope, or returns None if the scope has no operands for
it."""

from __future__ import annotations

from typing import Any

import torch

from tests.fuzz.scope import Scope, Value, broadcasts, same

ROUNDING = (
    *("torch.tanh({x})", "torch.sigmoid({x})", "torch.sin({x})", "torch.cos({x})", "torch.exp(-{x}.abs())"),
    *("F.gelu({x})", "F.silu({x})", "torch.erf({x})", "torch.log1p({x}.abs())", "({x}.abs() + 0.1).sqrt()"),
    *("{x} + 0.3", "1 - {x}", "{x} / 3", "{x} ** 2 * 0.1", "F.softplus({x})", "torch.rsqrt({x} * {x} + 1)"),
    *("torch.atan({x})", "{x}.pow(3) * 0.01", "F.dropout({x}, 0.5, False) / 3", "F.leaky_relu({x})", "F.elu({x})"),
    *("{x} / ({x}.abs() + 1)", "torch.addcmul({x}, {x}, {x}, value=0.1)", "F.hardswish({x})", "{x}.mul(0.3).add_(1)"),
)
"""Functions of a float tensor that round. ``{x}`` is the tensor."""

EXACT = (
    *("-{x}", "{x}.abs()", "torch.relu({x})", "{x}.clamp(-1, 1)", "{x} * 0.5", "{x}.clone()", "-{x}.contiguous()"),
    *("{x}.detach()", "{x}.clamp(min=0.0)", "torch.zeros_like({x})", "torch.ones_like({x})", "F.relu6({x})"),
    *("{x}.neg().relu_()", "torch.full_like({x}, 0.5)", "{x}.to({x}.dtype).neg()", "torch.where({x} == {x}, {x}, 0.0)"),
)
"""Functions of a float tensor that are exact, if it is."""

INTEGER = (
    *("-{x}", "{x}.abs()", "{x} + 1", "{x} * 2", "{x} % 3", "{x} // 2", "{x}.clamp(-3, 3)", "{x} ^ 1", "1 - {x}"),
    *("{x}.clone()", "{x}.float()", "{x} / 4", "{x}.to(torch.float32) * 0.25", "{x}.bool()", "{x} * 0.5", "{x}.sign()"),
    *("torch.zeros_like({x})", "{x}.to(torch.int32)", "{x} + True", "{x}.float().relu()", "torch.ones_like({x})"),
)
"""Functions of an integer tensor; results are integers, bools, or floats without rounding."""

LOGICAL = (
    *("~{x}", "{x}.logical_not()", "{x}.float()", "{x}.long()", "{x} * 2", "{x} + {x}", "{x}.int()"),
    *("torch.zeros_like({x})", "{x}.clone()", "{x} * 0.5", "{x} | True"),
)
"""Functions of a bool tensor."""

BINARY = (
    *("{x} + {y}", "{x} * {y}", "{x} - {y}", "torch.maximum({x}, {y})", "torch.add({x}, {y}, alpha=2)", "{y} - {x}"),
    *("torch.minimum({x}, {y})", "{x} / ({y}.abs() + 1)", "{x} + {y}", "{x} * {y}"),
)
COMPARISONS = ("{x} > {y}", "{x} == {y}", "{x} <= {y}", "{x} != {y}", "torch.logical_or({x} > 0, {y} > 0)")
REDUCTIONS = ("sum", "mean", "amax", "amin", "logsumexp", "softmax", "cumsum", "log_softmax", "var", "prod")
INT_REDUCTIONS = ("sum", "amax", "amin", "cumsum")


def is_float(value: Value, tensor: torch.Tensor) -> bool:
    """float32 or float16."""
    return tensor.is_floating_point()


def is_bool(value: Value, tensor: torch.Tensor) -> bool:
    """bool."""
    return tensor.dtype == torch.bool


def anything(value: Value, tensor: torch.Tensor) -> bool:
    """Any value."""
    return True


def unary(scope: Scope) -> Value | None:
    """A function of one tensor."""
    x = scope.pick(anything, loose=True)
    if x is None:
        return None
    exact = not scope.tensor(x).is_floating_point() or (scope.is_exact(x) and scope.maybe(3))
    return scope.assign(scope.choose(_functions(scope, x, exact)).format(x=x.text), exact=exact, loose=x.loose)


def _functions(scope: Scope, x: Value, exact: bool) -> tuple[str, ...]:
    tensor = scope.tensor(x)
    if tensor.is_floating_point():
        return EXACT if exact or scope.maybe(5) else ROUNDING
    return LOGICAL if tensor.dtype == torch.bool else INTEGER


def binary(scope: Scope) -> Value | None:
    """A function of two tensors that broadcast; float with int and bool as well."""
    x = scope.pick(lambda v, t: t.dtype != torch.bool)
    y = x and scope.pick(lambda v, t: t.dtype != torch.bool and _fits(scope, v, x))
    return x and y and scope.assign(scope.choose(BINARY).format(x=x.text, y=y.text), exact=False)


def compare(scope: Scope) -> Value | None:
    """A comparison (greater, equal, …) of exact values only."""
    x = scope.pick(lambda v, t: t.dtype != torch.bool and scope.is_exact(v))
    if x is None:
        return None
    dtype = scope.tensor(x).dtype
    y = scope.pick(lambda v, t: t.dtype == dtype and scope.is_exact(v) and _fits(scope, v, x))
    if y is None or scope.maybe(2):
        return scope.assign(scope.choose(COMPARISONS[:-1]).format(x=x.text, y="0"))
    return scope.assign(scope.choose(COMPARISONS).format(x=x.text, y=y.text))


def _fits(scope: Scope, a: Value, b: Value) -> bool:
    return broadcasts(scope.dims(a), scope.dims(b))


def where(scope: Scope) -> Value | None:
    """A choice by a mask."""
    mask = scope.pick(is_bool)
    x = mask and scope.pick(lambda v, t: _fits(scope, v, mask))
    if mask is None or x is None:
        return None
    y = scope.pick(lambda v, t: _fits(scope, v, x) and _fits(scope, v, mask)) or x
    texts = (f"torch.where({mask.text}, {x.text}, {y.text})", f"torch.where({mask.text}, {x.text}, 0.5)")
    text = scope.choose((*texts, f"{x.text}.masked_fill({mask.text}, 1)"))
    return scope.assign(text, exact=scope.is_exact(x) and scope.is_exact(y))


def reduce(scope: Scope) -> Value | None:
    """A reduction of one dim or of all, a softmax or a cumulative sum."""
    x = scope.pick(lambda v, t: t.dim() > 0)
    if x is None:
        return None
    tensor = scope.tensor(x)
    dim = scope.choose(range(-tensor.dim(), tensor.dim()))
    if tensor.dtype == torch.bool:
        return scope.assign(f"{x.text}.{scope.choose(('any', 'all', 'sum'))}({scope.choose((dim, ''))})")
    if not tensor.is_floating_point():
        return scope.assign(f"{x.text}.{scope.choose(INT_REDUCTIONS)}({dim})")
    kind = scope.choose(REDUCTIONS)
    keep = scope.choose(("", ", keepdim=True")) if kind not in ("softmax", "cumsum", "log_softmax", "prod") else ""
    exact = kind in ("amax", "amin") and scope.is_exact(x)
    if kind in ("sum", "mean") and scope.maybe(3):
        return scope.assign(f"{x.text}.{kind}()")
    return scope.assign(f"{x.text}.{kind}({dim}{keep})", exact=exact)


ROWS = ("{x}[:1]", "{x}[..., :1, :]", "{x}[..., :1]", "{x}.amax(0, keepdim=True)", "{x}.narrow(-2, 0, 1)")
"""Fewer of a tensor's elements, which broadcast to all of them."""

NORMS = (
    *("{x}.softmax(-1)", "{x} / ({x}.abs().sum(-1, keepdim=True) + 1)", "F.normalize({x}, dim=-1, eps=0.1)"),
    *("{x} - {x}.mean(-1, keepdim=True)", "{x} / ({x}.std(-1, keepdim=True, correction=0) + 1)", "{x}.softmax(-2)"),
    *("F.layer_norm({x}, {x}.shape[-1:], eps=0.1)", "torch.tanh({x}) / (torch.tanh({x}).amax(-1, keepdim=True) + 2)"),
    *("torch.tanh({x}.sigmoid()) / ({x}.sigmoid().amax(-1, keepdim=True) + 1)", "{x}.softmax(-1).tril()"),
)
"""Functions that reduce a tensor, and return as many elements."""


def row(scope: Scope) -> Value | None:
    """A normalized row, or what it is made of, beside the tensor that it is a row of."""
    x = scope.pick(lambda v, t: is_float(v, t) and t.dim() >= 2)
    if x is None:
        return None
    made = scope.assign(scope.choose(NORMS).format(x=scope.choose(ROWS).format(x=x.text)))
    return made and scope.assign(scope.choose(("{x} * {y}", "{x} + {y}", "{y} - {x}")).format(x=x.text, y=made.text))


def order(scope: Scope) -> Value | None:
    """Sorting, the largest, the index of the largest: of exact values only."""
    x = scope.pick(lambda v, t: t.dim() > 0 and t.dtype != torch.bool and scope.is_exact(v))
    if x is None:
        return None
    dim = scope.choose(range(scope.tensor(x).dim()))
    how = ("sort({d}).values", "sort({d}, descending=True)[0]", "topk(1, {d})[0]", "max({d}).values", "flip({d})")
    return scope.assign(f"{x.text}.{scope.choose(how).format(d=dim)}", exact=True)


def product(scope: Scope) -> Value | None:
    """A product of matrices."""
    x = scope.pick(lambda v, t: is_float(v, t) and t.dim() >= 2)
    if x is None:
        return None
    dims = scope.dims(x)
    y = scope.pick(lambda v, t: is_float(v, t) and t.dim() >= 2 and scope.dims(v)[-1] == dims[-1])
    z = scope.pick(lambda v, t: is_float(v, t) and t.dim() in (1, 2) and scope.dims(v)[0] == dims[-1])
    texts = [f"{x.text} @ {x.text}.mT"]
    texts += [f"torch.matmul({x.text}, {y.text}.transpose(-1, -2))"] if y else []
    texts += [f"{x.text} @ {z.text}"] if z else []
    return scope.assign(f"{scope.choose(texts)} * 0.25")


def index(scope: Scope) -> Value | None:
    """Elements by the indices that an integer tensor holds."""
    indices = scope.pick(lambda v, t: t.dtype == torch.int64 and t.dim() in (1, 2))
    x = indices and scope.pick(lambda v, t: t.dim() > 0 and scope.static(v, 0) is not None)
    if indices is None or x is None:
        return None
    size = scope.static(x, 0)
    inside = f"{indices.text} % {size}"
    how = ("{x}[{i}]", "F.embedding({i}, {x})", "{x}.index_select(0, ({i}).flatten())", "torch.take({x}, {i})")
    text = scope.choose(how[: 3 if scope.tensor(x).dim() == 2 else 1] + how[2:3]).format(x=x.text, i=inside)
    return scope.assign(text, exact=scope.is_exact(x))


def join(scope: Scope) -> Value | None:
    """Tensors concatenated or stacked: 2 * n, n + 3."""
    x = scope.pick(lambda v, t: t.dim() > 0)
    if x is None:
        return None
    dim = scope.choose(range(scope.tensor(x).dim()))

    def fits(v: Value, t: torch.Tensor) -> bool:
        a, b = scope.dims(v), scope.dims(x)
        return len(a) == len(b) and t.dtype == scope.tensor(x).dtype and same(a[:dim] + a[dim + 1 :], _less(b, dim))

    y = scope.pick(fits) or x
    exact = scope.is_exact(x) and scope.is_exact(y)
    if scope.maybe(4) and same(scope.dims(x), scope.dims(y)):
        return scope.assign(f"torch.stack([{x.text}, {y.text}], {dim})", exact=exact)
    return scope.assign(
        f"torch.cat([{x.text}, {y.text}], {scope.choose((dim, dim - len(scope.dims(x))))})", exact=exact
    )


def _less(dims: Any, dim: int) -> Any:
    return dims[:dim] + dims[dim + 1 :]


def size(scope: Scope) -> Value | None:
    """A number that depends on sizes, and tensors made from numbers."""
    x = scope.pick(lambda v, t: t.dim() > 0)
    if x is None:
        return None
    if not scope.ints or scope.maybe(2):
        how = (
            *("{x}.shape[{d}]", "{x}.shape[{d}] * 2", "{x}.size({d}) + 1", "{x}.shape[{d}] // 2 + 1", "{x}.numel()"),
            *("torch.tensor({x}.shape[{d}]).item()", "(torch.tensor({x}.shape[{d}]) // 2 + 1).item()"),
        )
        name = scope.name("s")
        text = scope.choose(how).format(x=x.text, d=scope.choose(range(scope.tensor(x).dim())))
        if scope.execute(f"{name} = {text}"):
            scope.ints.append(name)
        return None
    n, m = scope.choose(scope.ints), scope.choose(scope.ints)
    made = (
        *(f"torch.zeros({n}, 3)", f"torch.full(({n},), 0.5)", f"torch.arange({n})", f"torch.ones(2, {n})"),
        *(
            f"torch.arange({n}, dtype=torch.float32)",
            f"torch.full(({n}, {m}), 2)",
            f"torch.zeros(({n},), dtype=torch.bool)",
        ),
    )
    used = (f"{x.text} * {n} * 0.1", f"{x.text} / ({n} + {m})", f"{x.text} + {n} / {m}")
    return scope.assign(scope.choose((*made, *used)), exact=False)


def loose(scope: Scope) -> Value | None:
    """Elements chosen by a mask: their number depends on the data."""
    if not scope.maybe(3):
        return None
    mask = scope.pick(lambda v, t: t.dtype == torch.bool and t.dim() > 0)
    x = mask and scope.pick(lambda v, t: same(scope.dims(v)[: len(scope.dims(mask))], scope.dims(mask)))
    if mask is None:
        return None
    made = scope.assign(scope.choose((f"{(x or mask).text}[{mask.text}]", f"torch.nonzero({mask.text})")), loose=True)
    if made is None or scope.maybe(3):
        return made
    return scope.assign(f"{made.text}.sum({scope.choose(('', '0'))})")


def branch(scope: Scope) -> Value | None:
    """One of two functions of a value, chosen by exact data. Rare, since eager PyTorch takes a second to compile it."""
    if not scope.maybe(25):
        return None
    x = scope.pick(is_float)
    by = scope.pick(lambda v, t: t.dtype != torch.bool and scope.is_exact(v))
    if x is None or by is None:
        return None
    ways = [scope.choose(("t * 0.5", "torch.tanh(t)", "t + 1", "t.abs() - 1", "torch.zeros_like(t)")) for _ in range(2)]
    made = ", ".join(f"lambda t: ({way},)" for way in ways)
    return scope.assign(f"cond({by.text}.sum() > 0, {made}, ({x.text},))[0]")


def scalar(scope: Scope) -> Value | None:
    """Python values among the inputs, used."""
    x = scope.pick(lambda v, t: t.dtype != torch.bool)
    world = scope.worlds[0]
    texts = [f"{{x}} * {name}" for name in ("k", "flag") if name in world]
    texts += ["{x} + 1 if flag else {x} * 0.5"] if "flag" in world else []
    texts += ["{x} if none is None else {x} + 1"] if "none" in world else []
    return scope.assign(scope.choose(texts).format(x=x.text)) if x and texts else None


def constant(scope: Scope) -> Value | None:
    """A tensor written out in the program."""
    return scope.assign(scope.choose(("torch.tensor([1.0, -2.0])", "torch.tensor(3)", "torch.tensor([[0, 2, 1]])")))
