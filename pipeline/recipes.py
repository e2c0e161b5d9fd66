"""``Recipe``: the operator calls that compute a constant from a model's parameters; a refit repeats them on new ones.

Converters do no arithmetic on weights. ``decompose`` folds nodes that depend only on parameters into a constant, and
saves them as its recipe: a short list of ATen calls. To refit the constant, the recipe is evaluated on the new
parameters.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cached_property
from typing import Any

import torch
from attrs import field, frozen

from pipeline.aten.calls import find_operator, safe_function
from pipeline.aten.calls import qualified_name as qualified_name
from pipeline.aten.traits import Kind, op_kind

CPU = "cpu"
"""The device named in recipes; evaluation replaces it by the device that the parameters are on."""


@frozen
class Ref:
    """A reference, by name, to a parameter of the model or to the result of an earlier call in a recipe."""

    name: str

    def __str__(self) -> str:
        return f"%{self.name}"

    __repr__ = __str__


@frozen
class Step:
    """One ATen call of a `Recipe`: ``target`` names the operator (``aten.permute.default``), ``name`` its result."""

    name: str
    target: str
    args: tuple[Any, ...] = ()
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        given = [*map(str, self.args), *(f"{k}={v}" for k, v in self.kwargs)]
        return f"%{self.name} = {self.target}({', '.join(given)})"


@frozen
class Recipe:
    """How to compute the constant ``name``: run ``steps``, and take ``result``: a step's result or a parameter."""

    name: str
    result: Ref
    steps: tuple[Step, ...] = ()
    dtype: torch.dtype | None = field(default=None)

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """Return the names of the parameters that the recipe reads, in order of first use."""
        made = {step.name for step in self.steps}
        read = [r for step in self.steps for r in ref_names((step.args, tuple(v for _, v in step.kwargs)))]
        return tuple(dict.fromkeys(r for r in (*read, self.result.name) if r not in made))

    def evaluate(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the constant for these parameters, on the CPU and contiguous; the parameters are not changed.

        The computation runs on the parameters' device, or on the CPU if there are several devices or memory runs out.
        """
        return self._compute_on_parameters_device({name: parameters[name].detach() for name in self.parameters}).cpu()

    def evaluate_on(
        self, device: torch.device, parameters: Mapping[str, torch.Tensor], *, copied: bool = True
    ) -> torch.Tensor:
        """Return the constant on a device, contiguous; if ``copied``, it shares no memory with a parameter."""
        given = {name: parameters[name].detach() for name in self.parameters}
        value = self._compute_on_parameters_device(given).to(device)
        if copied and value.layout != torch.strided:
            return value.clone()
        strided = (tensor for tensor in given.values() if tensor.layout == torch.strided)
        memory = {tensor.untyped_storage().data_ptr() for tensor in strided}
        return value.clone() if copied and value.untyped_storage().data_ptr() in memory else value

    def _compute_on_parameters_device(self, parameters: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Compute the constant, and return it on the device of the computation."""
        places = {t.device for t in parameters.values() if t.device.type != CPU}
        if len(places) == 1:
            with suppress(torch.OutOfMemoryError):
                return self._compute_on(parameters, places.pop())
        return self._compute_on(parameters, torch.device(CPU))

    def _compute_on(self, parameters: Mapping[str, torch.Tensor], device: torch.device) -> torch.Tensor:
        values: dict[str, Any] = {n: t if t.device == device else t.to(device) for n, t in parameters.items()}
        with torch.no_grad():
            for step in self.steps:
                kwargs = {k: _resolve_refs(v, values, device) for k, v in step.kwargs}
                target: Callable[..., object] = safe_function(find_target(step.target))
                values[step.name] = call_operator(target, _resolve_refs(step.args, values, device), kwargs)
            result: torch.Tensor = values[self.result.name]
            return result.contiguous() if result.layout == torch.strided else result

    def __str__(self) -> str:
        return "; ".join([*map(str, self.steps), str(self.result)])


def call_operator(target: Callable[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Call an operator. Matmuls and convolutions in half precision on a CPU, and convolutions in float32 on a GPU
    (where torch uses TF32), are slow or inexact: they are computed in a wider dtype and rounded once."""
    first = next((a for a in args if isinstance(a, torch.Tensor)), None)
    wider = None if first is None else _wider_dtype_if_needed(target, first)
    if first is None or wider is None:
        return target(*args, **kwargs)
    made: torch.Tensor = target(*(a.to(wider) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
    return made.to(first.dtype)


def _wider_dtype_if_needed(target: Callable[..., object], operand: torch.Tensor) -> torch.dtype | None:
    """Return the wider dtype in which to compute a matmul or convolution; None if the operands' dtype suffices."""
    on_cpu = operand.device.type == CPU
    if on_cpu and operand.dtype in (torch.float16, torch.bfloat16):
        return torch.float32 if op_kind(target) in (Kind.MULTIPLIES, Kind.PROJECTS, Kind.CONVOLVES) else None
    is_wide = not on_cpu and operand.dtype == torch.float32 and op_kind(target) is Kind.CONVOLVES
    return torch.float64 if is_wide else None


def narrow_float64(weight: torch.Tensor) -> torch.Tensor:
    """Convert a weight to the dtype that it has in networks: float64 becomes float32 (``truncate_double``)."""
    return weight.float() if weight.dtype == torch.float64 else weight


def parameter_recipe(name: str) -> Recipe:
    """Return the recipe of a parameter that is used unchanged."""
    return Recipe(name, Ref(name))


def find_target(operator_name: str) -> Callable[..., object]:
    """Return the function with a qualified name such as ``aten.permute.default``.

    Raises:
        LookupError: this process has no such operator.
    """
    found = operator.getitem if operator_name == "operator.getitem" else find_operator(operator_name)
    if found is None:
        raise LookupError(f"no operator {operator_name[:80]} is registered: import the library that defines it")
    return found


def _resolve_refs(argument: object, values_by_name: Mapping[str, object], device: torch.device) -> Any:
    """Return a call's argument with each `Ref` replaced by its value, and the device ``"cpu"`` by ``device``."""
    if isinstance(argument, Ref):
        return values_by_name[argument.name]
    if isinstance(argument, (tuple, list)):
        return type(argument)(_resolve_refs(item, values_by_name, device) for item in argument)
    return device if argument == CPU and isinstance(argument, str) else argument


def ref_names(argument: object) -> list[str]:
    """Return the names of the parameters and earlier results that an argument of a recipe's call refers to."""
    if isinstance(argument, Ref):
        return [argument.name]
    if isinstance(argument, (tuple, list)):
        return [name for item in argument for name in ref_names(item)]
    return []


def named_buffer_numbers(buffer_name: str, buffer: torch.Tensor) -> Iterator[tuple[str, float]]:
    """Yield each number in a buffer with its name: the buffer's, with an index if it has several (``stride[1]``)."""
    flat = buffer.detach().flatten().tolist()
    return ((buffer_name if len(flat) == 1 else f"{buffer_name}[{place}]", number) for place, number in enumerate(flat))
