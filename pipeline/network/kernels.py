"""Read the kernels of an engine from its plan, with the network layers that each kernel computes.

A plan of TensorRT-RTX 1.4 contains, as text, the program that its engine runs: a line for each kernel. The format is
undocumented, so only reports, comparisons, tests and `require_fused_quantization` depend on it. A plan for several
compute capabilities contains a program for each; the first program is read.
"""

from __future__ import annotations

import re
from typing import Any

from attrs import frozen

_PROGRAM = re.compile(rb"main \{\n.*?(?=\n[a-z_]*main|\x00)", re.S)
_LINE = re.compile(r"^ +(\w+)=\{ name=(\"[^\"]*\"|\S+)")
_LAYERS = re.compile(r"layers=\"([^\"]*)\"")
_BETWEEN = "\x1f"
_READ = re.compile(r" (?:input_args|input)=\{([^}]*)\}")
STREAMS, SIZES = frozenset({"signal", "wait"}), frozenset({"shape_call"})
"""Kinds of steps in a plan that compute nothing: they synchronize streams, or let the host compute sizes."""
PRODUCTS = frozenset({"fully_connected", "runtime_fusion", "corrltn", "convolution", "conv"})
"""Kinds of steps that compute a matmul or convolution, with the operations fused into it."""


@frozen
class Kernel:
    """One step of the program inside an engine, usually a kernel launch.

    kind: TensorRT's name for the kind of step: ``function``, ``runtime_fusion``, ``corrltn``, ``fully_connected``…
    name: the name, which lists the fused operations. layers: the network's layers that the step computes, wholly or
    partly. place: the index of this step among all steps, which TensorRT's profiler appends to the name; -1 if unknown.
    reads: the names of the tensors in the plan that it reads.
    """

    kind: str
    name: str
    layers: tuple[str, ...] = ()
    place: int = -1
    reads: tuple[str, ...] = ()

    @property
    def role(self) -> str:
        """Return ``product`` (a matmul or convolution), ``attention``, or ``other``."""
        if self.kind in PRODUCTS:
            return "product"
        return "attention" if "_mha" in self.name else "other"

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


def kernels(plan: Any) -> tuple[Kernel, ...]:
    """Return the steps of a plan's program that compute something, in order; `all_steps` also returns the others."""
    return tuple(step for step in all_steps(plan) if step.kind not in STREAMS | SIZES)


def all_steps(plan: Any) -> tuple[Kernel, ...]:
    """Return the steps that an engine runs, in order, from the list in its plan (bytes or another buffer): kernels, and
    steps that synchronize streams or compute sizes. Raise a `ValueError` if the plan has no such list."""
    found = _PROGRAM.search(plan)
    if found is None:
        raise ValueError("the engine plan contains no list of kernels as text: expected a plan of TensorRT-RTX 1.4")
    kernels: list[Kernel] = []
    for line in filter(None, map(_LINE.match, found[0].decode(errors="replace").split("\n"))):
        layers, read = _LAYERS.search(line.string), _READ.search(line.string)
        names = layers[1].split(_BETWEEN) if layers is not None else []
        tensors = re.findall(r'"([^"]*)"', read[1]) if read is not None else []
        kernels.append(Kernel(line[1], line[2].strip('"'), tuple(filter(None, names)), len(kernels), tuple(tensors)))
    return tuple(kernels)
