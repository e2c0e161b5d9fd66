"""Find where a node of a TorchScript graph comes from in the user's code."""

from __future__ import annotations

import re
from collections.abc import Sequence

from attrs import field, frozen

from pipeline.errors import line_of
from pipeline.export_fixes.torchscript.types import Foreign
from pipeline.frozen import FrozenDict

_SCRIPTED = re.compile(r'File "(?P<file>[^"\n]+)", line (?P<line>\d+)')
_TRACED = re.compile(r"^(?P<file>[^\n]+?)\((?P<line>\d+)\): (?P<scope>\S+)$", re.M)
_MARK = re.compile(r"^(?P<code>[^\n]*)\n\s*~+", re.M)
_OF_TRACE = "torch/jit/_trace.py"


@frozen
class Place:
    """The stack trace of a node, as Python prints one, and the classes of the modules around it by their paths."""

    trace: str = ""
    modules: FrozenDict[str, str] = field(factory=FrozenDict)

    def at(self, trace: str) -> Place:
        """Return the same at another line."""
        return Place(trace or self.trace, self.modules)

    def inside(self, path: str, kind: str) -> Place:
        """Return the same place, inside a module that is called there."""
        return Place(self.trace, FrozenDict({**self.modules, path: kind}))

    @property
    def where(self) -> str:
        """The user's line, `model.py:12, y = x + 1`; empty if the graph does not have it."""
        return line_of({"stack_trace": self.trace})

    @property
    def meta(self) -> dict[str, Foreign]:
        """The ``meta`` of torch.fx nodes that are made here."""
        stack = {path: (path, name) for path, name in self.modules.items()}
        return {"nn_module_stack": stack, **({"stack_trace": self.trace} if self.trace else {})}


def lines(nodes: Sequence[Foreign]) -> list[str]:
    """Return the stack traces of torch's nodes; a node without one gets that of the nearest node."""
    known = [_trace(node.sourceRange()) for node in nodes]
    last = next(filter(None, known), "")
    return [last := trace or last for trace in known]


def _trace(source: str) -> str:
    """A scripted node has the text around its line, marked; a traced one the frames of its call, innermost first."""
    if found := _SCRIPTED.search(source.partition("\nSerialized ")[0]):
        marked = _MARK.search(source)
        code = f"\n    {marked['code'].strip()}" if marked else ""
        return f'  File "{found["file"]}", line {found["line"]}, in forward{code}\n'
    frames = list(_TRACED.finditer(source))
    end = next((i for i, frame in enumerate(frames) if frame["file"].endswith(_OF_TRACE)), len(frames))
    rows = [f'  File "{f["file"]}", line {f["line"]}, in {f["scope"]}\n' for f in reversed(frames[:end])]
    return "".join(rows)
