"""Contexts that patch functions of torch (the rows of `TABLE`) and of ModelOpt while a model is traced."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Argument, Function
from pipeline.export_fixes import model_questions, module_methods
from pipeline.export_fixes.export_steps import transforms_left
from pipeline.export_fixes.interrupts import set_to
from pipeline.export_fixes.known_values import known, tracked
from pipeline.export_fixes.patching import Places, Replacement
from pipeline.export_fixes.restore_model_state import distribution_checks_restored
from pipeline.export_fixes.torch_patches import TABLE

__all__ = ["by_the_example", "exporting", "exporting_by", "one_export", "tracing", "tracing_for"]

_places = Places(TABLE)

_modelopts: dict[Argument, Places] = {}


@contextmanager
def exported_quantizers() -> Iterator[None]:
    """Return a context in which NVIDIA ModelOpt's quantizers, if ModelOpt is loaded, are exported as operators on
    every device. On a CPU, ModelOpt's INT8 arithmetic reads the values of scales, which cannot be traced."""
    module = sys.modules.get("modelopt.torch.quantization.tensor_quant")
    utilities = sys.modules.get("modelopt.torch.quantization.utils.core_utils")
    if module is None or utilities is None:
        yield
        return
    row = Replacement(
        module.FakeTensorQuantFunction, "forward", _as_operator, "looks at the values of scales on a CPU", "modelopt"
    )
    places = _modelopts.setdefault(module, Places((row,)))
    with utilities.export_torch_mode(), places.taken("modelopt"):
        yield


def _as_operator(
    own: Function,
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


def tracing() -> AbstractContextManager[None]:
    """Return a context for tracing with dynamic sizes: a size may be 0 or 1, branches on this become guards, and
    sizes that operators compute from a symbol are expressions of the symbol."""
    return _places.taken("trace")


@contextmanager
def exporting() -> Iterator[None]:
    """Return a context for an export or functionalization, whose caller holds `one_export`. It restores torch's
    settings, some of which a failed export leaves changed."""
    values = tracked() if known.get() is None else nullcontext()
    with tracing(), _places.taken("export"), values, transforms_left(), distribution_checks_restored():
        yield


@contextmanager
def by_the_example() -> Iterator[None]:
    """Return a context for an export in which the example decides branches; restore torch's random state at the end."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), _places.taken("example"):
        yield


def exporting_by(way: Literal["called", "comparing"]) -> AbstractContextManager[None]:
    """Return a context for an export with the patches of ``way``, as described in `Replacement`."""
    return _places.taken(way)


@contextmanager
def moving() -> Iterator[None]:
    """Return a context in which ``model.to`` moves only tensors that are neither parameters nor buffers."""
    with _places.taken("export"), set_to(module_methods.weights_stay, True):
        yield


@contextmanager
def tracing_for(device: str | None, capabilities: Sequence[str]) -> Iterator[None]:
    """Return a context for tracing for ``device``. Without a GPU, queries of ``torch.cuda`` return the properties of
    a GPU of the lowest of these compute capabilities, autocast for ``cuda`` stays enabled, and attention uses a
    GPU's kernel."""
    if device != "cuda" or torch.cuda.is_available():
        yield
        return
    major, minor = next(iter(capabilities), model_questions.ASSUMED).split(".")
    with set_to(model_questions.capability, (int(major), int(minor))), _places.taken("gpu"):
        yield
