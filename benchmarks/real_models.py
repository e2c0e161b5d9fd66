"""Models at the sizes of real checkpoints: what a row of ``benchmarks.real`` is made of.

Widths, heads, tokens, resolutions and channels are those of the model's card; layers may be fewer, and weights are
random. ``real_diffusion``, ``real_vision`` and the others have the rows.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch
import transformers as hf
from attrs import frozen
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from benchmarks.signals import Given

LAYER_SCALES = ("layer_scale", "lambda1", "lambda_", "gamma_", "ls1.", "ls2.")
"""Parts of the names of parameters that scale a branch, which libraries begin with next to nothing."""
PRODUCTS = (torch.nn.Linear, torch.nn.modules.conv._ConvNd)
GAINS = (0.7, 1.5)
"""The least and the most that a product makes of its inputs' standard deviation."""
FAMILIES = ("diffusion", "vision", "detection", "text", "decoders", "audio", "multimodal")
Inputs = dict[str, torch.Tensor]


@frozen
class Row:
    """A model at real size.

    shapes: what is the model card's, in words. inputs: by keyword, of fixed sizes. library: that which has the model.
    convolutions: whether it is a network of convolutions, whose error may be 4 times eager's instead of 2. small: the
    GPU tests run it. routed: data decide which experts or proposals are used, so that a rounding changes the result at
    once. heavy: how long it takes beside the others; the heaviest start first.
    """

    name: str
    shapes: str
    make: Callable[[], torch.nn.Module]
    inputs: Mapping[str, Given]
    library: str = "transformers"
    convolutions: bool = False
    small: bool = False
    routed: bool = False
    heavy: int = 1

    @property
    def bound(self) -> int:
        """How many times eager's error ours may be."""
        return 4 if self.convolutions else 2

    @property
    def available(self) -> bool:
        """Whether the library is installed."""
        return self.library in ("", "transformers") or importlib.util.find_spec(self.library) is not None

    def built(self, device: str, dtype: torch.dtype) -> tuple[torch.nn.Module, Inputs]:
        """The module in eval mode with its inputs, both made on the device in the dtype, the same every time."""
        with torch.random.fork_rng(devices=[]), defaults(device, dtype):
            torch.manual_seed(0)
            model = Tensors(self.make()).eval().requires_grad_(False).to(device)
            inputs = {name: given.tensor() for name, given in self.inputs.items()}
            with torch.no_grad():
                lively(model)
                calibrated(model, inputs)
        return model, inputs

    def faked(self, device: str, dtype: torch.dtype) -> tuple[torch.nn.Module, Inputs, FakeTensorMode]:
        """The same without data, for a machine that has no room for it: tensors of the mode that is returned too."""
        with defaults("meta", dtype):
            model = Tensors(self.make()).eval().requires_grad_(False)
        with FakeTensorMode(allow_non_fake_inputs=True) as mode, defaults(device, dtype):
            model._apply(lambda tensor: torch.empty_like(tensor, device=device))
            inputs = {name: given.tensor() for name, given in self.inputs.items()}
        return model, inputs, mode


@contextlib.contextmanager
def defaults(device: str, dtype: torch.dtype) -> Iterator[None]:
    """Within it, tensors are made on the device and in the dtype if nothing else is said."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


class Tensors(torch.nn.Module):
    """A model that returns a tuple of its tensors of numbers, instead of its library's class of results."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The model's tensors."""
        leaves = tree_leaves(self.model(**inputs))
        return tuple(leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.is_floating_point())


def lively(model: torch.nn.Module) -> None:
    """Give random values to the parameters that libraries begin with constants, and larger ones to the weights that
    they begin so small that little of the inputs is left at the end."""
    for name, parameter in model.named_parameters():
        if not parameter.is_floating_point():
            continue
        if any(part in name for part in LAYER_SCALES):
            parameter.uniform_(0.2, 1.0)
        elif parameter.dim() < 2:
            parameter.add_(torch.empty_like(parameter).uniform_(-0.1, 0.1))
        elif bool((parameter == parameter.flatten()[0]).all()):
            # an activation divides by its alpha
            parameter.uniform_(0.8, 1.2) if name.endswith("alpha") else parameter.normal_(std=0.05)
    for module in model.modules():
        if isinstance(module, PRODUCTS) and "weight" in module._parameters:
            weight = module.weight
            terms = weight[0].numel()
            if getattr(module, "transposed", False):
                terms = weight[:, 0].numel() // math.prod(module.stride)
            gain = float(weight.float().std()) * terms**0.5
            weight.mul_(min(max(gain, GAINS[0]), GAINS[1]) / gain)


def calibrated(model: torch.nn.Module, inputs: Inputs) -> None:
    """Give batch normalizations the statistics that the inputs have there, and weights around 1, or around 0.2 where
    their results are added to a shortcut: deep networks neither explode nor enlarge each rounding many times."""
    found = [each for each in model.modules() if isinstance(getattr(each, "running_var", None), torch.Tensor)]
    if not found:
        return
    for each in found:
        each.weight.uniform_(0.8, 1.2)
    with Shortcuts() as shortcuts, _hooks(found, "register_forward_hook", shortcuts.note):
        model(**inputs)
    for each in shortcuts.beside:
        each.weight.mul_(0.2)
    with _hooks(found, "register_forward_pre_hook", _calibrate):
        model(**inputs)


@contextlib.contextmanager
def _hooks(modules: Iterable[Any], register: str, hook: Callable[..., None]) -> Iterator[None]:
    """Within it, the modules have the hook."""
    handles = [getattr(each, register)(hook) for each in modules]
    yield
    for handle in handles:
        handle.remove()


def _calibrate(module: Any, args: tuple[torch.Tensor, ...]) -> None:
    dims = [dim for dim in range(args[0].dim()) if dim != 1]
    variance, mean = torch.var_mean(args[0].float(), dims, correction=0)
    module.running_mean.copy_(mean)
    module.running_var.copy_(variance.clamp(min=1e-3))


class Shortcuts(TorchFunctionMode):
    """Notes the modules whose result is added to what is not another's result.

    The results are kept, so that no other tensor has the memory of one.
    """

    def __init__(self) -> None:
        super().__init__()
        self.results: dict[int, tuple[torch.nn.Module, torch.Tensor]] = {}
        self.beside = set[Any]()

    def note(self, module: torch.nn.Module, args: object, result: torch.Tensor) -> None:
        """Remember whose result this is."""
        self.results[result.data_ptr()] = module, result

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "") in ("add", "add_", "__add__", "__iadd__", "__radd__"):
            added = [self.results.get(each.data_ptr()) for each in args[:2] if isinstance(each, torch.Tensor)]
            if len(added) == 2 and None in added:
                self.beside |= {each[0] for each in added if each}
        return func(*args, **(kwargs or {}))


def of_transformers(model: str, config: str, **fields: Any) -> Callable[[], torch.nn.Module]:
    """What makes a model of transformers from these fields of its configuration."""

    def make() -> torch.nn.Module:
        made: torch.nn.Module = getattr(hf, model)(getattr(hf, config)(**fields))
        return made

    return make


def of_library(library: str, name: str, **fields: Any) -> Callable[[], torch.nn.Module]:
    """What makes a model by a function or class of a library: ``"diffusers", "UNet2DConditionModel"``."""

    def make() -> torch.nn.Module:
        module, _, called = name.rpartition(".")
        made: torch.nn.Module = getattr(importlib.import_module(".".join(filter(None, (library, module)))), called)(
            **fields
        )
        return made

    return make


def rows() -> tuple[Row, ...]:
    """All rows, the heaviest first."""
    found = [row for family in FAMILIES for row in importlib.import_module(f"benchmarks.real_{family}").ROWS]
    return tuple(sorted(found, key=lambda row: -row.heavy))
