"""Errors and warnings. Each message names what failed, states the reason, and suggests a solution."""

import contextlib
import functools
import importlib.util
import os
import re
import sys
import traceback
import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path, PurePath
from typing import Any, Final

import attrs
import torch

from pipeline.records.wording import did_you_mean

_LIBRARY = (contextlib.__file__, functools.__file__)
_FRAME = re.compile(
    r'^ *File "(?P<file>[^"\n]+)", line (?P<line>\d+)[^\n]*(?:\n(?! *File ")[^\S\n]*(?P<code>[^\n]*\S))?', re.M
)

_CALL = "it is for inference, and is called as it is: compiled(x)"
_MOVE = (
    "engines run on the current GPU and take inputs from any device: compiled.module() is an nn.Module there, "
    'compiled.module("reference") one on the CPU'
)
_CAST = 'dtypes are fixed when compiling: compile the model in others, or with precision="float16"'
_WEIGHTS = (
    "compiled.program.parameters has the weights, compiled.module().state_dict() the buffers, and "
    "pipeline.refit_module_weights replaces weights"
)
_GENERATE = "pipeline.compat.transformers.compile_for_generation(model, …) returns an object with generate"

MODULE_METHODS: Final[Mapping[str, str]] = {
    **dict.fromkeys(("eval", "train", "forward", "requires_grad_", "zero_grad"), _CALL),
    **dict.fromkeys(("to", "cuda", "cpu", "device"), _MOVE),
    **dict.fromkeys(("half", "float", "double", "bfloat16", "type", "dtype"), _CAST),
    **dict.fromkeys(("parameters", "named_parameters", "buffers", "state_dict", "load_state_dict"), _WEIGHTS),
    "generate": _GENERATE,
}
"""What to use instead of each method of ``nn.Module`` that a compiled program does not have."""


def missing_attribute_error(name: str, known_names: Iterable[str]) -> AttributeError:
    """Return the error for an attribute that `Compiled` lacks; it names a replacement, or similar ``known_names``."""
    if name in MODULE_METHODS:
        return AttributeError(f"a Compiled has no .{name}, which an nn.Module has: {MODULE_METHODS[name]}")
    public = (each for each in known_names if not each.startswith("_"))
    return AttributeError(f"a Compiled has no .{name}{did_you_mean(name, public)}")


@attrs.frozen
class Fallback:
    """A node that runs in PyTorch: its name and target, the reason, a hint, and the user's source line."""

    node: str
    target: str
    reason: str
    hint: str = ""
    where: str = ""

    def __str__(self) -> str:
        lines = [f"{self.target} at node {self.node}{_in_brackets(self.where)}", _indent(self.reason)]
        return "\n".join([*lines, f"  hint: {self.hint}"] if self.hint else lines)


@attrs.frozen
class Unreached:
    """A converter, decomposition or setting of the user that was not used, and the reason."""

    what: str
    reason: str
    hint: str = ""

    def __str__(self) -> str:
        return f"{self.what} is not used: {self.reason}" + (f" (hint: {self.hint})" if self.hint else "")


class PipelineError(RuntimeError):
    """The base of all errors while compiling, refitting and running. Wrong arguments are TypeError and ValueError.

    message: what failed and why, in a few lines.
    hint: a suggested solution; each error class has a default.
    """

    advice = ""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message, hint)
        self.message, self.hint = message, hint

    def __str__(self) -> str:
        return _format_message(self.message, "", self.hint or self.advice)


class UnsupportedOperatorException(PipelineError):  # noqa: N818 - the field's name for it
    """Full compilation was required, but the nodes in `fallbacks`, of `total` nodes, would run in PyTorch."""

    advice = "allow partial compilation (require_full_compilation=False)"

    def __init__(self, fallbacks: Sequence[Fallback], total: int) -> None:
        some = f"{len(fallbacks)} of {total} nodes would run in PyTorch"
        super().__init__(some if fallbacks else "no operator of the model is left for an engine")
        self.fallbacks, self.total = tuple(fallbacks), total
        self.args = (self.fallbacks, total)

    def __str__(self) -> str:
        nodes = (_indent(str(fallback)) for fallback in self.fallbacks)
        return _format_message("\n".join([self.message, *nodes]), "", self.advice)


class ConversionError(PipelineError):
    """A converter, or TensorRT inside the converter, refused a node that the stage `validate` had accepted."""

    def __init__(self, node: str, target: str, where: str = "", message: str = "") -> None:
        super().__init__(message)
        self.node, self.target, self.where = node, target, where
        self.args = (node, target, where, message)

    def __str__(self) -> str:
        what = f"{self.target} at node {self.node}{_in_brackets(self.where)} could not be converted"
        own = self.message.startswith("the converter returned")
        other = "correct the converter" if own else "give it a converter of your own"
        hint = f'run it in PyTorch (torch_executed_ops={{"{self.target}"}}), or {other}'
        return _format_message(what, self.message, hint)


class BuildError(PipelineError):
    """TensorRT could not build an engine from its network; the message names the segment and quotes TensorRT."""

    advice = "print the network (`pipeline print`), and run what TensorRT names in PyTorch (torch_executed_ops)"


class QuantizationError(BuildError):
    """Fused quantization was required, but engines do not fuse the quantize/dequantize pairs in ``pairs``."""

    advice = "do not quantize these layers (exclude=…), or allow them (require_fused_quantization=False)"

    def __init__(self, engine: str, pairs: Sequence[object]) -> None:
        rows = "\n".join(f"  {pair}" for pair in pairs)
        many = f"{engine}: {len(pairs)} quantized layers are not fused\n{rows}"
        none = f"{engine} has no quantized layer in an engine: quantize the model first (pipeline.quantize)"
        super().__init__(many if pairs else none)
        self.engine, self.pairs = engine, tuple(pairs)
        self.args = (engine, self.pairs)


class CalibrationError(PipelineError, ValueError):
    """Calibration does not determine the ranges of the activations to quantize; the message says why."""

    advice = "pass calibration=[…]: a few typical inputs, each as a tensor, a tuple of arguments or a dict of keywords"


class CaptureError(PipelineError):
    """torch.export could not capture the model; the message names the model and quotes torch.export."""

    advice = "if model(*args) fails too, correct the inputs; if not, torch.export.export(model, args) may say more"


class ShapeError(PipelineError, ValueError):
    """An input has a size, ``value``, in dimension ``dim`` that the program was not compiled for. If ``dim`` is None,
    ``value`` is not a size but the value of an int input or, with ``rank=True``, the rank of a tensor.

    ``range``: the smallest and largest allowed value. ``why``: words that explain the range in the message, or empty.
    """

    def __init__(
        self, input: str, dim: int | None, value: int, range: tuple[int, int], why: str = "", rank: bool = False
    ) -> None:
        allowed = f"{range[0]} to {range[1]}" if range[0] != range[1] else f"{range[0]}"
        allowed += f", {why}" if why else ""
        has = "rank" if rank else "value" if dim is None else "size"
        where = "" if dim is None else f" in dimension {dim}"
        ranged = "Input(min_shape=…, opt_shape=…, max_shape=…)" if has == "size" else "dynamic_shapes"
        hint = "" if rank else f"compile for a range with this {has}: {ranged}"
        hint = f"compile with max_batch={value}" if why.startswith("its max_batch") else hint
        super().__init__(f"input {input} has {has} {value}{where}; compiled for {allowed}", hint)
        self.input, self.dim, self.value, self.range, self.why, self.rank = input, dim, value, range, why, rank
        self.args = (input, dim, value, range, why, rank)


class DtypeError(PipelineError, TypeError):
    """An input has the dtype ``found``, but the model or the compiled program expects the dtype ``due``. ``why``: what
    requires that dtype, or empty."""

    def __init__(self, input: str, found: str, due: str, why: str = "") -> None:
        hint = f"cast it: .to(torch.{due}), Input(…, dtype=torch.{due})" if due.isidentifier() else "cast it"
        super().__init__(f"input {input} is {found}, expected {due}{why and f': {why}'}", f"{hint}; or cast the model")
        self.input, self.found, self.due, self.why = input, found, due, why
        self.args = (input, found, due, why)


class RefitError(PipelineError):
    """Some weights could not be refitted: `weights` maps the name of each to the reason."""

    advice = "compile with immutable_weights=False for refittable engines, or compile the new model"

    def __init__(self, weights: Mapping[str, str], hint: str = "") -> None:
        plural = "" if len(weights) == 1 else "s"
        super().__init__(f"{len(weights)} weight{plural} could not be refitted", hint)
        self.weights = dict(weights)
        self.args = (self.weights, hint)

    def __str__(self) -> str:
        rows = "\n".join(f"{name}: {reason}" for name, reason in self.weights.items())
        return _format_message(self.message, rows, self.hint or self.advice)


class AgreementError(PipelineError):
    """Errors of a compiled program compared with eager PyTorch exceed their bounds; ``agreement`` has all errors."""

    advice = (
        'verify(on_failure="heal") replaces the operators with wrong results, and pipeline.bisect finds them; '
        'verify(on_failure="warn") only warns'
    )

    def __init__(self, agreement: Any, hint: str = "") -> None:
        is_captured_otherwise = agreement.differences and agreement.differences == agreement.failures
        super().__init__(_list_wrong_outputs(agreement), hint or (CAPTURED_OTHERWISE if is_captured_otherwise else ""))
        self.agreement = agreement
        self.args = (agreement, hint)


CAPTURED_OTHERWISE = (
    "torch.export.export(model, args).module() shows the same difference: another version of torch or of the "
    "model's library may export it right; so may a model that does not ask whether it is traced, and keeps no state "
    "beside its buffers. verify(module=False) goes on with the captured graph"
)


class AgreementWarning(UserWarning):
    """A program disagrees with eager PyTorch, and `verify(on_failure="warn")` was requested instead of an error."""


class UnreachedWarning(UserWarning):
    """A converter, decomposition or setting of the user was not used, although the model calls its operator."""


class VersionWarning(UserWarning):
    """This package was not tested with the installed release of TensorRT-RTX or torch."""


class CoverageWarning(UserWarning):
    """Less than half of a model, or none of it, runs in engines; the message states the reason and a solution."""


class ExecutionError(PipelineError):
    """A compiled program could not run; the message names what was executing and quotes TensorRT or CUDA."""

    advice = 'compiled.module(executor="reference") runs the same networks on the CPU'


class DecisionError(ExecutionError):
    """A call takes another data-dependent branch than the example inputs did; the message names the source line."""

    advice = 'compile with an example that takes this branch, or use torch.where: decisions="example" has one branch'


class ArtifactError(PipelineError):
    """A program cannot be saved or loaded; the message names the file and the reason."""

    advice = "compile the model again, and save the program"


class ArtifactWarning(UserWarning):
    """A saved program loads with restrictions: for example, it runs on the CPU executor instead of its engines."""


for _kind in [each for each in vars().values() if isinstance(each, type)]:
    if issubclass(_kind, PipelineError | UserWarning):
        _kind.__module__ = "pipeline"  # where users import it from


def _list_wrong_outputs(agreement: Any) -> str:
    """Return `AgreementError`'s text: the wrong outputs with their sizes and errors, or why none was compared."""
    if not agreement.failures:
        skipped = "; ".join(f"{sample}: {why}" for sample, why in agreement.skipped.items())
        return f"the program could not be compared with eager: {skipped}"
    lines = []
    wrong, differ = [row for row in agreement.failures if row.source == "graph"], agreement.differences
    count = sum(row.source == "graph" for row in agreement.rows)
    first = f"{len(wrong)} of {count} outputs are wrong on the {agreement.executor} executor"
    other = f"the captured graph differs from the module in {len(differ)} of {len(agreement.rows) - count} outputs"
    for title, rows in ((first, wrong), (f"{other}: this comes of torch.export, and of no engine", differ)):
        lines += [title] if rows else []
        for row in rows[:8]:
            sizes = ", ".join(f"{place} = {size}" for place, size in agreement.sizes.get(row.sample, {}).items())
            lines.append(f"  {row}{f', at {sizes}' if sizes else ''}")
        lines += ["  …"] if len(rows) > 8 else []
    return "\n".join(lines)


def source_line(node: torch.fx.Node) -> str:
    """Return the user's source line that created a node, such as `model.py:41, y = x.topk(5000)`: the innermost stack
    frame outside of torch and its generated code (a model's library counts as user code); empty if unknown."""
    return source_line_in(node.meta)


def source_line_in(meta: Mapping[str, Any]) -> str:
    """Return the user's source line that created a node, given the node's ``meta``; empty if unknown."""
    return _innermost_user_line(meta.get("stack_trace") or "")


@lru_cache(256)
def _innermost_user_line(stack_trace: str) -> str:
    """Return the user's innermost line in a stack trace; cached, since the nodes of one call share their trace."""
    frames = list(_FRAME.finditer(stack_trace))
    if not frames:
        return ""
    frame = next((f for f in reversed(frames) if not f["file"].startswith((package_folder("torch"), "<"))), frames[-1])
    place = f"{PurePath(frame['file']).name}:{frame['line']}"
    return f"{place}, {frame['code']}" if frame["code"] else place


@cache
def package_folder(package: str) -> str:
    """Return an imported package's folder with a separator at its end: ``torch/`` is no prefix of ``torchvision/``."""
    return f"{Path(str(sys.modules[package].__file__)).parent}{os.sep}"


def require_package(package: str, extra: str) -> None:
    """Raise an ``ImportError`` that names the extra of this distribution to install, if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise ImportError(f'{package} is not installed: pip install "stagewright[{extra}]"', name=package)


def warn(message: str, category: type[Warning]) -> None:
    """Issue a warning located at the user's line that called this package, however deep in the stack that line is."""
    frame, level = sys._getframe(1), 2
    while frame.f_back is not None and frame.f_code.co_filename.startswith((package_folder("pipeline"), *_LIBRARY)):
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def error_text(error: BaseException) -> str:
    """Return an exception's message: with the exception's type if the message alone may be unclear (`KeyError: 'x'`),
    and without the stack addresses of C++ errors."""
    words = str(error).partition("\nException raised from ")[0]
    return words if words and isinstance(error, RuntimeError) else f"{type(error).__name__}: {words}".rstrip(": ")


def where_raised(error: BaseException) -> str:
    """Return the file and line that raised an exception: the innermost frame outside torch: `model.py, line 41`."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if not frame.filename.startswith(package_folder("torch"))] or list(frames)
    return f"{own[-1].filename}, line {own[-1].lineno}" if own else ""


def _format_message(what: str, why: str, hint: str) -> str:
    """Return an error's text: the line ``what``, the indented ``why``, and a line with the hint if there is one."""
    lines = [what, _indent(why, 4), f"  hint: {hint}" if hint else ""]
    return "\n".join(line for line in lines if line)


def _indent(text: str, columns: int = 2) -> str:
    return "\n".join(" " * columns + line for line in text.splitlines())


def _in_brackets(text: str) -> str:
    """Return ``" (text)"``, to be appended to a sentence; an empty string for an empty text."""
    return f" ({text})" if text else ""
