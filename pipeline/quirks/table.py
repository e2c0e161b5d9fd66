"""The table of kernel faults: what goes wrong, in which versions, and what is written instead.

A row is a fact that was measured. docs/known-issues.md is made of this table; the evidence is in docs/notes.
"""

from __future__ import annotations

from typing import Final

import torch
from attrs import frozen

from pipeline.trt import CAPABILITIES, has_gpu

Version = tuple[int, ...]


@frozen
class Quirk:
    """A kernel fault.

    id: its name.
    fault: what TensorRT does, and the size of the error.
    since, before: the versions of TensorRT-RTX that have it: from `since` on, and none from `before` on; None is open.
    gpus: where it was measured.
    capabilities: the compute capabilities of GPUs that have it, if others have not; it is asked of the GPU at hand.
    trigger: what in a program brings it about.
    instead: what is written instead, and by what part of the compiler.
    seen: how it shows in a plan or when an engine is loaded; empty if it does not.
    test: the test that finds it if it is not avoided.
    evidence: the note with the measurements.
    """

    id: str
    fault: str
    gpus: str
    trigger: str
    instead: str
    test: str
    evidence: str
    capabilities: tuple[str, ...] = ()
    since: Version | None = None
    before: Version | None = None
    seen: str = ""

    @property
    def versions(self) -> str:
        """The versions in words: "1.6 and newer"."""
        first, end = (v and ".".join(map(str, v)) for v in (self.since, self.before))
        if first and end:
            return f"{first} to before {end}"
        return f"{first} and newer" if first else f"before {end}" if end else "all"

    def is_in(self, flavour: str, version: Version) -> bool:
        """Return whether a version has the fault."""
        from_here_on = self.since is None or version >= self.since
        return flavour == "tensorrt_rtx" and from_here_on and (self.before is None or version < self.before)


SIZES: Final = "docs/notes/2026-11-29-real-sizes.md"
NUMBERS: Final = "docs/notes/2026-11-29-tensorrt.md"
HOPPER: Final = "H100, H200 (9.0)"

QUIRKS: Final = (
    Quirk(
        id="convolution-sums",
        fault="Sums convolutions of float16 in float16: 6.8 to 18 times eager's error for 2,880 to 23,040 terms.",
        since=(1, 6),  # earlier versions do it too, and sum matmuls in float16 as well: nothing there is more exact
        gpus="H200 (9.0)",
        trigger="a convolution of float16 over many input channels",
        instead="a matmul of windows and weights (`improvements.exact_convolutions`)",
        seen="`accumulation_type` of the convolution's kernel",
        test="tests/gpu/test_sums_gpu.py::test_convolutions",
        evidence=SIZES,
    ),
    Quirk(
        id="rounded-convolutions",
        fault="A convolution of float32 whose kernel rounds to float16 and goes on is wrong (NaN).",
        since=(1, 6),
        gpus="H200 (9.0)",
        trigger="a convolution of float32 between casts to float16, before an activation (YOLOv8, DPT, EfficientNet)",
        instead="matmuls, and behind the others a maximum in one dim, which ends the kernel (it has not run on a GPU)",
        test="tests/gpu/test_sums_gpu.py::test_convolutions_that_are_asked_to_be_exact",
        evidence=SIZES,
    ),
    Quirk(
        id="one-window",
        fault="An average over one window of 19 x 19 in steps of 2,560 is wrong by 0.44 of the result.",
        since=(1, 6),
        gpus="H200 (9.0)",
        trigger="pooling whose stride is larger than the image (EfficientNet-B7 of transformers)",
        instead="a reduction (`impl.pool`)",
        test="tests/gpu/test_sums_gpu.py::test_one_window",
        evidence=SIZES,
    ),
    Quirk(
        id="matmul-sums",
        fault="Sums matmuls of float16 in float16: 5.8 to 21 times eager's error for 4,096 to 14,336 terms.",
        since=(1, 6),
        gpus="H200 (9.0)",
        trigger="a matmul of float16 with more than one row",
        instead="a matmul of float32 between casts, which TensorRT takes for float16 summed in float32 (`impl.matmul`)",
        seen="`accumulation_type=0` of the kernel",
        test="tests/gpu/test_sums_gpu.py::test_matmuls",
        evidence=SIZES,
    ),
    Quirk(
        id="matmul-sums-always",
        fault="Sums matmuls of float16 in float16, also between casts: 5.8 to 21 times eager's error.",
        before=(1, 6),
        gpus="H200 (9.0)",
        trigger="a matmul of float16 with more than one row",
        instead="nothing: use bfloat16, or TensorRT-RTX 1.6",
        test="tests/gpu/test_sums_gpu.py::test_matmuls",
        evidence=SIZES,
    ),
    Quirk(
        id="group-norm-layer",
        fault="Has no kernel for the normalization layer with groups: the engine builds and does not load.",
        gpus="H200 (9.0)",
        trigger="a group norm of 320 channels or more, alone (1.6.1) or in a residual block (1.4)",
        instead="a layer norm over the elements of each group (`impl.normalization.group_norm`)",
        seen="\"Compatible cubin or ptx module for device target '90' not found\" when the engine is loaded",
        test="tests/gpu/test_sums_gpu.py::test_group_norms_load",
        evidence=SIZES,
    ),
    Quirk(
        id="sliced-reduction",
        fault="A reduction's kernel that broadcasts a slice of its own input is wrong: errors of 0.03 to 1.4.",
        since=(1, 6),
        gpus="H200 (9.0)",
        trigger="`(x - x[..., :1]).mean(-1)` over rows of thousands of elements",
        instead="nothing of ours writes it",
        test="tests/gpu/test_sums_gpu.py::test_group_norms_load",
        evidence=SIZES,
    ),
    Quirk(
        id="slow-attention",
        fault="Takes twice as long as PyTorch for an attention of halves: 375 µs for 186, 4,096 by 4,096, head 64.",
        gpus="H200 (9.0)",
        capabilities=("9.0",),
        trigger="1,024 queries and keys or more",
        instead="the attention runs in PyTorch (`faster_in_torch`, `converters.attention`)",
        seen="`_gemm_mha_v2`",
        test="tests/converters/test_attention.py::test_long_attentions_run_where_they_are_faster",
        evidence=SIZES,
    ),
    Quirk(
        id="lone-queries",
        fault="An attention of one query in each of several batches reads other batches' keys.",
        gpus=HOPPER,
        trigger="one query a batch, behind other attentions",
        instead="the query twice (`impl.attention.not_alone`)",
        seen="`_gemv_mha` of several batches (`wrong_kernels.of_other_batches`)",
        test="tests/gpu/test_attention_gpu.py::test_one_query_after_other_attentions",
        evidence=NUMBERS,
    ),
    Quirk(
        id="transposed-matmuls",
        fault="A matmul beside a transposition uses the first batch for all.",
        gpus=HOPPER,
        trigger="a factor or result that is transposed, behind attentions; in float32 before 1.6, in halves on all",
        instead="the maximum of the tensor and itself (`impl.matmul.transposed`, `linear`)",
        seen="`__myl_MoveReshTranReshMove` (`wrong_kernels.of_one_batch`)",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_products_with_what_is_transposed",
        evidence=NUMBERS,
    ),
    Quirk(
        id="broadcast-in-reductions",
        fault="A reduction's kernel broadcasts a value from threads that do not hold it.",
        gpus=HOPPER,
        trigger="a value computed before a reduction and broadcast behind it",
        instead="the value expanded in a kernel of its own (`impl.kept`)",
        seen="registers read by other threads (`wrong_kernels.kept_elsewhere`)",
        test="tests/gpu/test_kept_gpu.py::test_agrees_with_eager",
        evidence=NUMBERS,
    ),
    Quirk(
        id="sums-of-few",
        fault="A sum of up to six elements in a reduction's kernel takes one element for others.",
        gpus=HOPPER,
        trigger="a reduction of 2 to 6 elements beside a larger one",
        instead="a barrier behind the sum (`impl.written_in`)",
        test="tests/gpu/test_written_in_gpu.py::test_agrees_with_eager",
        evidence=NUMBERS,
    ),
    Quirk(
        id="expanded-loops",
        fault="A loop that is written out is not built, or takes minutes.",
        gpus="any: the build",
        trigger="long chains of views, small sums and matmuls over few terms",
        instead="barriers where an expression would grow (`impl.expanded`)",
        seen='"insert_point is not in bb" from the builder',
        test="tests/gpu/test_expanded_gpu.py::test_steps_agree_with_eager",
        evidence=NUMBERS,
    ),
    Quirk(
        id="halves-behind-matmuls",
        fault="A matmul of float32 whose kernel rounds to halves is garbage, or does not run.",
        before=(1, 6),
        gpus=HOPPER,
        trigger="two batch dims or more, or a factor computed in float32",
        instead="the rounding in a kernel of its own (`impl.base.cast`, `impl.matmul`)",
        seen="`wrong_kernels.rounded_last`",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_products_of_batches_that_are_rounded_at_once",
        evidence=NUMBERS,
    ),
    Quirk(
        id="factors-of-matmuls",
        fault="Of two kernels that multiply by a number the first runs for both.",
        before=(1, 6),
        gpus=HOPPER,
        trigger="matmuls of sizes known at run time only, multiplied in their kernels",
        instead="a barrier behind the matmul (`impl.matmul`)",
        seen="`wrong_kernels.confused`",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_products_keep_their_factors",
        evidence=NUMBERS,
    ),
    Quirk(
        id="biases-of-matmuls",
        fault="A bias before ReLU or GELU is not added.",
        since=(1, 6),
        gpus="H100 (9.0)",
        trigger="ReLU or GELU behind a linear layer, read in more than one place",
        instead="the maximum of the bias's sum and itself (`impl.activation`)",
        seen="`bias=true` of a matmul (`wrong_kernels.with_biases`)",
        test="tests/build/test_biases_of_products.py",
        evidence=NUMBERS,
    ),
    Quirk(
        id="padded-zeros",
        fault="A matmul of an odd number of terms adds a zero, and computes what is before it on that zero.",
        gpus=HOPPER,
        trigger="an operator that maps 0 to infinity or NaN before such a matmul",
        instead="an even number of terms (`impl.of_zeros`)",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_products_of_sizes_that_kernels_do_not_take",
        evidence=NUMBERS,
    ),
    Quirk(
        id="empty-loops",
        fault="A loop over nothing leaves out what its kernel computes for others.",
        gpus=HOPPER,
        trigger="a sum over a size that may be 0, or something broadcast to nothing",
        instead="one more element, or a tensor that is not empty (`impl.nothing`)",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_sums_of_nothing_leave_the_places_of_others",
        evidence=NUMBERS,
    ),
    Quirk(
        id="grouped-deconvolutions",
        fault="A transposed convolution of groups with a stride is wrong where its length varies.",
        since=(1, 5),
        gpus="H100 (9.0)",
        trigger="groups and a stride of 2 or more, over dynamic sizes",
        instead="zeros between the elements and a stride of 1 (`impl.conv.deconvolution`)",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_transposed_convolutions_of_groups",
        evidence=NUMBERS,
    ),
    Quirk(
        id="rounded-deconvolutions",
        fault="A transposed convolution in float32 that is rounded to bfloat16 and widened again is garbage.",
        since=(1, 6),
        gpus="H100 (9.0)",
        trigger="transposed convolutions in bfloat16 one behind the other",
        instead="a barrier behind the rounding (`impl.conv`)",
        seen="`wrong_kernels.widened_again`",
        test="tests/gpu/test_wrong_kernels_gpu.py::test_transposed_convolutions_that_are_rounded_and_widened",
        evidence=NUMBERS,
    ),
    Quirk(
        id="bfloat16-convolutions",
        fault='Does not convolve depthwise, or over long kernels, in bfloat16: "cuDNN graph compilation failed".',
        before=(1, 6),
        gpus="H200 (9.0)",
        trigger="a depthwise convolution, a kernel of more than 32 or a stride of more than 16, in bfloat16",
        instead="the convolution in float32, rounded (`impl.conv`)",
        seen="the error when the engine is loaded",
        test="tests/gpu/test_bfloat16_gpu.py::test_long_windows",
        evidence=NUMBERS,
    ),
)
"""All rows."""

_BY_ID: Final = {quirk.id: quirk for quirk in QUIRKS}


def applies(id: str) -> bool:
    """Return whether the TensorRT in use, on the GPU at hand where that matters, has the fault of this row."""
    quirk = _BY_ID[id]
    here = quirk.is_in(CAPABILITIES.flavour, CAPABILITIES.version_tuple)
    return here and (not quirk.capabilities or gpu_at_hand() in quirk.capabilities)


def gpu_at_hand() -> str:
    """Return the compute capability of the current GPU ("9.0"), or nothing."""
    return ".".join(map(str, torch.cuda.get_device_capability())) if has_gpu() else ""
