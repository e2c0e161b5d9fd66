"""What goes wrong, as a user reads it: what it is about, why, and how to go on."""

import os
import re
from collections.abc import Sequence
from functools import cache

import attrs
import torch

_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n(?! *File ")[^\S\n]*(?P<code>[^\n]*\S))?', re.M
)


@attrs.frozen
class Fallback:
    """A node that runs in PyTorch: its name and target, why, what could be done, and the user's line it comes from."""

    node: str
    target: str
    reason: str
    hint: str = ""
    where: str = ""

    def __str__(self) -> str:
        """Two lines or three, as they stand in an error and in a report."""
        lines = [f"{self.target} at node {self.node}{_bracketed(self.where)}", _indented(self.reason)]
        return "\n".join([*lines, f"  hint: {self.hint}"] if self.hint else lines)


class PipelineError(RuntimeError):
    """Whatever this package raises while it compiles, refits or runs; wrong arguments are TypeError and ValueError."""

    __module__ = "pipeline"


class UnsupportedOperatorException(PipelineError):
    """Full compilation was required and these nodes would run in PyTorch: `fallbacks`, of `total` nodes."""

    __module__ = "pipeline"

    def __init__(self, fallbacks: Sequence[Fallback], total: int) -> None:
        super().__init__(tuple(fallbacks), total)
        self.fallbacks = tuple(fallbacks)
        self.total = total

    def __str__(self) -> str:
        """Every node with its reason, and how to go on."""
        head = f"{len(self.fallbacks)} of {self.total} nodes would run in PyTorch"
        nodes = [_indented(str(fallback)) for fallback in self.fallbacks]
        return "\n".join([head, *nodes, "  hint: allow partial compilation (require_full_compilation=False)"])


class ConversionError(PipelineError):
    """A converter, or TensorRT inside it, refused a node that validation had accepted."""

    __module__ = "pipeline"

    def __init__(self, node: str, target: str, where: str = "", message: str = "") -> None:
        super().__init__(node, target, where, message)
        self.node, self.target, self.where, self.message = node, target, where, message

    def __str__(self) -> str:
        """The node, its line and TensorRT's own words."""
        return _told(
            f"{self.target} at node {self.node}{_bracketed(self.where)} could not be converted",
            self.message,
            f'run it in PyTorch (torch_executed_ops={{"{self.target}"}}), or give it a converter of your own',
        )


class BuildError(PipelineError):
    """TensorRT could not build the engine of this segment from its network."""

    __module__ = "pipeline"

    def __init__(self, segment: str, message: str, hint: str = "") -> None:
        super().__init__(segment, message, hint)
        self.segment, self.message, self.hint = segment, message, hint

    def __str__(self) -> str:
        """The segment and TensorRT's own words."""
        hint = (
            self.hint
            or "print its network (`pipeline print`), and run what TensorRT names in PyTorch (torch_executed_ops)"
        )
        return _told(f"TensorRT built no engine for {self.segment}", self.message, hint)


class CaptureError(PipelineError):
    """torch.export could not make a graph of the model."""

    __module__ = "pipeline"

    def __init__(self, model: str, message: str, hint: str = "") -> None:
        super().__init__(model, message, hint)
        self.model, self.message, self.hint = model, message, hint

    def __str__(self) -> str:
        """The model and torch.export's own words."""
        hint = (
            self.hint or "torch.export.export(model, args) alone shows the same; pass the ExportedProgram once it works"
        )
        return _told(f"{self.model} could not be captured", self.message, hint)


class ShapeError(PipelineError, ValueError):
    """An input whose size in a dimension, or whose rank (dim is None), is not one that was compiled for."""

    __module__ = "pipeline"

    def __init__(self, input: str, dim: int | None, value: int, range: tuple[int, int]) -> None:
        super().__init__(input, dim, value, range)
        self.input, self.dim, self.value, self.range = input, dim, value, range

    def __str__(self) -> str:
        """The input, its size and the sizes that would do."""
        low, high = self.range
        what = "rank" if self.dim is None else f"size {self.value} in dimension {self.dim}"
        have = f"input {self.input} has {what}{f' {self.value}' if self.dim is None else ''}"
        allowed = str(low) if low == high else f"{low} to {high}"
        hint = "compile with a range that has this size: Input(min_shape=…, opt_shape=…, max_shape=…)"
        return _told(f"{have}; compiled for {allowed}", "", hint if self.dim is not None else "")


class RefitError(PipelineError):
    """These weights could not be refitted: `weights` maps each to its reason."""

    __module__ = "pipeline"

    def __init__(self, weights: "dict[str, str] | Sequence[tuple[str, str]]", hint: str = "") -> None:
        self.weights = dict(weights)
        self.hint = hint
        super().__init__(tuple(self.weights.items()), hint)

    def __str__(self) -> str:
        """Every weight with its reason."""
        rows = "\n".join(f"{name}: {reason}" for name, reason in self.weights.items())
        hint = self.hint or "compile with immutable_weights=False for refittable engines, or compile the new model"
        return _told(f"{_count(len(self.weights), 'weight')} could not be refitted", rows, hint)


class ExecutionError(PipelineError):
    """A compiled program could not run: what was executing, and TensorRT's or CUDA's own words."""

    __module__ = "pipeline"

    def __init__(self, what: str, message: str, hint: str = "") -> None:
        super().__init__(what, message, hint)
        self.what, self.message, self.hint = what, message, hint

    def __str__(self) -> str:
        """What was executing and why it failed."""
        hint = self.hint or 'compiled.module(executor="reference") runs the same networks on the CPU'
        return _told(f"{self.what} could not run", self.message, hint)


def source_line(node: torch.fx.Node) -> str:
    """The user's line that a node comes from, `model.py:41, y = x.topk(5000)`; empty if nobody knows.

    The innermost frame of the node's stack trace outside torch itself; a model's library counts as the user's.
    """
    frames = list(_FRAME.finditer(node.meta.get("stack_trace") or ""))
    if not frames:
        return ""
    frame = next((f for f in reversed(frames) if not f["file"].startswith(_torch_folder())), frames[-1])
    place = f"{os.path.basename(frame['file'])}:{frame['line']}"
    return f"{place}, {frame['code']}" if frame["code"] else place


@cache
def _torch_folder() -> str:
    return os.path.dirname(torch.__file__) + os.sep


def _told(what: str, why: str, hint: str) -> str:
    body = [_indented(why, 4)] if why else []
    return "\n".join([what, *body, *([f"  hint: {hint}"] if hint else [])])


def _indented(text: str, columns: int = 2) -> str:
    return "\n".join(" " * columns + line for line in text.splitlines())


def _bracketed(where: str) -> str:
    return f" ({where})" if where else ""


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
