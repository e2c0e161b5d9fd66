"""What TensorRT makes of our networks: the kernels in the plan of an attention."""

from __future__ import annotations

import re
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY, kernels, of
from pipeline.stages.improve import Improve
from pipeline.trt import CAPABILITIES
from tests.build.attentions import Attend

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


def test_an_attention_is_four_kernels() -> None:
    """A product, queries, keys and values brought into order, the attention, and a product."""
    x = X[:1]
    assert len(names(Attention(), x)) == 4
    assert len(names(Attention(), x, passes=())) == 6


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


@pytest.mark.parametrize("dynamic", [None, ({0: Dim("batch", max=8)},) * 2], ids=["static", "dynamic"])
def test_a_batch_of_padding_costs_no_kernel(dynamic: Any) -> None:
    """Its values become 0 where they are brought into order; beside that, the mask is made once."""
    mask = torch.ones(2, 1, 1, 16, dtype=torch.bool)
    made, zeros = [name for name in names(Attention(), X, mask, dynamic=dynamic) if "Sele" in name]
    assert "Sum" in made
    assert "TranSeleSlicTran" in zeros
    plain, padded = (names(Attention(), X, *m, dynamic=dynamic and dynamic[: 1 + len(m)]) for m in ((), (mask,)))
    assert len(padded) == len(plain) + 1


def test_a_plan_without_words_is_an_error() -> None:
    with pytest.raises(ValueError, match="no program as text"):
        kernels(b"\x00plan")


def attended(mask: str, length: int, size: int, dynamic: bool) -> pipeline.Compiled:
    inputs = [torch.randn(2, 4, length, size).half() for _ in range(3)]
    if mask == "bools":
        inputs.append(torch.rand(2, 1, length, length) > 0.5)
    if mask == "padding":
        inputs.append((torch.arange(length) < 5).expand(2, 1, 1, length).contiguous())
    if mask == "numbers":
        inputs.append(torch.randn(2, 1, length, length).half())
    n, s = Dim("n", min=1, max=8), Dim("s", min=2, max=2048)
    shapes = [{0: n, 2: s}] * 3 + [{0: n, 3: s} if mask == "padding" else {0: n, 2: s, 3: s}] * (len(inputs) - 3)
    names = ("q", "k", "v", "mask")
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=("8.0",))
    dims = dict(zip(names, shapes, strict=False)) if dynamic else None
    compiled: pipeline.Compiled = compile(Attend(mask == "causal").eval(), args=tuple(inputs), dynamic_shapes=dims)
    return compiled


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("length", "size"), [(64, 64), (1024, 64), (1024, 40), (256, 128)], ids=str)
def test_causal_attention_is_one_kernel_that_needs_no_mask(length: int, size: int, dynamic: bool) -> None:
    compiled = attended("causal", length, size, dynamic)
    assert [k.role for k in of(compiled)].count("attention") == 1
    plan = bytes(compiled.engines[0].plan)
    assert b"true, // has add mask" not in plan
    (source,) = re.findall(rb"epilogue_impl\(\s*__myln_float.*?\n  }", plan, re.S)
    assert b"_gtr_" in source and b"-inf" in source, "the kernel compares positions itself"


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(("mask", "most"), [("bools", 6), ("padding", 7), ("numbers", 6)])
def test_masked_attention_is_one_kernel_and_few_for_its_mask(mask: str, most: int, dynamic: bool) -> None:
    roles = [k.role for k in of(attended(mask, 1024, 64, dynamic))]
    assert roles.count("attention") == 1 and len(roles) <= most
