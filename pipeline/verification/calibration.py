"""Measure the ranges of activations by running a program in eager on typical inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from attrs import frozen
from torch import Tensor

from pipeline.aten.types import Node
from pipeline.program import Program
from pipeline.verification.eager import Eager


@frozen
class Range:
    """The rule by which calibration computes the range of an activation: the greatest magnitude, or a percentile of all
    magnitudes."""

    percentile: float | None = None

    def of(self, x: Tensor) -> float:
        """Return the range of one batch."""
        sizes = x.detach().float().abs().reshape(-1)
        if not sizes.numel():
            return 0.0
        if self.percentile is None:
            return float(sizes.max())
        place = max(1, round(self.percentile / 100 * sizes.numel()))
        return float(sizes.kthvalue(min(place, sizes.numel())).values)


class Calibration(Eager):
    """A program run in eager that records the range of each requested activation, over all batches."""

    def __init__(self, program: Program, wanted: Iterable[str], range: Range) -> None:
        super().__init__(program, program.parameters, torch.device("cpu"))
        self.wanted, self.range = frozenset(wanted), range
        self.ranges: dict[str, float] = {}

    def note(self, node: Node, value: object) -> None:
        """Record the range of a requested activation."""
        if node.name in self.wanted and isinstance(value, Tensor):
            self.ranges[node.name] = max(self.ranges.get(node.name, 0.0), self.range.of(value))


def ranges(
    program: Program, wanted: Iterable[str], range: Range, batches: Iterable[Sequence[object]]
) -> Mapping[str, float]:
    """Return the range of each activation by its node: run the program on batches of inputs."""
    calibration = Calibration(program, wanted, range)
    for batch in batches:
        calibration(batch)
    return calibration.ranges
