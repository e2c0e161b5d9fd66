"""TensorRT-RTX copies the first batch for all where it computes a product transposed (an H100, an H200), so that our
networks keep it from that: of float32 before 1.6, of halves in every one. Plans tell which kernels there will be."""

from __future__ import annotations

import logging

import pytest
import torch

import pipeline
from benchmarks.kernels import CAPABILITY, of
from pipeline import quirks
from pipeline.quirks import is_avoided
from pipeline.quirks.plan_detectors import find_copies_of_first_batch, find_kernel_offsets
from tests.build.attentions import COMPARED, Compared, Mixed, Repeated

pytestmark = pytest.mark.skipif(not is_avoided("transposed-matmuls"), reason="this TensorRT has such kernels right")
OF_FLOATS = pytest.mark.skipif(not is_avoided("transposed-float32-matmuls"), reason="this TensorRT has none in float32")
AS_IT_IS = quirks.without("transposed-matmuls", "transposed-float32-matmuls")
"""Networks in which nothing keeps matmuls apart."""


def compiled(batch: int = 2) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Mixed().eval(), args=(torch.randn(batch, 3, 64, 64),))


def compared(form: str, dtype: torch.dtype = torch.float32, batch: int = 2) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Compared(form).eval().to(dtype), args=tuple(x.to(dtype) for x in Compared.inputs(batch)))


def copied(result: pipeline.Compiled) -> tuple[str, ...]:
    plan = bytes(result.engines[0].plan)
    return find_copies_of_first_batch(plan, find_kernel_offsets(plan))


def repeated(dtype: torch.dtype) -> pipeline.Compiled:
    torch.manual_seed(0)
    compile = pipeline.default(require_full_compilation=True, compute_capabilities=(CAPABILITY,))
    return compile(Repeated().eval().to(dtype), args=(torch.randn(2, 3, 16, 16).to(dtype),))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_no_kernel_copies_one_batch_of_halves_for_all(dtype: torch.dtype) -> None:
    ours = repeated(dtype)
    assert copied(ours) == ()
    with AS_IT_IS:
        theirs = repeated(dtype)
    assert copied(theirs) != ()
    assert len(of(ours)) <= len(of(theirs))


@OF_FLOATS
def test_no_kernel_copies_one_batch_for_all() -> None:
    ours = compiled()
    assert copied(ours) == ()
    with AS_IT_IS:
        theirs = compiled()
    assert copied(theirs) != ()
    assert len(of(ours)) <= len(of(theirs))


@OF_FLOATS
@pytest.mark.parametrize("form", COMPARED)
def test_no_product_copies_one_batch_of_a_factor_for_all(form: str) -> None:
    ours = compared(form)
    assert copied(ours) == ()
    with AS_IT_IS:
        theirs = compared(form)
    assert copied(theirs) != ()
    assert len(of(ours)) <= len(of(theirs)) + (form == "result")


@pytest.mark.parametrize("form", COMPARED)
def test_no_product_of_halves_copies_one_batch_of_a_factor(form: str) -> None:
    ours = compared(form, torch.float16)
    assert copied(ours) == ()
    with AS_IT_IS:
        assert len(of(ours)) <= len(of(compared(form, torch.float16))) + 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_products_of_one_batch_stay_as_they_are(dtype: torch.dtype) -> None:
    ours = compared("second factor", dtype, batch=1)
    with AS_IT_IS:
        theirs = compared("second factor", dtype, batch=1)
    assert str(ours.networks[0]) == str(theirs.networks[0])
    assert not copied(theirs)


@OF_FLOATS
def test_one_batch_is_all_batches() -> None:
    with AS_IT_IS:
        assert copied(compiled(batch=1)) == ()


INDICES = {
    "numbers": ("(__v10 / (__myln_int32(32) * __myln_int32(16))) % 2", "16", "2"),
    "sizes": ("(__v17 / (__myln_int32(32) * __myln_int32(__v12))) % __v11", "__v12", "__v11"),
}
"""How RTX 1.6 computes a batch, that divided by the rows, and below which number that is taken again: the indices of
PVT v2's kernel for sizes that vary, which has no bounds where they do, and the one for the sizes it was tuned for."""


@pytest.mark.parametrize("form", INDICES)
@pytest.mark.parametrize("lost", [True, False], ids=["lost", "kept"])
def test_a_batch_that_is_divided_by_rows_is_none(form: str, lost: bool) -> None:
    batch, rows, batches = INDICES[form]
    divided = "__v18" if lost else "__v23"
    lines = (
        f"__myln_int32 __v18 = {batch};",
        "__myln_int32 __v23 = (__v22 * 16) + __v13;",
        f"__myln_int32 __v25 = {divided} / {rows};",
        f"__myln_int32 __v26 = __v25 % {batches};",
        "__v32 = ((__myln_half*)__v1)[(0 + ((__v20) * 32) + ((2 == 1)?0:((__v26) * __v14)))];",
    )
    plan = "\n".join(("__global__ void __myl_MoveReshTran_0x1(__myln_half* __restrict__ __v1)\n{", *lines, "}\n\0"))
    assert (
        find_copies_of_first_batch(plan.encode(), find_kernel_offsets(plan.encode()))
        == ("__myl_MoveReshTran_0x1",) * lost
    )


def test_a_kernel_of_sizes_known_at_run_time_is_read_by_itself() -> None:
    """Its source has two functions, whose variables have the same names: one for the sizes tuned for, one for all."""
    head = "__global__ void __myl_ReshTran_0x1{}(__myln_float* __restrict__ __v1)\n{{\n"
    tuned = "__myln_int32 __v17 = __v16 % 32;\n__v21 = ((__myln_float*)__v1)[(0 + (__v17 * 1))];\n}\n\n"
    others = "__myln_int32 __v19 = __v17 / 2;\n__myln_int32 __v21 = __v19 / 32;\n__myln_int32 __v22 = __v21 % 2;\n"
    read = "__v24 = ((__myln_float*)__v1)[(0 + (__v22 * 128))];\n}\n"
    plan = (head.format("_com") + tuned + head.format("") + others + read + "\0").encode()
    assert len(find_kernel_offsets(plan)) == 2 and find_copies_of_first_batch(plan, find_kernel_offsets(plan)) == ()


@AS_IT_IS
def test_what_would_be_wrong_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        kernel, *_ = copied(repeated(torch.float16))
    assert f"TensorRT's kernel {kernel} copies one batch for all" in caplog.text
