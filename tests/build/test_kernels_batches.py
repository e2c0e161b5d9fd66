"""TensorRT-RTX 1.4 has a kernel for products of batches that are rounded to halves at once, which refuses to run in
float16 and gives garbage in bfloat16 (an H200), so that our networks have none. Plans tell which kernels there are."""

from __future__ import annotations

import pytest
import torch
from torch.export import Dim

import pipeline
from benchmarks.kernels import CAPABILITY, of
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.stages.unbuilt import unbuilt
from pipeline.trt import CAPABILITIES
from tests.build.attentions import ROUNDED, Rounded

pytestmark = pytest.mark.skipif(
    CAPABILITIES.flavour != "tensorrt_rtx", reason="the plans of TensorRT-RTX tell what its kernels are made of"
)
HALVES = pytest.mark.parametrize(("dtype", "dynamic"), [(torch.float16, False), (torch.bfloat16, True)], ids=str)


def compiled(form: str, dtype: torch.dtype, dynamic: bool = False, **settings: object) -> pipeline.Compiled:
    """Of a form, in one engine."""
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,), **settings)
    shapes = ({0: Dim("batch", max=4), 2: Dim("length", max=32)},) * 3 if dynamic else None
    return compile(Rounded(form).eval().to(dtype), args=Rounded.inputs(form, dtype), dynamic_shapes=shapes)


def rounding(result: pipeline.Compiled) -> list[str]:
    """The kernels of products that end in a cast."""
    return [kernel.name for kernel in of(result) if kernel.role == "product" and kernel.name.endswith("Cast")]


@HALVES
@pytest.mark.parametrize("form", ["one key head", "wider values", "narrower values"])
def test_attention_is_one_kernel(form: str, dtype: torch.dtype, dynamic: bool) -> None:
    found = compiled(form, dtype, dynamic)
    assert [kernel.role for kernel in of(found)].count("attention") == 1
    assert not rounding(found)


@pytest.mark.skipif(not is_avoided("halves-behind-matmuls"), reason="this TensorRT has such kernels right")
@HALVES
@pytest.mark.parametrize("form", ["one key head", "by hand"])
def test_no_product_of_batches_ends_in_a_cast(form: str, dtype: torch.dtype, dynamic: bool) -> None:
    """Where attention is taken apart, and where a model does so by itself."""
    ours = compiled(form, dtype, dynamic, decompose_attention=True)
    assert not rounding(ours)
    with quirks.without("halves-behind-matmuls"):
        theirs = compiled(form, dtype, dynamic, decompose_attention=True)
    assert rounding(theirs)
    assert len(of(ours)) <= len(of(theirs))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("decompose", [False, True])
@pytest.mark.parametrize("form", ROUNDED)
def test_the_results_stay(form: str, dtype: torch.dtype, decompose: bool) -> None:
    model, inputs = Rounded(form).eval().to(dtype), Rounded.inputs(form, dtype)
    compile = pipeline.default(require_full_compilation=True, decompose_attention=decompose).replace("build", unbuilt)
    found = compile(model, args=inputs).module(executor="reference")(*inputs).double()
    with torch.no_grad():
        exact = model.double()(*(x.double() for x in inputs))
    assert (found - exact).abs().max() < (0.02 if dtype == torch.bfloat16 else 0.003) * exact.abs().max()
