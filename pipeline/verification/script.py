"""Write a self-contained Python script that reproduces a fault: faulty nodes as a module, inputs, and errors."""

from __future__ import annotations

import math
import operator

import torch

from pipeline.aten.types import Argument
from pipeline.program import Program, is_operator
from pipeline.recipes import qualified_name
from pipeline.records.agreement import Agreement
from pipeline.verification.eager import EagerRun
from pipeline.verification.measure import Comparison
from pipeline.verification.records import Fault

TEXT = '''\
"""{title}"""

import sys
import warnings

import torch

import pipeline

torch.manual_seed(0)
device = "cuda" if torch.cuda.is_available() else "cpu"


def normal(mean, deviation, low, high, *shape):
    return (torch.randn(shape) * deviation + mean).clamp(low, high)


class Fault(torch.nn.Module):
    def __init__(self):
        super().__init__()
{constants}

    def forward(self{parameters}):
        aten = torch.ops.aten
{body}
        return ({results},)


inputs = ({inputs})
compile = pipeline.default({settings}) | pipeline.verify(on_failure="warn"{executor})
warnings.simplefilter("ignore")
compiled = compile(Fault().eval().to(device), tuple(x.to(device) for x in inputs))
print(compiled.agreement)
sys.exit(0 if compiled.agreement.holds else 1)
'''


def fault_script(program: Program, comparison: Comparison, fault: Fault, agreement: Agreement) -> str:
    """Return a Python script that runs the nodes of ``fault`` alone, on random inputs that resemble those in the first
    wrong sample (of ``fault`` or ``agreement``). Empty if the nodes cannot be written as calls (control flow)."""
    sample = (fault.failures or agreement.failures)[0].sample
    reference = next(r for r in comparison.references if r.sample.name == sample)
    writer = _Writer(program, frozenset(fault.nodes))
    calls = all(isinstance(node.target, torch._ops.OpOverload) for node in writer.nodes)
    if not calls or any(node.op == "get_attr" for node in writer.inputs):
        return ""
    values = dict[str, Argument]()

    def keep(node: torch.fx.Node, value: object) -> None:
        if node in writer.inputs:
            values[node.name] = value

    EagerRun(program, reference.parameters, reference.device, observe=keep)(reference.inputs)
    return writer.render(values, fault, comparison)


class _Writer:
    """A writer of Python source for faulty nodes: ``nodes``, in execution order, which read ``inputs``."""

    def __init__(self, program: Program, names: frozenset[str]) -> None:
        self.program, self.names = program, names
        self.nodes = [node for node in program.graph.nodes if node.name in names]
        read = (source for node in self.nodes for source in node.all_input_nodes)
        self.inputs = list(dict.fromkeys(source for source in read if not self.is_faulty(source)))

    def is_faulty(self, node: torch.fx.Node) -> bool:
        """Return whether a node is faulty, or an item of the result of a faulty node."""
        return node.name in self.names or (node.target is operator.getitem and self.is_faulty(node.args[0]))  # type: ignore[arg-type]

    def render(self, values: dict[str, Argument], fault: Fault, comparison: Comparison) -> str:
        """Return the script: ``TEXT`` with the faulty nodes as a module, and random inputs that resemble ``values`` (by
        node name). ``fault`` is described in its title; ``comparison`` has the executor."""
        nodes = ", ".join(f"{n} ({t})" for n, t in zip(fault.nodes, fault.targets, strict=True))
        failure = f": {fault.failures[0]}" if fault.failures else ""
        settings = self.program.settings.evolve(torch_executed_ops=()).changed()
        tensors = [n for n in self.inputs if isinstance(values.get(n.name), torch.Tensor)]
        constants = [n for n in tensors if n.name in self.program.constants]
        inputs = [n for n in tensors if n not in constants]
        sources = {n: f"self.{n.name}" if n in constants else n.name for n in tensors}
        sources |= {n: _value_source(values[n.name]) for n in self.inputs if n not in sources}
        given = "".join(f"\n    {_random_tensor_source(values[n.name])},  # {n.name}" for n in inputs)
        registered = (f"self.register_buffer({n.name!r}, {_random_tensor_source(values[n.name])})" for n in constants)
        return TEXT.format(
            title=f"The engine of {nodes} is wrong{failure}.".replace('"', "'").replace("\\", "/"),
            constants="\n".join(f"        {line}" for line in registered) or "        pass",
            parameters="".join(f", {n.name}" for n in inputs),
            body="\n".join(f"        {n.name} = {self.call_source(n, sources)}" for n in self.nodes),
            results=", ".join(self.result_sources()),
            inputs=f"{given}\n" if inputs else "",
            settings=", ".join(f"{name}={value}" for name, value in settings.items()),
            executor=f", executor={comparison.executor!r}",
        )

    def call_source(self, node: torch.fx.Node, sources: dict[torch.fx.Node, str]) -> str:
        """Return Python source that calls a node's operator. ``sources``: Python source for nodes that it may read."""
        arguments = [self.source(a, sources) for a in node.args]
        arguments += [f"{k}={'device' if k == 'device' else self.source(v, sources)}" for k, v in node.kwargs.items()]
        name = qualified_name(node.target)
        return f"{name if name.startswith('aten.') else f'torch.ops.{name}'}({', '.join(arguments)})"

    def source(self, argument: object, sources: dict[torch.fx.Node, str]) -> str:
        """Return the Python source of a node's argument: for a node, its source in ``sources`` or the node's name."""
        if isinstance(argument, torch.fx.Node):
            if argument in sources or argument.name in self.names:
                return sources.get(argument, argument.name)
            return f"{self.source(argument.args[0], sources)}[{argument.args[1]}]"  # an item
        if isinstance(argument, list | tuple):
            return f"[{', '.join(self.source(v, sources) for v in argument)}]"
        return _value_source(argument)

    def result_sources(self) -> list[str]:
        """Return, as source, what the script's module returns: the tensors of faulty nodes that other nodes read, or
        no node at all."""
        found: list[str] = []
        for node in self.nodes:
            value: Argument = node.meta.get("val")
            read = [u for u in node.users if not self.is_faulty(u) or not is_operator(u)]
            if isinstance(value, torch.Tensor):
                found += [node.name] if read or not node.users else []
            else:
                found += [f"{node.name}[{i}]" for i, v in enumerate(value) if isinstance(v, torch.Tensor)]
        return found


def _value_source(value: object) -> str:
    """Return the Python source of a constant in a graph."""
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return "device" if isinstance(value, torch.device) else repr(value)


def _random_tensor_source(value: torch.Tensor) -> str:
    """Return Python source that creates a random tensor of the same shape and dtype, with the same range or moments."""
    shape = "".join(f", {size}" for size in value.shape)
    if value.dtype == torch.bool:
        share = float(value.double().mean()) if value.numel() else 0.0
        return f"torch.rand({list(value.shape)}) < {share:.3g}"
    if value.is_complex():
        return f"torch.randn({list(value.shape)}, dtype={value.dtype})"
    if not value.is_floating_point():
        low, high = (int(value.min()), int(value.max())) if value.numel() else (0, 0)
        return f"torch.randint({low}, {high + 1}, {list(value.shape)}, dtype={value.dtype})"
    finite = value.double()[value.isfinite()]
    mean, deviation, least, most = 0.0, 1.0, 0.0, 0.0
    if finite.numel():
        measures = finite.mean(), finite.std(correction=0), finite.min(), finite.max()
        mean, deviation, least, most = map(float, measures)
    drawn = f"normal({mean:.6g}, {deviation:.6g}, {least:.9g}, {most:.9g}{shape})"
    return drawn if value.dtype == torch.float32 else f"{drawn}.to({value.dtype})"
