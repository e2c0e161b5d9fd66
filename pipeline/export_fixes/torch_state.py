"""Restore torch's settings, of the thread and the process, after an interrupted trace."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from types import ModuleType
from typing import Final

import torch
from torch import _guards, _ops, overrides
from torch.export import _trace
from torch.fx import _symbolic_trace
from torch.utils import _python_dispatch

from pipeline.aten.tracing_thread import one_export
from pipeline.aten.types import Argument

FLAGS: Final[tuple[tuple[ModuleType, str, object], ...]] = (
    (torch.compiler, "_is_compiling_flag", False),
    (torch.compiler, "_is_exporting_flag", False),
    (_symbolic_trace, "_is_fx_tracing_flag", False),
    (_python_dispatch, "_is_in_torch_dispatch_mode", False),
    (_python_dispatch, "_is_in_non_infra_torch_dispatch_mode", False),
    (_python_dispatch, "_is_in_any_mode_without_ignore_compile_internals", False),
    (_trace, "_EXPORT_FLAGS", None),
    (_trace, "_EXPORT_MODULE_HIERARCHY", None),
)
"""What says for the whole process that something is traced, and what it is where nothing is."""


def dispatch_keys_restored() -> AbstractContextManager[object]:
    """Return a context that restores this thread's dispatch keys."""
    included, excluded = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    return torch._C._ForceDispatchKeyGuard(included, excluded)


def thread_state() -> Callable[[], None]:
    """Return a function that restores this thread's present state, as far as traces change it."""
    grad, lifts = torch.is_grad_enabled(), torch._C._only_lift_cpu_tensors()
    contexts, modes = dict(vars(_guards._TLS)), _Modes()

    def put_back() -> None:
        torch._C._set_grad_enabled(grad)
        torch._C._set_only_lift_cpu_tensors(lifts)
        vars(_guards._TLS).clear()
        vars(_guards._TLS).update(contexts)
        modes.put_back()

    return put_back


def process_state() -> Callable[[], None]:
    """Return a function that reverts a trace's changes to the process while no other thread exports."""
    idle = [flag for flag in FLAGS if vars(flag[0]).get(flag[1], flag) is flag[2]]
    modes = _ops.mode_stack_state_for_pre_dispatch()  # of functions and proxies before autograd: one for all threads
    free = [place for place in (0, 1) if modes.get(place) is None]
    unpatched = _fx_patches()

    def put_back() -> None:
        with one_export:
            for module, name, value in idle:
                setattr(module, name, value)
            for place in free:
                modes.set(place, None)
            unpatched()

    return put_back


class _Modes:
    """The modes that this thread has entered: of operators and of functions."""

    def __init__(self) -> None:
        self.operators = _python_dispatch._get_current_dispatch_mode_stack()
        self.functions = overrides._get_current_function_mode_stack()

    def put_back(self) -> None:
        """Leave the modes entered since."""
        if not _same(_python_dispatch._get_current_dispatch_mode_stack(), self.operators):
            while torch._C._len_torch_dispatch_stack():
                torch._C._pop_torch_dispatch_stack(None)
            for mode in self.operators:
                torch._C._push_on_torch_dispatch_stack(mode)
        if not _same(overrides._get_current_function_mode_stack(), self.functions):
            while torch._C._len_torch_function_stack():
                torch._C._pop_torch_function_stack()
            for mode in self.functions:
                torch._C._push_on_torch_function_stack(mode)


def _same(some: list[Argument], others: list[Argument]) -> bool:
    return list(map(id, some)) == list(map(id, others))


def _fx_patches() -> Callable[[], None]:
    """Return a function that takes back what tracers of torch.fx replace since, in `nn.Module` and elsewhere."""
    before = _symbolic_trace.CURRENT_PATCHER
    names = ("__call__", "__getattr__") if before is None else ()  # else what is there is another thread's
    own = {name: vars(torch.nn.Module)[name] for name in names}

    def take_back() -> None:
        patcher: Argument = _symbolic_trace.CURRENT_PATCHER
        if patcher is not None and patcher is not before:
            for patch in patcher.patches_made:
                with suppress(KeyError):  # it has been taken back
                    patch.revert()
            _symbolic_trace.CURRENT_PATCHER = before
        for name, function in own.items():
            if vars(torch.nn.Module)[name] is not function:
                setattr(torch.nn.Module, name, function)

    return take_back
