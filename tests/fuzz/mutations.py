"""Statements that write: to local values, to inputs, to buffers, and to views of them."""

from __future__ import annotations

import re
from typing import Any

import torch

from tests.fuzz.scope import Scope, Value, broadcasts

IN_PLACE = (
    *(
        "{x}.mul_(0.5)",
        "{x}.add_(1)",
        "{x}.tanh_()",
        "{x}.relu_()",
        "{x}.zero_()",
        "{x}.fill_(0.25)",
        "{x}.clamp_(-1, 1)",
    ),
    *("{x}.neg_()", "{x}[0] = 1.0", "{x}[..., -1] = 0.5", "{x}[1:].mul_(0.5)", "{x}[:, 0].add_(1)", "{x}.sigmoid_()"),
    *("{x}.transpose(0, 1)[0].mul_(2)", "{x}.view(-1)[0] = 0.5", "{x}[: {x}.shape[0] // 2] = 0.0", "{x}[:, 1:] *= 0.5"),
    *("{x}.unsqueeze(0).sub_(0.5)", "F.relu({x}, inplace=True)", "{x}[0].zero_()", "{x}.diagonal().fill_(1.0)"),
    *("{x}[::2].add_(1)", "{x}.narrow(-1, 0, 1).exp_().clamp_(max=2)", "{x}.select(0, -1).copy_({x}.select(0, 0))"),
)
IN_PLACE_INT = (
    *(
        "{x}.add_(1)",
        "{x}.mul_(2)",
        "{x}.zero_()",
        "{x}[0] = 1",
        "{x}.neg_()",
        "{x}.clamp_(0, 5)",
        "{x}[..., 0].add_(2)",
    ),
    *("{x}.remainder_(3)", "{x} += 1", "{x}.bitwise_xor_(1)", "{x}.fill_(2)"),
)
IN_PLACE_BOOL = ("{x}.logical_not_()", "{x}.fill_(True)", "{x}[0] = False", "{x}.zero_()")
WITH_OTHER = (
    *("{x}.add_({y})", "{x}.mul_({y})", "{x}.copy_({y})", "{x}.sub_({y}, alpha=2)", "{x}[:] = {y}", "{x} += {y}"),
    *("{x}.copy_({y} * 2)", "torch.add({x}, {y}, out={x})", "{x}.lerp_({y}, 0.5)", "{x}.data.copy_({y})"),
)
MASKED = ("{x}[{m}] = 0.5", "{x}.masked_fill_({m}, 0)", "{x}[{m}] *= 2", "{x}.masked_fill_(~{m}, 1)")


def _writable(scope: Scope) -> Value | None:
    return scope.pick(lambda v, t: not v.fixed)


def mutate(scope: Scope) -> object:
    """A value changed in place."""
    x = _writable(scope)
    if x is None:
        return None
    tensor = scope.tensor(x)
    texts = IN_PLACE if tensor.is_floating_point() else IN_PLACE_BOOL if tensor.dtype == torch.bool else IN_PLACE_INT
    return scope.write(x, scope.choose(texts).format(x=x.text), exact=False)


def update(scope: Scope) -> Any:
    """A value changed in place by another."""
    x = _writable(scope)
    y = x and scope.pick(lambda v, t: v is not x and broadcasts(scope.dims(v), scope.dims(x)))
    if x is None or y is None or not scope.is_apart(y, x):
        return None
    text = scope.choose(tuple(t for t in WITH_OTHER if "out=" not in t and ".data" not in t))
    if not scope.tensor(x).is_floating_point():
        text = scope.choose(("{x}.add_({y})", "{x}.copy_({y})", "{x}[:] = {y}"))
        if not scope.is_exact(y):
            return None
    return scope.write(x, text.format(x=x.text, y=y.text), exact=scope.is_exact(x) and scope.is_exact(y))


def masked(scope: Scope) -> object:
    """Elements overwritten where a mask says so."""
    mask = scope.pick(lambda v, t: t.dtype == torch.bool and t.dim() > 0)
    x = mask and scope.pick(lambda v, t: t.is_floating_point() and not v.fixed and scope.dims(v) == scope.dims(mask))
    return x and mask and scope.write(x, scope.choose(MASKED).format(x=x.text, m=mask.text), exact=scope.is_exact(x))


COPIES = ("{x}.clone()", "{x}.clone().view(-1)", "{x}.clone().mT", "{x}.clone()[1:]", "{x} + 0")


def copied(scope: Scope) -> Any:
    """A copy of an input, a buffer or another value, or a view of a copy; then the original changes, if it may."""
    given = scope.pick(lambda v, t: not re.fullmatch(r"v\d+", v.text))
    x = given if scope.maybe(2) else _writable(scope)
    copy = x and scope.assign(scope.choose(COPIES).format(x=x.text), exact=scope.is_exact(x))
    if x is None or copy is None:
        return None
    scope.kept.append(copy.text)
    text = "{x}.logical_not_()" if scope.tensor(x).dtype == torch.bool else "{x}.add_(1)"
    return scope.write(x, text.format(x=x.text), exact=False)


def cache(scope: Scope) -> object:
    """Rows of a buffer overwritten, as many as the input has."""
    rows = scope.pick(lambda v, t: v.text.startswith("self.cache"))
    x = rows and scope.pick(
        lambda v, t: t.is_floating_point() and t.dim() == 2 and scope.dims(v)[1] == scope.dims(rows)[1]
    )
    if rows is None or x is None:
        return None
    part = f"{rows.text}[: {x.text}.shape[0]]"
    scope.write(rows, scope.choose((f"{part} = {x.text}", f"{part}.add_({x.text})")), exact=False)
    return scope.assign(scope.choose((part, f"{part} * 0.5", f"{rows.text}.sum(0)")))


def keys(scope: Scope) -> object:
    """Tokens kept in a buffer, at their places or after those of earlier calls, and attention to all that it holds."""
    x = scope.pick(lambda v, t: t.dtype == torch.float32 and t.dim() == 3 and bool(scope.static(v, 2)))
    if x is None:
        return None
    width = scope.static(x, 2)
    name = f"self.{scope.name('keys')}"
    scope.add_setup(f"self.register_buffer({name[5:]!r}, torch.zeros({max(scope.dims(x)[0])}, 16, {width}))")
    held = Value(name, moving=True)
    scope.values.append(held)
    n, t = f"{x.text}.shape[0]", f"{x.text}.shape[1]"
    where = scope.choose((f"[: {n}, : {t}]", f"[: {n}, 16 - {t} :]", f"[: {n}]"))
    written = scope.choose(KEPT if where != f"[: {n}]" else ROLLED)
    scope.write(held, written.format(k=name, p=f"{name}{where}", x=x.text, n=n, t=t), exact=False)
    mask = scope.choose(("", f", attn_mask=(torch.arange(16) < {t}).expand({t}, 16)"))
    return scope.assign(f"F.scaled_dot_product_attention({x.text}, {name}[: {n}], {name}[: {n}]{mask})")


KEPT = ("{p} = {x}", "{p}.copy_({x} * 0.5)", "{p}.add_({x}).clamp_(-2, 2)")
ROLLED = (
    "{p} = torch.cat([{p}[:, {t} :], {x}], 1)",
    "{k}[: {n}].index_copy_(1, torch.arange({t}) * 2, {x})",
    "{k}[: {n}, torch.arange({t})] = {x}",
    "{k}.copy_({k}.roll(1, 1))",
)
