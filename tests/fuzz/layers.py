"""Layers with weights: made when they are first used, and used again by later statements, or with tied weights."""

from __future__ import annotations

import torch

from tests.fuzz.scope import Scope, Value

_LAYERS = {
    "lin": "nn.Linear({k}, {j})",
    "free": "nn.Linear({k}, {j}, bias=False)",
    "norm": "nn.LayerNorm({k}, eps=0.1)",
    "block": "nn.Sequential(nn.Linear({k}, {j}), nn.Tanh(), nn.Linear({j}, {k}))",
    "w": "nn.Parameter(torch.randn({k}, {j}) * 0.5)",
    "batch": "nn.BatchNorm1d({k}, eps=0.1)",
    "conv": "nn.Conv1d({k}, {j}, 3, padding=1)",
    "table": "nn.Embedding({k}, {j})",
}


def layer(scope: Scope) -> Value | None:
    """A layer applied: an existing or a new one."""
    kind = scope.choose(("lin", "lin", "w", "norm", "block", "free", "batch", "conv", "table"))
    x = scope.pick(lambda v, t: _accepts(kind, v, t, scope))
    if x is None:
        return None
    k = scope.static(x, 1 if kind == "conv" else -1) if kind != "table" else 7
    known = [name for name in _made(scope) if name.startswith(f"{kind}_{k}_")]
    name = scope.choose(known) if known and scope.maybe(2) else _new(scope, kind, k)
    argument = f"{x.text} % 7" if kind == "table" else x.text
    text = f"{x.text} @ self.{name}" if kind == "w" else f"self.{name}({argument})"
    return scope.assign(scope.choose((text, f"torch.tanh({text})", text)))


def _accepts(kind: str, v: Value, t: torch.Tensor, scope: Scope) -> bool:
    if kind == "table":
        return t.dtype == torch.int64
    ranks = {"conv": (3,), "batch": (2,)}.get(kind, (1, 2, 3, 4))
    if t.dtype != torch.float32 or t.dim() not in ranks:
        return False
    return bool(scope.static(v, 1 if kind == "conv" else -1))


def _new(scope: Scope, kind: str, k: int | None) -> str:
    j = scope.choose((3, 4, 2))
    twins = [name for name in _made(scope) if name.startswith(f"{kind}_{k}_{j}_")]
    name = scope.name(f"{kind}_{k}_{j}_")
    scope.add_setup(f"self.{name} = {_LAYERS[kind].format(k=k, j=j)}")
    scope.module.eval()
    if kind in ("lin", "free", "table") and twins and scope.maybe(2):
        scope.add_setup(f"self.{name}.weight = self.{scope.choose(twins)}.weight")
    return name


def _made(scope: Scope) -> list[str]:
    """The names of the layers and weights there are."""
    return [name for name, _ in (*scope.module.named_children(), *scope.module.named_parameters(recurse=False))]
