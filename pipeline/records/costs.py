"""``Entry``: the seconds and memory that one stage took."""

from __future__ import annotations

from attrs import frozen

from pipeline.frozen import FrozenDict


@frozen
class Entry:
    """The time and memory of one stage.

    seconds: wall clock.
    growth: by how many bytes this process and its children were larger after it than before it.
    peak: the largest such growth during the stage, read every 10 ms.
    anonymous: that peak without pages that mirror files (libraries, plans), which the system may drop.
    held: bytes of weights after it, by holder: ``model`` (its own tensors, shared), ``folded`` (made from the model's
        for TensorRT, released by ``build``), ``literals`` (constants of the networks), ``plans`` (memory-mapped files).
    failed: whether it ended with an error.
    """

    stage: str
    seconds: float
    growth: int
    peak: int
    anonymous: int
    held: FrozenDict[str, int]
    failed: bool = False
