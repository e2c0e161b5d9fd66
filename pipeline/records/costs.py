"""``Entry``: the seconds and memory that one stage took."""

from __future__ import annotations

from attrs import frozen

from pipeline.frozen import FrozenDict


@frozen
class Entry:
    """The time of one stage, and the growth of this process and its children in bytes.

    peak: the largest growth during the stage, sampled every 10 ms. anonymous: that without pages of mapped files
    (libraries, plans), which the system may drop. held: bytes of weights after it, by holder: ``model`` (its own
    tensors, shared), ``folded`` (computed from them for TensorRT, released by ``build``), ``literals`` (constants of
    the networks), ``plans`` (memory-mapped files). failed: whether it ended with an error.
    """

    stage: str
    seconds: float
    growth: int
    peak: int
    anonymous: int
    held: FrozenDict[str, int]
    failed: bool = False
