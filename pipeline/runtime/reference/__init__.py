"""The meaning of TensorRT's layers in PyTorch on the CPU, from the description of a network alone."""

from pipeline.runtime.reference.executor import ReferenceEngine, run
from pipeline.runtime.reference.kinds import FLOW, KINDS, NOT_MODELLED
from pipeline.runtime.reference.layer_types import LayerError

__all__ = ["FLOW", "KINDS", "NOT_MODELLED", "LayerError", "ReferenceEngine", "run"]
