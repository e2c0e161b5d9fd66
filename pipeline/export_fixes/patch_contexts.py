"""Contexts that patch functions of torch (by the rows of `TABLE`) and of NVIDIA ModelOpt during a trace."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from pipeline.aten.types import Argument, Function
from pipeline.export_fixes import model_queries
from pipeline.export_fixes.export_steps import exit_transforms
from pipeline.export_fixes.interrupts import set_contextvar
from pipeline.export_fixes.known_values import known, track_values
from pipeline.export_fixes.patching import Patches, Replacement
from pipeline.export_fixes.restore_model_state import restore_distribution_checks
from pipeline.export_fixes.torch_patches import TABLE

_patches = Patches(TABLE)

_modelopt_patches: dict[Argument, Patches] = {}


@contextmanager
def patch_modelopt() -> Iterator[None]:
    """Return a context in which NVIDIA ModelOpt's quantizers, if ModelOpt is loaded, are exported as operators on
    every device. On a CPU, ModelOpt's INT8 arithmetic reads the values of scales, which cannot be traced."""
    module = sys.modules.get("modelopt.torch.quantization.tensor_quant")
    utilities = sys.modules.get("modelopt.torch.quantization.utils.core_utils")
    if module is None or utilities is None:
        yield
        return
    row = Replacement(
        module.FakeTensorQuantFunction, "forward", _quantize_op, "reads the values of scales on a CPU", "modelopt"
    )
    places = _modelopt_patches.setdefault(module, Patches((row,)))
    with utilities.export_torch_mode(), places.activate("modelopt"):
        yield


def _quantize_op(
    orig: Function,
    ctx: Argument,
    inputs: torch.Tensor,
    amax: torch.Tensor,
    bias: Argument = None,
    num_bits: int = 8,
    unsigned: bool = False,
    narrow_range: bool = True,
    *rest: Argument,
) -> Argument:
    """Replace the ``forward`` of ModelOpt's quantizer by the operator ``tensorrt::quantize_op``."""
    shifted = inputs if bias is None else inputs - bias
    made = torch.ops.tensorrt.quantize_op(shifted, amax, num_bits, 0, unsigned, narrow_range)
    return made if bias is None else made + bias


def patch_for_trace() -> AbstractContextManager[None]:
    """Return a context for tracing with dynamic sizes: a size may be 0 or 1, a branch on such a size adds a guard,
    and sizes that operators compute from a symbol are expressions of the symbol."""
    return _patches.activate("trace")


@contextmanager
def patch_for_export() -> Iterator[None]:
    """Return a context with torch's functions patched for an export or functionalization; the caller must hold the lock
    `one_export`. At its end, torch's settings are restored, some of which a failed export leaves changed."""
    values = track_values() if known.get() is None else nullcontext()
    with patch_for_trace(), _patches.activate("export"), values, exit_transforms(), restore_distribution_checks():
        yield


@contextmanager
def decide_by_example() -> Iterator[None]:
    """Return a context for an export in which the example decides branches; restore torch's random state at the end."""
    devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices), _patches.activate("example"):
        yield


def patch_for_mode(mode: str) -> AbstractContextManager[None]:
    """Return a context with the functions of torch patched that an export by a `TraceMode` needs to be patched."""
    if mode == "example":
        return decide_by_example()
    return _patches.activate(mode) if mode in ("called", "comparing") else nullcontext()


@contextmanager
def keep_weights_in_place() -> Iterator[None]:
    """Return a context in which ``model.to`` moves only tensors that are neither parameters nor buffers."""
    with _patches.activate("export"), set_contextvar(model_queries.keep_weights, True):
        yield


@contextmanager
def patch_for_device(device: str | None, capabilities: Sequence[str]) -> Iterator[None]:
    """Return a context for tracing for ``device``. Without a GPU, queries of ``torch.cuda`` return the properties of
    a GPU of the lowest of these compute capabilities, autocast for ``cuda`` stays enabled, and attention uses a
    GPU's kernel."""
    if device != "cuda" or torch.cuda.is_available():
        yield
        return
    major, minor = next(iter(capabilities), model_queries.DEFAULT_CAPABILITY).split(".")
    with set_contextvar(model_queries.capability, (int(major), int(minor))), _patches.activate("gpu"):
        yield
