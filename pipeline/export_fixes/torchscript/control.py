"""Evaluators of TorchScript's control flow: branches, loops of known length, and inlined calls."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch

from pipeline.export_fixes.branches import trace_both_branches
from pipeline.export_fixes.runtime_asserts import record_assumed_check
from pipeline.export_fixes.torchscript.graph import Value
from pipeline.export_fixes.torchscript.python_values import Object
from pipeline.export_fixes.torchscript.registry import Call, Evaluator

MAX_STEPS: Final = 10_000
"""The maximum number of iterations of an unrolled loop."""

_HARMLESS: Final = ("autograd.grad_mode.", "autograd.profiler.record_function", "nn.utils.stateless.")
"""Parts of the class names of context managers that a compiled program may ignore."""

_CHOOSE: Final = "select between values with torch.where, or decide before the model is called"
_FIX: Final = "make that size static, or replace the loop by operators on whole tensors"

_MUTATING_KINDS: Final = (
    *("aten::append", "aten::extend", "aten::insert", "aten::pop", "aten::popitem", "aten::clear", "aten::update"),
    *("aten::setdefault", "aten::remove", "aten::sort", "aten::reverse", "aten::_set_item", "aten::Delete"),
    "prim::SetAttr",
)
"""The kinds of nodes that change a list, dict or object in place."""
_MUTATING_LIST_KINDS: Final = ("aten::add_", "aten::mul_")
"""The kinds of nodes that change their first input in place if it is a list."""


def evaluate_if(call: Call, condition: Value) -> Value:
    """Evaluate prim::If: run the branch that is taken. A condition on sizes adds a guard. For a data-dependent
    condition, run both branches and select by `torch.where`; a branch that raises an error is assumed to be untaken."""
    if not _is_data_dependent(condition):
        return call.blocks[0 if condition else 1]()
    raised = [any(node.kind == "prim::RaiseException" for node in block.nodes) for block in call.node.blocks]
    if sum(raised) == 1:
        record_assumed_check(call.where.partition(",")[0])
        return call.blocks[raised.index(False)]()
    if not isinstance(condition, torch.Tensor):
        raise call.error("the condition depends on data, which is known only when the program runs", _CHOOSE)
    for node in (node for block in call.node.blocks for node in block.every_node()):
        if node.kind in _MUTATING_KINDS or (node.kind in _MUTATING_LIST_KINDS and node.types[:1] != ("Tensor",)):
            raise call.error(f"a branch of a data-dependent if has a side effect, {node.kind}", _CHOOSE)
    yes, no = (_with_tensor_bools(call, block, condition.device) for block in call.blocks)
    return trace_both_branches(condition, yes, no, call.where.partition(",")[0])


def _with_tensor_bools(
    call: Call, block: Callable[..., tuple[Value, ...]], device: torch.device
) -> Callable[[], tuple[Value, ...]]:
    """Return a function that runs a prim::If's branch, and returns bools as tensors, which `torch.where` can select."""

    def truth(value: Value) -> Value:
        if isinstance(value, bool | torch.SymBool) and not _is_data_dependent(value):
            return torch.scalar_tensor(bool(value), dtype=torch.bool, device=device)
        return value

    return lambda: tuple(truth(v) if of == "bool" else v for v, of in zip(block(), call.types, strict=True))


def unroll_loop(call: Call, count: Value, condition: Value, *carried: Value) -> Value:
    """Evaluate prim::Loop: unroll the iterations, whose number must be known during capture."""
    _check_count_is_known(call, count, "the number of iterations")
    values: tuple[Value, ...] = carried
    done = 0
    while done < count:
        _check_count_is_known(call, condition, "the condition")
        if not condition:
            break
        if done == MAX_STEPS:
            raise call.error(f"the loop has more than {MAX_STEPS} iterations, the most that pipeline unrolls", _FIX)
        condition, *rest = call.blocks[0](done, *values)
        values, done = tuple(rest), done + 1
    return values


def _check_count_is_known(call: Call, value: Value, name: str) -> None:
    """Raise `CaptureError` if a loop's count or condition, ``name`` in the error, is dynamic: it cannot be unrolled."""
    is_symbol = isinstance(value, torch.SymInt | torch.SymBool) and value.node.maybe_as_int() is None
    if is_symbol or isinstance(value, torch.Tensor):
        data = "depends on data, which is known only when the program runs"
        raise call.error(f"{name} {data if _is_data_dependent(value) else f'is a dynamic size, {value}'}", _FIX)


def _is_data_dependent(value: Value) -> bool:
    """Return whether a value is a tensor, or a data-dependent number that was read from a tensor."""
    if isinstance(value, torch.Tensor):
        return True
    if not isinstance(value, torch.SymBool | torch.SymInt | torch.SymFloat):
        return False
    return not value.node.has_hint() and value.node.maybe_as_int() is None


def raise_error(call: Call, message: Value, kind: Value = None) -> None:
    """Evaluate prim::RaiseException: raise an error, since the branch that contains the node is taken."""
    raise call.error(f"the model raises {kind or ''}: {message}".replace(" : ", ": "))


def ignore_context(call: Call, context: Value) -> Value:
    """Evaluate prim::Enter and prim::Exit: ignore gradient and profiler contexts, which do not affect results."""
    name = context.kind if isinstance(context, Object) else type(context).__name__
    if not any(part in name for part in _HARMLESS):
        raise call.error(f"a compiled program does not support the context {name}", "remove it from the model")
    return context


def run_block(call: Call, *inputs: Value) -> Value:
    """Evaluate prim::CallMethod and prim::fork: run the node's block (the called method, the forked code) at once."""
    return call.blocks[0](*inputs)


def call_python(call: Call, *inputs: Value) -> Value:
    """Evaluate prim::PythonOp: call a Python function that TorchScript does not compile (``torch.jit.ignore``)."""
    if any(isinstance(value, torch.nn.Module) for value in inputs):
        raise call.error("torch.jit.ignore is on a method", "ignore a function instead, or script the method")
    values, scalars = iter(inputs), iter(call.attributes["scalars"])
    forms = call.attributes["form"]
    return call.attributes["function"](*(next(values) if form == "d" else next(scalars) for form in forms))


CONTROL: Final[Mapping[str, Evaluator]] = {
    "prim::If": evaluate_if,
    "prim::Loop": unroll_loop,
    "prim::RaiseException": raise_error,
    "prim::Enter": ignore_context,
    "prim::Exit": lambda call, context: ignore_context(call, context) and None,
    **dict.fromkeys(("prim::CallMethod", "prim::fork", "prim::awaitable"), run_block),
    **dict.fromkeys(("aten::wait", "prim::awaitable_wait", "prim::awaitable_nowait"), lambda call, value: value),
    "prim::PythonOp": call_python,
    **dict.fromkeys(("prim::Print", "aten::warn", "aten::set_grad_enabled"), lambda call, *values: None),
    "aten::is_grad_enabled": lambda call: True,
    "aten::is_scripting": lambda call: True,
    "aten::_get_tracing_state": lambda call: False,
    "aten::has_torch_function": lambda call, *values: False,
}
"""The evaluators of control flow, and of nodes that only torch's interpreter needs. Scripts see gradients as enabled:
else torch's modules would call kernels for whole layers, which engines do not support."""
