"""Replace a module by an object of the same class that runs the compiled program and has no weights."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import NoReturn

import torch

from pipeline.aten.types import Leaf
from pipeline.compiled import CompiledModule, M
from pipeline.errors import ExecutionError
from pipeline.records.wording import kind_of
from pipeline.runtime.inputs import child_specs
from pipeline.runtime.state import attach_buffer, find_buffer

WEIGHTS = "the compiled program holds the weights in its engines"
HINT = (
    "change weights with pipeline.refit_module_weights, add adapters with compiled.with_lora, and save the program "
    "with compiled.save"
)
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_pre_hooks_with_kwargs")


class InPlace:
    """Mixin for replacements of a model: it runs ``forward`` in a compiled program, and refuses access to weights.

    Attributes:
        runner: the `CompiledModule` that runs the program.
    """

    runner: CompiledModule

    def state_dict(self, *_: object, **__: object) -> NoReturn:
        """Raise an error: there are no weights. ``runner.state_dict()`` has the buffers that the program updates."""
        raise ExecutionError(f"{type(self).__name__} cannot save weights: {WEIGHTS}", HINT)

    def load_state_dict(self, *_: object, **__: object) -> NoReturn:
        """Raise an error, since this replacement of the model has no weights to load."""
        raise ExecutionError(f"{type(self).__name__} cannot load weights: {WEIGHTS}", HINT)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> InPlace:
        """Apply ``.to`` or ``.cuda`` as `ProgramModule` does: a change of dtype or device is an error."""
        self.runner._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _register_updated_buffers(self, self.runner)  # type: ignore[arg-type]
        return self

    def __reduce__(self) -> Leaf:
        return self.runner.__reduce__()


def in_place_of(model: M, runner: CompiledModule) -> M:
    """Return an object of the module's class that runs a compiled program: see `Compiled.in_place_of`."""
    if not isinstance(model, torch.nn.Module) or isinstance(model, torch.jit.ScriptModule | CompiledModule | InPlace):
        raise TypeError(f"in_place_of takes the nn.Module that was compiled, got {kind_of(model)}")
    kind, (positional, named) = type(model), child_specs(runner.program.in_spec)
    signature = inspect.signature(model.forward)
    try:
        signature.bind(*[None] * len(child_specs(positional)), **dict.fromkeys(named.context or ()))
    except TypeError as error:
        name = f"{kind.__name__}.forward({', '.join(signature.parameters)})"
        raise TypeError(f"{name} does not take the inputs of the program: {error}") from None

    def forward(self: InPlace, *args: object, **kwargs: object) -> Leaf:
        return self.runner(*args, **kwargs)

    forward.__signature__ = inspect.signature(kind.forward)  # type: ignore[attr-defined]
    own = {"forward": forward, "__module__": kind.__module__, "__doc__": kind.__doc__}
    replacement = _copy_without_weights(model, runner.device, {})
    replacement.__class__ = type(f"Compiled{kind.__name__}", (InPlace, kind), own)
    for name in HOOKS:  # the module's hooks are captured in the program
        replacement.__dict__[name] = OrderedDict()
    replacement.__dict__.pop("forward", None)
    replacement.__dict__["runner"] = runner
    _register_updated_buffers(replacement, runner)
    return replacement.eval()


class ReadOnlyDict(dict[str, Leaf]):
    """A dict of a module's submodules or parameters that refuses assignment, which would have no effect on engines."""

    def __setitem__(self, name: str, value: object) -> None:
        what = f"setting {name} to {kind_of(value)} would have no effect"
        raise ExecutionError(f"{what}: {WEIGHTS}", HINT)

    def __delitem__(self, name: str) -> None:
        raise ExecutionError(f"removing {name} would have no effect: {WEIGHTS}", HINT)


def _register_updated_buffers(replacement: torch.nn.Module, runner: CompiledModule) -> None:
    """Register in ``replacement`` the buffers of ``runner``: those that the compiled program updates."""
    for name in runner.program.buffers.values():
        attach_buffer(replacement, name, find_buffer(runner, name))


def _copy_without_weights(module: M, device: torch.device, copies: dict[int, Leaf]) -> M:
    """Copy a module and its submodules to a device, without weights; submodules that had weights refuse calls.
    ``copies``: the copies so far, by ``id`` of the original, so that a shared module is copied once."""
    if id(module) in copies:
        return copies[id(module)]  # type: ignore[no-any-return]
    copied = copies[id(module)] = module.__class__.__new__(module.__class__)
    copied.__dict__.update(module.__dict__)
    parameters, buffers, modules = (copied.__dict__[name] for name in ("_parameters", "_buffers", "_modules"))
    stand_ins = {n: p if p is None else _placeholder(p, device, copies) for n, p in parameters.items()}
    copied.__dict__["_parameters"] = ReadOnlyDict(stand_ins)
    copied.__dict__["_buffers"] = {n: b if b is None or b.is_meta else b.to(device) for n, b in buffers.items()}
    copied.__dict__["_modules"] = ReadOnlyDict(
        {n: m if m is None else _copy_without_weights(m, device, copies) for n, m in modules.items()}
    )
    if next(module.parameters(), None) is not None:
        copied.__dict__["_forward_pre_hooks"] = OrderedDict({0: _refuse_call})
    return copied


def _placeholder(parameter: torch.nn.Parameter, device: torch.device, copies: dict[int, Leaf]) -> torch.nn.Parameter:
    """Return a parameter like ``parameter``, but all NaN (or integer 0), with memory for one element only.
    ``copies``: see `_copy_without_weights`."""
    if id(parameter) not in copies:
        floats = parameter.is_floating_point() or parameter.is_complex()
        one = torch.full((), torch.nan if floats else 0, device=device).to(parameter.dtype)
        copies[id(parameter)] = torch.nn.Parameter(one.expand(parameter.shape), requires_grad=False)
    return copies[id(parameter)]  # type: ignore[no-any-return]


def _refuse_call(module: torch.nn.Module, _: object) -> None:
    """Raise an error when a submodule without weights is called; this is its forward pre-hook."""
    name = type(module).__name__
    hint = f"call the compiled module; to run {name} alone, compile it, or call the original model"
    raise ExecutionError(f"{name} of a compiled model has no weights: {WEIGHTS}", hint)
