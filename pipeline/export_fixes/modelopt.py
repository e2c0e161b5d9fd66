"""Export models quantized by NVIDIA ModelOpt with its own export mode, if the library is loaded.

On a CPU ModelOpt computes INT8 by arithmetic that inspects its scales' values, which cannot be traced; here a quantizer
is one operator, as on a GPU.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from pipeline.aten.types import Argument, Function
from pipeline.export_fixes.patching import Places, Replacement

MODULE: Final = "modelopt.torch.quantization.tensor_quant"
UTILITIES: Final = "modelopt.torch.quantization.utils.core_utils"

_places: dict[Argument, Places] = {}


@contextmanager
def exported_quantizers() -> Iterator[None]:
    """Return a context in which ModelOpt's quantizers are exported as operators, on every device."""
    module, utilities = sys.modules.get(MODULE), sys.modules.get(UTILITIES)
    if module is None or utilities is None:
        yield
        return
    row = Replacement(
        module.FakeTensorQuantFunction, "forward", _as_operator, "looks at the values of scales on a CPU", "modelopt"
    )
    places = _places.setdefault(module, Places((row,)))
    with utilities.export_torch_mode(), places.taken("modelopt"):
        yield


def _as_operator(own: Function) -> Function:
    """Return a quantizer's step as its operator."""

    def forward(
        ctx: Argument,
        inputs: torch.Tensor,
        amax: torch.Tensor,
        bias: Argument = None,
        num_bits: int = 8,
        unsigned: bool = False,
        narrow_range: bool = True,
        *rest: Argument,
    ) -> Argument:
        shifted = inputs if bias is None else inputs - bias
        made = torch.ops.tensorrt.quantize_op(shifted, amax, num_bits, 0, unsigned, narrow_range)
        return made if bias is None else made + bias

    return forward
