"""``Agreement``: a compiled program's errors against eager. ``Healed``: a node compiled in another way."""

from __future__ import annotations

from typing import Literal

import torch
from attrs import field, frozen

from pipeline.frozen import FrozenDict
from pipeline.trt import CAPABILITIES
from pipeline.version import __version__


@frozen
class OutputAgreement:
    """The errors of one output of a program compared with eager PyTorch, at one set of input sizes.

    output: the output's name; ``after the call`` for a buffer or input that the program writes to.
    sample: which inputs were used: those of smallest, optimal or largest sizes, or the number of a user's example.
    error: the largest error of the program, relative to the largest finite magnitude of the exact output (absolute if
        that is 0). It is infinite if only one of the two values is NaN or infinite, or if integers differ.
    eager_error, bound: the error of eager PyTorch in the model's own dtypes, and the largest allowed error.
    norm_error, eager_norm_error, norm_bound: the norm of the program's errors relative to the exact output's norm; the
        same norm for eager PyTorch; the largest allowed value. Norms reveal sums in too low a precision, where every
        element is slightly wrong. All three are 0 for small outputs and integers.
    exact: the reference for both errors: the model in ``float64`` or ``float32``; or ``eager`` if the model cannot run
        in these dtypes, or the program is so close to eager that no other reference is needed.
    elements, undecided: the number of all elements, and of elements left out since they depend on rounding, such as a
        near tie of ``argmax``.
    raised, unjudged: the error that the program raises, or the reason why the output was not compared; else empty.
    source: ``graph`` compares the program with the captured graph in eager; ``module`` compares the captured module
        (``error``) with its graph (``eager_error``).
    """

    output: str
    sample: str
    error: float = 0.0
    eager_error: float = 0.0
    bound: float = 0.0
    norm_error: float = 0.0
    eager_norm_error: float = 0.0
    norm_bound: float = 0.0
    exact: str = "float64"
    elements: int = 0
    undecided: int = 0
    raised: str = ""
    unjudged: str = ""
    source: Literal["graph", "module"] = "graph"

    @property
    def holds(self) -> bool:
        """Whether the largest error and the norm error are within their bounds; true if the output was not compared."""
        return not self.raised and (bool(self.unjudged) or self.error_to_bound <= 1)

    @property
    def error_to_bound(self) -> float:
        """The larger of two ratios: the largest error to its bound, and the norm error to its bound."""
        errors = (self.error, self.bound), (self.norm_error, self.norm_bound)
        return max(error / bound if bound else float("inf") if error else 0.0 for error, bound in errors)

    def __str__(self) -> str:
        of_module = self.source == "module"
        where = f"{self.output}, {self.sample}{', the module' * of_module}: "
        if self.raised:
            return f"{where}WRONG: the program raises {self.raised}"
        if self.unjudged:
            return f"{where}not judged: {self.unjudged}"
        left_out = f"; {self.undecided} of {self.elements} elements are decided by rounding" if self.undecided else ""
        other, wrong = ("the captured graph's", "DIFFERS: ") if of_module else ("eager's", "WRONG: ")
        measured = f"error {self.error:.2g}, {other} {self.eager_error:.2g}, bound {self.bound:.2g}"
        if self.norm_error > self.norm_bound:
            norms = self.norm_error, self.eager_norm_error, self.norm_bound
            measured += "; of the norm {:.2g}, {} {:.2g}, bound {:.2g}".format(norms[0], other, *norms[1:])
        return f"{where}{'' if self.holds else wrong}{measured} (against {self.exact}){left_out}"


@frozen
class Agreement:
    """A comparison of a compiled program's errors with eager PyTorch's: a row for each output and sample.

    executor: where the engines ran, ``tensorrt`` or ``reference``. gpu: the GPU's name, empty without one.
    sizes: the sizes of each sample, by input and dim (``x.shape[0]``).
    versions: the versions of pipeline, torch and TensorRT. tf32: whether eager's float32 matmuls used TF32, as engines
    do. skipped: samples that were not run, with the reason. module: the reason why the module was not compared with its
    captured graph; empty if it was.
    """

    rows: tuple[OutputAgreement, ...]
    executor: str
    gpu: str = ""
    sizes: FrozenDict[str, FrozenDict[str, int]] = field(factory=FrozenDict)
    versions: FrozenDict[str, str] = field(factory=FrozenDict)
    tf32: bool = False
    skipped: FrozenDict[str, str] = field(factory=FrozenDict)
    module: str = ""

    @property
    def failures(self) -> tuple[OutputAgreement, ...]:
        """Return the outputs and sizes whose error exceeds its bound."""
        return tuple(row for row in self.rows if not row.holds)

    @property
    def differences(self) -> tuple[OutputAgreement, ...]:
        """Return the failures that torch.export caused: outputs of the captured graph that differ from the module's."""
        return tuple(row for row in self.failures if row.source == "module")

    @property
    def holds(self) -> bool:
        """Return whether at least one output was compared and every error is within its bound."""
        return not self.failures and (bool(self.rows) or not self.skipped)

    @property
    def worst(self) -> OutputAgreement | None:
        """Return the program's output with the largest error relative to its bound; None if no output was compared."""
        judged = [row for row in self.rows if not row.unjudged and row.source == "graph"]
        return max(judged, key=lambda row: row.error_to_bound, default=None)

    def __str__(self) -> str:
        where = ", ".join(filter(None, [f"{self.executor} executor", self.gpu, "TF32" * self.tf32]))
        found = "agrees with eager" if self.holds else "does not agree with eager"
        versions = ", ".join(f"{name} {number}" for name, number in self.versions.items())
        sizes = (f"  {s}: {', '.join(f'{k} = {v}' for k, v in of.items())}" for s, of in self.sizes.items() if of)
        skipped = [f"  {sample}: not run: {why}" for sample, why in self.skipped.items()]
        skipped += [f"  the module was not compared with its captured graph: {self.module}"] if self.module else []
        return "\n".join([f"{found} ({where}; {versions})", *sizes, *skipped, *(f"  {row}" for row in self.rows)])


@frozen
class Healed:
    """A node whose results were wrong, or whose engine did not load, so that it was compiled in another way."""

    node: str
    target: str
    action: str
    reason: str

    def __str__(self) -> str:
        return f"{self.target} at node {self.node}\n  healed: {self.action}\n  {self.reason}"


def versions() -> FrozenDict[str, str]:
    """Return the versions of the libraries that results depend on."""
    return FrozenDict(
        {"pipeline": __version__, "torch": str(torch.__version__), CAPABILITIES.flavour: str(CAPABILITIES.version)}
    )
