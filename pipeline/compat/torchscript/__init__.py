"""Support for TorchScript: compile script modules, evaluate their nodes, and declare converters by operator schema.

from pipeline.compat.torchscript import EVALUATORS, Weights, converter, model
"""

from pipeline.compat.torchscript.schemas import Weights, converter
from pipeline.export_fixes.torchscript.module import EVALUATORS, is_script, model
from pipeline.export_fixes.torchscript.registry import Call, Evaluators

__all__ = ["EVALUATORS", "Call", "Evaluators", "Weights", "converter", "is_script", "model"]
