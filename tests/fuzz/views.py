"""Expressions that return views, or look as if they did."""

from __future__ import annotations

from tests.fuzz.scope import Scope, Value, elements

SHIFTED = (
    *(
        "{x}[1:]",
        "{x}[:-1]",
        "{x}[..., 0]",
        "{x}[0]",
        "{x}[-1]",
        "{x}[::2]",
        "{x}[:, 0]",
        "{x}[:, 1:]",
        "{x}[..., ::2]",
    ),
    *(
        "{x}[: {x}.shape[0] // 2]",
        "{x}[{x}.shape[0] // 2 :]",
        "{x}[:, : {x}.shape[1] // 2]",
        "{x}[None]",
        "{x}[:, None]",
    ),
    *("{x}[-2:]", "{x}.narrow(0, 0, 1)", "{x}.select(-1, 0)", "{x}[..., :1]", "{x}.diagonal()"),
    *("{x}.split([1, {x}.shape[-1] - 1], -1)[1]", "{x}.split([2, {x}.shape[0] - 2])[0]"),
)
PARTED = (
    "{x}.chunk(2, {d})[0]",
    "{x}.unbind({d})[0]",
    "{x}.split(1, {d})[0]",
    "{x}.unbind({d})[-1]",
    "{x}.split(2, {d})[-1]",
)
"""Of dims that do not vary: torch.export takes a number of parts to be one number."""

TURNED = (
    *("{x}.transpose(0, -1)", "{x}.mT", "{x}.T", "{x}.permute(*range({x}.dim() - 1, -1, -1))", "{x}.movedim(0, -1)"),
    *(
        "{x}.transpose(0, 1)",
        "{x}.unsqueeze(0)",
        "{x}.unsqueeze(-1)",
        "{x}.squeeze()",
        "{x}.squeeze(0)",
        "{x}.squeeze(-1)",
    ),
)
RESHAPED = (
    *(
        "{x}.flatten()",
        "{x}.flatten(0, 1)",
        "{x}.reshape(-1)",
        "{x}.view(-1)",
        "{x}.view({x}.shape)",
        "{x}.reshape(-1, 2)",
    ),
    *("{x}.reshape({x}.shape[0], -1)", "{x}.view({x}.shape[-1], -1)", "{x}.flatten(1)", "{x}.unflatten(-1, (-1, 1))"),
    *(
        "{x}.reshape(2, -1)",
        "{x}.view(-1, {x}.shape[-1])",
        "{x}.view(1, *{x}.shape)",
        "{x}.ravel()",
        "{x}.view_as({x})",
    ),
)
SPREAD = (
    *(
        "{x}.expand(2, *{x}.shape)",
        "{x}.unsqueeze(0).expand(3, *(-1,) * {x}.dim())",
        "{x}.repeat(2, *(1,) * ({x}.dim() - 1))",
    ),
    *(
        "F.pad({x}, (1, 0))",
        "F.pad({x}, (0, 2), value=0.5)",
        "{x}.roll(1, 0)",
        "{x}.flip(-1)",
        "{x}.tril()",
        "{x}.tile(2)",
    ),
    *("torch.repeat_interleave({x}, 2, dim=0)", "F.pad({x}, (-1, 1))"),
)


def view(scope: Scope) -> Value | None:
    """A slice, a transpose, a reshape, or an expansion."""
    x = scope.pick(lambda v, t: t.dim() > 0)
    if x is None:
        return None
    still = [d for d in range(scope.tensor(x).dim()) if scope.static(x, d)]
    texts = scope.choose((SHIFTED, TURNED, RESHAPED, SPREAD, *([PARTED] if still else [])))
    text = scope.choose(texts).format(x=x.text, d=scope.choose(still or (0,)))
    return scope.assign(text, exact=scope.is_exact(x))


def like(scope: Scope) -> Value | None:
    """A reshape or expansion to the shape of another tensor."""
    x = scope.pick(lambda v, t: t.dim() > 0)
    if x is None:
        return None
    count = elements(scope.dims(x))
    y = scope.pick(lambda v, t: t.dim() > 0 and elements(scope.dims(v)) == count and scope.dims(v) != scope.dims(x))
    z = scope.pick(lambda v, t: t.dim() >= scope.tensor(x).dim())
    texts = [f"{x.text}.reshape({y.text}.shape)", f"{x.text}.view({y.text}.shape)"] if y else []
    texts += [f"{x.text}.expand({z.text}.shape)", f"{x.text}.expand_as({z.text})"] if z else []
    return scope.assign(scope.choose(texts), exact=scope.is_exact(x)) if texts else None
