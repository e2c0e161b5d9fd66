"""A whole compiled program as an ``nn.Module``: checks inputs, runs the segments in order, gives back the pytree."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import sympy
import torch
from torch.utils._pytree import tree_unflatten

from pipeline.errors import ExecutionError
from pipeline.network import Network
from pipeline.program import Output, Port, Program, Segment, expression
from pipeline.runtime.inputs import bind_symbols, flatten_inputs
from pipeline.runtime.torch_segment import torch_segment
from pipeline.trt import has_gpu

if TYPE_CHECKING:
    from pipeline.compiled import Compiled, Executor

log = logging.getLogger(__name__)
Runner = Callable[[list[torch.Tensor]], Sequence[Any]]


class CompiledModule(torch.nn.Module):
    """Runs a compiled program. Buffers that the program mutates are this module's own copies.

    Inputs may be on any device; outputs are on the device of the inputs. ``executor`` says where engines run.
    """

    def __init__(self, compiled: Compiled, executor: Executor | None = None) -> None:
        super().__init__()
        self.compiled = compiled
        self.executor: Executor = executor or _default_executor(compiled)
        if self.executor == "tensorrt" and not has_gpu():
            raise ExecutionError("TensorRT engines run on a GPU, and torch sees none here")
        self.device = torch.device("cuda" if self.executor == "tensorrt" else "cpu")
        self.program: Program = compiled.program
        parameters = Snapshot(self.program)
        for placeholder, target in self.program.buffers.items():
            self.register_buffer(placeholder, parameters[target].to(self.device, copy=True))
        self._steps = [_step(compiled, s, self, parameters) for s in compiled.partitioned.segments]
        self._constants = {
            o.value: self.program.constants[o.value].evaluate(parameters).to(self.device)
            for o in self.program.outputs
            if not o.constant and o.value in self.program.constants
        }
        self._nodes = {n.name: n.meta.get("val") for n in self.program.graph.nodes}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The outputs that the model gives for these inputs.

        Raises:
            ShapeError: an input's size is outside its range, or breaks a relation.
            TypeError: an input's type or dtype, or the structure of the inputs, is not what was compiled.
        """
        given = flatten_inputs(self.program, args, kwargs)
        symbols = bind_symbols(self.program, given)
        values: dict[str, Any] = {name: self.get_buffer(name) for name in self.program.buffers}
        for port, value in zip(self.program.inputs, given, strict=True):
            values[port.name] = self._arrive(port, value)
        with torch.no_grad():
            for segment, run in self._steps:
                outputs = run([self._value(p, values, symbols) for p in segment.inputs])
                for port, result in zip(segment.outputs, outputs, strict=True):
                    values[port.name] = result
                    _learn(port, result, symbols)
            return self._give_back(given, values, symbols)

    def _arrive(self, port: Port, value: Any) -> Any:
        if port.kind != "tensor":
            return value
        value = value.detach().to(self.device)
        return value.float() if value.dtype == torch.float64 and self.program.settings.truncate_double else value

    def _value(self, port: Port, values: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
        if port.kind == "symint":
            return evaluate(port.value, symbols)
        return values[port.name]

    def _give_back(self, given: Sequence[Any], values: Mapping[str, Any], symbols: Mapping[str, int]) -> Any:
        home = next((v.device for v in given if isinstance(v, torch.Tensor)), self.device)
        by_name = {p.name: v for p, v in zip(self.program.inputs, given, strict=True)}
        results, written = [], []
        for output in self.program.outputs:
            value = self._output(output, by_name, values, symbols)
            if output.kind == "user":
                results.append(value.to(home) if isinstance(value, torch.Tensor) else value)
            else:
                written.append((output, value))
        for output, value in written:
            target = by_name[output.target] if output.kind == "input" else self.get_buffer(self._buffer(output.target))
            target.copy_(value)
        return tree_unflatten(results, self.program.out_spec)

    def _buffer(self, target: str) -> str:
        return next(p for p, name in self.program.buffers.items() if name == target)

    def _output(
        self, output: Output, given: Mapping[str, Any], values: Mapping[str, Any], symbols: Mapping[str, int]
    ) -> Any:
        if output.constant:
            return output.value
        if output.value in given:
            return given[output.value]
        if output.value in self._constants:
            return self._constants[output.value]
        expected = self._nodes[output.value]
        if isinstance(expected, torch.SymInt):
            return evaluate(expression(expected), symbols)
        value = values[output.value]
        return value.clone() if output.value in self.program.buffers else value.to(expected.dtype)


def evaluate(expr: Any, symbols: Mapping[str, int]) -> int:
    """The value of a size for these values of the symbols."""
    if isinstance(expr, int):
        return expr
    if expr.is_Symbol:
        return symbols[str(expr)]
    return int(expr.xreplace({s: sympy.Integer(symbols[str(s)]) for s in expr.free_symbols}))


class Snapshot(Mapping[str, torch.Tensor]):
    """Copies of the model's parameters as they were when it was compiled, made as they are asked for.

    A parameter that has been changed in place since is an ``ExecutionError``: its value is gone.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self.copies: dict[str, torch.Tensor] = {}

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.copies:
            tensor = self.program.parameters[name]
            if tensor._version != self.program.versions.get(name, tensor._version):
                raise ExecutionError(
                    f"{name} changed in place after compiling",
                    "call compiled.module() before changing the model, or use pipeline.refit_module_weights",
                )
            self.copies[name] = tensor.detach().clone()
        return self.copies[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.program.parameters)

    def __len__(self) -> int:
        return len(self.program.parameters)


def _default_executor(compiled: Compiled) -> Executor:
    if has_gpu():
        return "tensorrt"
    log.info("no GPU here: engines run on the CPU reference executor")
    return "reference"


def _learn(port: Port, result: Any, symbols: dict[str, int]) -> None:
    """Sizes that only running a segment tells."""
    if port.kind == "symint":
        symbols.setdefault(str(port.value), int(result))
    for dim, size in zip(port.shape, getattr(result, "shape", ()), strict=False):
        if not isinstance(dim, int) and dim.is_Symbol:
            symbols.setdefault(str(dim), int(size))


def _step(
    compiled: Compiled, segment: Segment, module: CompiledModule, parameters: Mapping[str, torch.Tensor]
) -> tuple[Segment, Runner]:
    if segment.kind == "torch":
        return segment, torch_segment(compiled.program, segment, parameters, module.device)
    index = [s.name for s in compiled.partitioned.engine_segments].index(segment.name)
    network = compiled.networks[index]
    if module.executor == "reference":
        return segment, _reference(compiled, network, parameters)
    from pipeline.runtime.engine import EngineRunner

    return segment, EngineRunner(compiled.engines[index], network)


def _reference(compiled: Compiled, network: Network, parameters: Mapping[str, torch.Tensor]) -> Runner:
    from pipeline.runtime.reference import ReferenceEngine

    weights = {
        w.name: compiled.refit_map[w.name].evaluate(parameters)
        if w.name in compiled.refit_map
        else compiled.literals[w.name]
        for w in network.weights
    }
    engine = ReferenceEngine(network, weights)

    def run(inputs: list[Any]) -> Sequence[torch.Tensor]:
        return engine([torch.as_tensor(v) for v in inputs])

    return run
