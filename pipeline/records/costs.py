"""``StageCost``: the seconds and memory that one stage took."""

from __future__ import annotations

from attrs import frozen

from pipeline.frozen import FrozenDict


@frozen
class StageCost:
    """The seconds that a stage took, and by how many bytes the memory of this process and its children grew.

    growth: from the stage's start to its end. peak: the largest growth in the stage, sampled every 10 ms. anonymous:
    the same without pages of mapped files (libraries, plans), which the system may drop. held: bytes of weights after
    the stage, by holder: ``model`` (the model's own tensors), ``folded`` (computed from these for TensorRT, released by
    ``build``), ``literals`` (constants of networks), ``plans`` (mapped files). failed: whether the stage raised.
    """

    stage: str
    seconds: float
    growth: int
    peak: int
    anonymous: int
    held: FrozenDict[str, int]
    failed: bool = False
