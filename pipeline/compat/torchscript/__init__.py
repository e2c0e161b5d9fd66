"""TorchScript: scripts as models, evaluators of their nodes, and converters declared by schema.

from pipeline.compat.torchscript import EVALUATORS, Weights, converter, model
"""

from pipeline.compat.torchscript.schemas import converter
from pipeline.compat.torchscript.weights import Weights
from pipeline.frontend.torchscript.interpreter import EVALUATORS
from pipeline.frontend.torchscript.module import is_script, model
from pipeline.frontend.torchscript.registry import Call, Evaluators

__all__ = ["EVALUATORS", "Call", "Evaluators", "Weights", "converter", "is_script", "model"]
