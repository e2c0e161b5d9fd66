"""Run network descriptions on the CPU: a reference implementation of TensorRT's layers in PyTorch."""

from pipeline.runtime.reference.common import LayerError
from pipeline.runtime.reference.executor import ReferenceEngine, run
from pipeline.runtime.reference.kinds import FLOW, KINDS, NOT_MODELLED

__all__ = ["FLOW", "KINDS", "NOT_MODELLED", "LayerError", "ReferenceEngine", "run"]
