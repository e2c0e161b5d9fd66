"""The table of kernel faults: what goes wrong, in which versions, and what is written instead.

A row is a fact that was measured. docs/known-issues.md is made of this table; the evidence is in docs/notes.
"""

from __future__ import annotations

from typing import Final

from attrs import frozen

from pipeline.trt import CAPABILITIES

Version = tuple[int, ...]


@frozen
class Quirk:
    """A kernel fault.

    id: its name.
    fault: what TensorRT does, and the size of the error.
    since, before: the versions of TensorRT-RTX that have it: from `since` on, and none from `before` on; None is open.
    gpus: where it was measured.
    trigger: what in a program brings it about.
    instead: what is written instead, and by what part of the compiler.
    seen: how it shows in a plan or when an engine is loaded.
    test: the test that finds it if it is not avoided.
    evidence: the note with the measurements.
    """

    id: str
    fault: str
    since: Version | None
    before: Version | None
    gpus: str
    trigger: str
    instead: str
    seen: str
    test: str
    evidence: str

    def is_in(self, flavour: str, version: Version) -> bool:
        """Return whether a version has the fault."""
        from_here_on = self.since is None or version >= self.since
        return flavour == "tensorrt_rtx" and from_here_on and (self.before is None or version < self.before)


SIZES: Final = "docs/notes/2026-11-29-real-sizes.md"

QUIRKS: Final = (
    Quirk(
        id="convolution-sums",
        fault="Sums convolutions of float16 in float16: 6.8 to 18 times eager's error for 2,880 to 23,040 terms.",
        since=(1, 6),  # earlier versions do it too, and sum matmuls in float16 as well: nothing there is more exact
        before=None,
        gpus="H200 (9.0)",
        trigger="a convolution of float16 over many input channels",
        instead="a matmul of windows and weights (`improvements.exact_convolutions`)",
        seen="`accumulation_type` of the convolution's kernel",
        test="tests/gpu/test_sums_gpu.py::test_convolutions",
        evidence=SIZES,
    ),
    Quirk(
        id="matmul-sums",
        fault="Sums matmuls of float16 in float16: 5.8 to 21 times eager's error for 4,096 to 14,336 terms.",
        since=(1, 6),
        before=None,
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
        since=None,
        before=(1, 6),
        gpus="H200 (9.0)",
        trigger="a matmul of float16 with more than one row",
        instead="nothing: use bfloat16, or TensorRT-RTX 1.6",
        seen="",
        test="tests/gpu/test_sums_gpu.py::test_matmuls",
        evidence=SIZES,
    ),
    Quirk(
        id="group-norm-layer",
        fault="Has no kernel for the normalization layer with groups: the engine builds and does not load.",
        since=None,
        before=None,
        gpus="H200 (9.0)",
        trigger="a group norm of 320 channels or more, alone (1.6.1) or in a residual block (1.4)",
        instead="moments of each group by reductions (`impl.normalization.group_norm`)",
        seen="\"Compatible cubin or ptx module for device target '90' not found\" when the engine is loaded",
        test="tests/gpu/test_sums_gpu.py::test_group_norms_load",
        evidence=SIZES,
    ),
)
"""All rows."""

_BY_ID: Final = {quirk.id: quirk for quirk in QUIRKS}


def applies(id: str) -> bool:
    """Return whether the TensorRT in use has the fault of this row."""
    return _BY_ID[id].is_in(CAPABILITIES.flavour, CAPABILITIES.version_tuple)
