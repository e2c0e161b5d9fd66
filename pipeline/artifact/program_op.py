"""A compiled program as an operator of torch, ``pipeline::run``, which torch.compile and torch.export can trace.

Its fake implementation computes result shapes from expressions that are passed as text. The real implementation finds
the module by a key. If another process exported the graph, it loads the module from the bytes of a saved program.
"""

from __future__ import annotations

import json
import tempfile
import uuid
import weakref
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final, TypeAlias

import sympy
import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_unflatten
from torch.utils._sympy.interp import sympy_interp
from torch.utils._sympy.reference import PythonReferenceAnalysis

from pipeline.artifact.expressions import from_json, to_json
from pipeline.artifact.load import load_without_warning
from pipeline.artifact.op_names import ANY
from pipeline.artifact.save import save
from pipeline.aten.dtypes import short_name
from pipeline.aten.tensor_type import TensorType
from pipeline.aten.types import Argument, Leaf
from pipeline.compiled import Compiled, CompiledModule
from pipeline.errors import ArtifactError, ExecutionError
from pipeline.inputs import Constant
from pipeline.program import Output, Port, Program
from pipeline.runtime.module import ProgramModule
from pipeline.shapes.environment import shape_of

_MODULES: Final[weakref.WeakValueDictionary[str, CompiledModule]] = weakref.WeakValueDictionary()
"""The compiled modules that graphs of this process call, by key, while they are alive."""

_LOADED: Final[weakref.WeakKeyDictionary[torch.UntypedStorage, CompiledModule]] = weakref.WeakKeyDictionary()
"""The modules created from the bytes of saved programs, as long as a graph holds the bytes."""


class OperatorCall:
    """A callable that torch.compile and torch.export trace as one call of the operator ``pipeline::run``, which runs
    the compiled module. The constructor computes before the trace what the call needs."""

    def __init__(self, module: ProgramModule, compiled: Compiled) -> None:
        program: Program = module.program
        values = {node.name: node.meta.get("val") for node in program.graph.nodes}
        self.plain = tuple(_tensor_or_constant(values, o) for o in program.outputs if o.kind == "user")
        self.refusal = _trace_obstacle(program, self.plain)
        self.key = uuid.uuid4().hex
        self.facts = "" if self.refusal else _call_facts_json(program, values, self.key)
        self.kinds = tuple(map(_input_kind, program.inputs))
        self.compiled = weakref.ref(compiled)
        _MODULES[self.key] = module

    def __call__(self, module: ProgramModule, args: tuple[Leaf, ...], kwargs: Mapping[str, Leaf]) -> Leaf:
        """Call the operator, and convert its results to the model's output structure."""
        if self.refusal:
            raise ExecutionError(self.refusal, "call the compiled module outside of the function that is traced")
        leaves = tree_leaves((args, kwargs))
        tensors = [leaf for leaf, kind in zip(leaves, self.kinds, strict=True) if kind == "tensor"]
        sizes = [leaf for leaf, kind in zip(leaves, self.kinds, strict=True) if kind == "symint"]
        saved = None if torch.compiler.is_dynamo_compiling() or not torch.compiler.is_exporting() else _save_bytes(self)
        results = iter(torch.ops.pipeline.run(saved, tensors, sizes, self.facts))
        return module._rebuild_outputs([next(results) if is_tensor else value for is_tensor, value in self.plain])


def _input_kind(port: Port) -> str:
    """Return ``tensor`` for an input of the program that the operator gets in its list of tensors (also for a constant
    tensor, which each call checks), ``symint`` for one in its list of sizes, or else the port's kind."""
    return "tensor" if isinstance(port.value, Constant) else port.kind


def _trace_obstacle(program: Program, outputs: Sequence[tuple[bool, Leaf]]) -> str:
    """Return why torch.compile and torch.export cannot trace a call of the program; empty if they can. ``outputs``: for
    each output of the model, whether it is a tensor, and its value if it is a constant."""
    if program.buffers:
        name = next(iter(program.buffers.values()))
        return f"the compiled program updates its buffer {name}, and an outer graph cannot contain such a call"
    if any(o.kind == "input" for o in program.outputs):
        return "the compiled program writes to its inputs, and an outer graph cannot contain such a call"
    users = (o for o in program.outputs if o.kind == "user")
    numbers = [o.name for o, (is_tensor, _) in zip(users, outputs, strict=True) if not is_tensor and not o.constant]
    return f"the compiled program returns {numbers[0]}, a dynamic number" if numbers else ""


def _tensor_or_constant(node_values: Mapping[str, Argument], output: Output) -> tuple[bool, Leaf]:
    """Return (True, None) for a tensor output, (False, value) for a constant, (False, None) for a dynamic number."""
    if output.constant:
        return False, output.value
    return isinstance(node_values[output.value], torch.Tensor | TensorType), None


def _call_facts_json(program: Program, node_values: Mapping[str, Argument], module_key: str) -> str:
    """Return ``pipeline::run``'s argument ``facts``: JSON of module key, input sizes, and results' dtypes and sizes."""
    tensors = [
        [to_json(size) for size in (port.value.value.shape if isinstance(port.value, Constant) else port.shape)]
        for port in program.inputs
        if _input_kind(port) == "tensor"
    ]
    sizes = [to_json(port.value) for port in program.inputs if port.kind == "symint"]
    given = [node_values[o.value] for o in program.outputs if o.kind == "user" and not o.constant]
    results = [[short_name(value.dtype), [to_json(size) for size in shape_of(value)]] for value in given]
    return json.dumps({"key": module_key, "tensors": tensors, "sizes": sizes, "results": results})


def _save_bytes(call: OperatorCall) -> torch.Tensor:
    """Save the called program as a tensor of bytes, for an exported graph that another process loads."""
    compiled = call.compiled()
    if compiled is None:
        hint = "keep a reference to the result of pipeline.default()(…) or pipeline.load until torch.export returns"
        raise ArtifactError("torch.export has to save the program of a compiled module, but the program is gone", hint)
    with _disable_current_modes(), tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.trtp"
        save(compiled, path)
        return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8)


def run(
    program: torch.Tensor | None, inputs: Sequence[torch.Tensor], sizes: Sequence[int], facts: str
) -> list[torch.Tensor]:
    """Run a compiled program on tensor arguments (``inputs``) and int arguments (``sizes``), for ``pipeline::run``.
    ``program``: bytes of the saved program, if the graph was exported. ``facts``: JSON from `_call_facts_json`."""
    module = _find_or_load_module(program, _parse_facts(facts)[0])
    given: dict[str, Iterator[Leaf]] = {"tensor": iter(inputs), "symint": iter(sizes)}
    ports = module.program.inputs
    leaves = [next(given[_input_kind(port)]) if _input_kind(port) in given else port.value for port in ports]
    args, kwargs = tree_unflatten(leaves, module.program.in_spec)
    # `forward`, not a call: the module's hooks are in the graph already, and `module.compile()` would call this again.
    results = [leaf for leaf in tree_leaves(module.forward(*args, **kwargs)) if isinstance(leaf, torch.Tensor)]
    return _clone_aliases(results, inputs)


def _find_or_load_module(program_bytes: torch.Tensor | None, module_key: str) -> CompiledModule:
    """Return this process's module with this key; if there is none, create it from the bytes of a saved program."""
    if (known := _MODULES.get(module_key)) is not None:
        return known
    if program_bytes is None:
        hint = "keep a reference to compiled.module(); to use the graph in another process, export it with strict=False"
        raise ExecutionError("the graph calls a compiled module that was deleted", hint)
    storage = program_bytes.untyped_storage()
    if storage not in _LOADED:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "program.trtp"
            path.write_bytes(program_bytes.cpu().numpy().tobytes())
            _LOADED[storage] = load_without_warning(path, ANY).module()  # the exported graph may call any operator, too
    return _LOADED[storage]


def _clone_aliases(results: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Clone results that share memory with inputs or other results, since operators must not return aliases."""
    taken = {tensor.untyped_storage().data_ptr() for tensor in inputs}
    found = []
    for result in results:
        pointer = result.untyped_storage().data_ptr()
        found.append(result.clone() if pointer in taken else result)
        taken.add(pointer)
    return found


def empty_results(inputs: Sequence[torch.Tensor], sizes: Sequence[int], facts: str) -> list[torch.Tensor]:
    """Return uninitialized results of a call of `run`, for tracing; expressions in ``facts`` determine their shapes."""
    _, tensors, numbers, results = _parse_facts(facts)
    given = [*zip(numbers, sizes, strict=True)]
    given += [pair for shape, x in zip(tensors, inputs, strict=True) for pair in zip(shape, x.shape, strict=True)]
    known = {expr: size for expr, size in given if isinstance(expr, sympy.Symbol)}
    home = next((x.device for x in inputs if x.device.type != "cpu"), torch.device("cpu"))
    return [torch.empty([_eval_size(e, known) for e in shape], dtype=dtype, device=home) for dtype, shape in results]


def _eval_size(expr: Argument, known_sizes: dict[Argument, Argument]) -> Argument:
    """Compute a size from the symbols' sizes in ``known_sizes``; add new sizes there for data-dependent symbols."""
    if isinstance(expr, int):
        return expr
    for symbol in expr.free_symbols - known_sizes.keys():
        known_sizes[symbol] = torch.library.get_ctx().new_dynamic_size()
    return sympy_interp(PythonReferenceAnalysis, known_sizes, expr)


Results: TypeAlias = list[tuple[torch.dtype, list[Argument]]]


@lru_cache(maxsize=256)
def _parse_facts(facts: str) -> tuple[str, list[list[Argument]], list[Argument], Results]:
    """Return the JSON of `_call_facts_json` as the key of the compiled module in `_MODULES`, the shape of each input
    tensor, each size input, and (dtype, shape) of each result."""
    data = json.loads(facts)
    results = [(getattr(torch, dtype), [from_json(size) for size in shape]) for dtype, shape in data["results"]]
    tensors = [[from_json(size) for size in shape] for shape in data["tensors"]]
    return data["key"], tensors, [from_json(size) for size in data["sizes"]], results
