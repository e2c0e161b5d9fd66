"""What TensorRT makes of our networks: the kernels in the plan of an attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY, kernels, of
from pipeline.stages.improve import Improve
from pipeline.trt import CAPABILITIES

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx" or CAPABILITIES.version_tuple[:2] != (1, 4),
    reason="the plans of TensorRT-RTX 1.4 were looked at; others may say it otherwise",
)


class Attention(nn.Module):
    """Self-attention with a layer each for queries, keys and values, and a bias for the scores."""

    def __init__(self, bias: bool = False) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(128, 128) for _ in range(4))
        self.bias = nn.Parameter(torch.randn(1, 2, 16, 16)) if bias else None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """[N, S, 128], bool [N, 1, 1, S] -> [N, S, 128]"""
        q, k, v = (f(x).view(*x.shape[:-1], 2, 64).transpose(1, 2) for f in (self.q, self.k, self.v))
        bias = self.bias if mask is None else mask
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, bias)
        return self.o(mixed.transpose(1, 2).flatten(2))  # type: ignore[no-any-return]


X = torch.randn(2, 16, 128).half()


def names(model: nn.Module, *args: torch.Tensor, dynamic: Any = None, passes: Any = None, **settings: Any) -> list[str]:
    """The kernels of a model's engine, in order: what is fused in them."""
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,), **settings)
    compile = compile if passes is None else compile.replace("improve", Improve(passes=passes))
    compiled = compile(model.eval().half(), args=args, dynamic_shapes=dynamic)
    return [kernel.name for kernel in of(compiled)]


def attentions(found: list[str]) -> list[str]:
    return [name for name in found if "_mha" in name]


def test_an_attention_is_five_kernels() -> None:
    """A product, queries, keys and values brought into order, the attention, the order after it, and a product."""
    x = X[:1]
    assert len(names(Attention(), x)) == 5
    assert len(names(Attention(), x, passes=())) == 7


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize("masked", [False, True], ids=["plain", "masked"])
def test_an_attention_is_one_kernel(masked: bool, dynamic: bool) -> None:
    args = (X, torch.ones(2, 1, 1, 16, dtype=torch.bool)) if masked else (X,)
    batch, rows = Dim("batch", max=8), Dim("rows", min=2, max=32)
    shapes = ({0: batch, 1: rows}, *[{0: batch, 3: rows}] * masked) if dynamic else None
    assert len(attentions(names(Attention(), *args, dynamic=shapes))) == 1


def test_what_is_known_to_let_all_attend_is_not_asked() -> None:
    """Rows with nothing to attend to give 0; a bias that stays what it is has none."""
    assert not [name for name in names(Attention(bias=True), X) if "Sele" in name]
    mask = torch.ones(2, 1, 1, 16, dtype=torch.bool)
    assert [name for name in names(Attention(), X, mask) if "Sele" in name]


def test_a_plan_without_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="no program in words"):
        kernels(b"\x00plan")
