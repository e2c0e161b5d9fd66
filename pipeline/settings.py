"""``CompilationSettings``: one frozen record of every setting, validated when it is created."""

import math
import os
import re
from collections.abc import Callable
from typing import Any, Self

import attrs
import torch

from pipeline.records.executed_ops import TorchExecuted, entry_matches_node, entry_name, to_executed_entries
from pipeline.records.wording import did_you_mean, items_of, one_of, refuse_assignment, with_argument_advice
from pipeline.settings_migration import ELSEWHERE


def _sort_capabilities(capabilities: object) -> tuple[str, ...]:
    """Sort compute capabilities numerically and remove duplicates, so that settings for the same GPUs compare equal."""
    given = items_of(capabilities, 'compute_capabilities must be a collection such as ("8.6", "12.0")')
    for item in given:
        if not isinstance(item, str):
            raise TypeError(f'compute_capabilities: {item!r} is not a string such as "8.6"')
        if not re.fullmatch(r"[1-9]\d*\.\d", item, re.ASCII):
            raise ValueError(f'compute_capabilities: {item!r} is not of the form "8.6"')
    return tuple(sorted(set(given), key=lambda capability: tuple(map(int, capability.split(".")))))


def _to_device_type(device: object) -> str | None:
    """Convert a device to its type, such as ``"cuda"``; refuse an index, since the device may not exist elsewhere."""
    name = str(device) if isinstance(device, torch.device) else device
    if not isinstance(name, str | None):
        raise TypeError(f"device must be 'cuda', 'cpu' or None, got {device!r}")
    if name not in (None, "cuda", "cpu"):
        raise ValueError(f"device must be 'cuda', 'cpu' or None, got {name!r}; engines run on the current CUDA device")
    return name


def _check_boolean(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
    """Raise a `TypeError` if a field's value is no boolean; a field whose default is None also accepts None."""
    if not isinstance(value, bool) and not (value is None and field.default is None):
        expected = "True, False or None" if field.default is None else "True or False"
        raise TypeError(f"{field.name} must be {expected}, got {value!r}")


def integer_validator(
    least: int, most: float = math.inf, *, optional: bool = True, what: str = "an integer"
) -> Callable[[Any, Any, Any], None]:
    """Return a validator that accepts integers from ``least`` to ``most``, and also None if the field is optional."""
    span = f"at least {least}" if most == math.inf else f"from {least} to {most}"
    expected = f"{what} {span}" + (", or None" if optional else "")

    def check(_: object, field: "attrs.Attribute[int | None]", value: object) -> None:
        if value is None and optional:
            return
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{field.name} must be {expected}, got {value!r}")
        if not least <= value <= most:
            raise ValueError(f"{field.name} must be {expected}, got {value}")

    return check


def _parse_weight_patterns(patterns: object) -> tuple[str, ...]:
    given = sorted({*items_of(patterns, 'refittable_weights must be a collection such as ("layers.0.*",)')})
    if wrong := [item for item in given if not isinstance(item, str)]:
        raise TypeError(f"refittable_weights: {wrong[0]!r} is not a str: expected names or patterns of parameters")
    return tuple(given)


def _to_path(value: Any) -> Any:
    """Return a path as text; return other values, right or wrong, unchanged for the field's validator."""
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _path_validator(other: type, expected: str) -> Callable[[object, "attrs.Attribute[Any]", object], None]:
    """Return a validator of a path or a value of the type ``other``; ``expected`` names them in its `TypeError`."""

    def check(_: object, field: "attrs.Attribute[Any]", value: object) -> None:
        if not isinstance(value, (str, other)) or value == "":
            raise TypeError(f"{field.name} must be {expected}, got {value!r}")

    return check


_is_path_or_flag = _path_validator(bool, "True, False or a path")
_is_folder = _path_validator(type(None), "a folder, an fsspec URL or None")


RUNTIME = (
    "cuda_graphs",
    "max_cuda_graphs",
    "engine_graphs",
    "reuse_outputs",
    "execution_contexts",
    "kernel_specialization",
    "weight_streaming_budget",
    "torch_compile",
    "copy_weights",
    "runtime_cache",
)
"""The settings that control how a compiled program runs."""
ENGINE = (
    "version_compatible",
    "optimization_level",
    "workspace_size",
    "max_aux_streams",
    "compute_capabilities",
)
"""The settings of TensorRT's builder that are part of an engine's cache key; refitting and streaming are separate.
Other settings affect an engine only through its network, or not at all."""


def hint_for_unknown_setting(name: str) -> str:
    """Return the advice for an error: what to use in place of this setting, which does not exist."""
    if name in ELSEWHERE:
        return ELSEWHERE[name]
    return did_you_mean(name, CompilationSettings.names(), "") or "pipeline.CompilationSettings documents each"


@refuse_assignment("settings.evolve(name=value) returns a changed copy")
@with_argument_advice(hint_for_unknown_setting, "settings are given by name, as min_block_size=1")
@attrs.frozen(kw_only=True, repr=False)
class CompilationSettings:
    """Compilation settings: immutable and hashable. `evolve` returns a changed copy; `repr` shows changed fields.

    A wrong type raises a `TypeError`, a value out of range a `ValueError`; both name the field.

    truncate_double: compute float64 in float32 inside engines; the results are float64 again. If False, nodes with
        float64 run in PyTorch. Default False.
    require_full_compilation: raise `UnsupportedOperatorException` if any node would run in PyTorch. Default False.
    require_fused_quantization: raise `QuantizationError` unless the engine's plan shows that a matmul or convolution
        reads the quantized values of each quantized weight and of each quantize/dequantize pair. Default False.
    min_block_size: the minimum number of operators in an engine, at least 1; a smaller segment runs in PyTorch. Ignored
        if the whole model is one segment or with `require_full_compilation`. Default 5.
    max_engines: the maximum number of engines per model, at least 1; None for no limit. Default None.
    torch_executed_ops: the nodes that run in PyTorch although a converter exists: operators
        (`torch.ops.aten.topk.default`; a packet such as `torch.ops.aten.topk` means every overload), their names
        (`"aten.topk.default"`, `"aten::topk"`, `"torch.ops.aten.topk.default"`) or predicates on the path of the module
        that contains the node (`lambda path: path.startswith("encoder.")`). A builtin such as `operator.add` is an
        operator, not a predicate. The value is any iterable of these. Default empty.
    assume_dynamic_shape_support: assume that every converter supports dynamic shapes, declared or not. Default False.
    immutable_weights: build engines whose weights are fixed, which leaves TensorRT most freedom; False builds
        refittable engines. Default True.
    refittable_weights: the engine weights that can be refitted even if `immutable_weights` is True, by name or pattern
        (`"layers.0.*"`): TensorRT fixes all others. Building such engines needs a GPU. Default empty.
    refit_identical_engine_weights: build engines that can be refitted with the same weights only, at no cost in speed.
        Building such engines needs a GPU. Default False.
    strip_engine_weights: build engines without weights; loading an engine supplies the program's weights. Files and
        cache entries are smaller, and cache entries of refittable engines serve any weights. Building and loading such
        engines needs a GPU. Default False.
    version_compatible: build engines that later versions of TensorRT also load. Default False.
    optimization_level: how much time the builder may take to find faster kernels, 0 (least) to 5 (most); None for
        TensorRT's own default. Default None.
    workspace_size: the maximum scratch memory of a layer on the GPU, in bytes, at least 0; None for no limit. Default
        None.
    max_aux_streams: the maximum number of CUDA streams that an engine uses in addition to the caller's, at least 0;
        None leaves it to TensorRT. Default None.
    compute_capabilities: the GPUs that TensorRT-RTX builds for, as `"major.minor"`; sorted, without duplicates. Empty
        for the library's default (8.0, 8.6, 8.9 and 12.x on RTX 1.4). Default empty.
    device: the type of device for which the model is captured, `"cuda"` or `"cpu"`, independent of this machine and of
        the model's tensors, which stay where they are: an engine for a GPU elsewhere is then built from the graph that
        torch traces on a GPU. None captures for the device of the model's tensors. Default None.
    decisions: how to compile a model whose Python branches depend on data (`if x.sum() > 0`). `"refuse"`: capture
        raises a `CaptureError` that names the line. `"example"`: the program has the branches that the example inputs
        take, and each call is checked: one that takes another branch raises a `DecisionError`. The check waits for the
        GPU, so these programs run without a CUDA graph of the whole program. Default `"refuse"`.
    decompose_attention: always compute attention by matmuls and a softmax in float32, for which TensorRT builds several
        kernels instead of one. Default False.
    use_fp32_acc: accumulate half-precision matmuls and convolutions in float32. TensorRT-RTX 1.6 accumulates float16 in
        float16; for thousands of terms the error is 5 to 20 times that of eager. None: on that version, float16 matmuls
        accumulate in float32, and so do convolutions with many terms and output channels, at a cost of at most 10 % of
        a network's time. True: all of them accumulate in float32; convolutional networks take up to twice as long.
        False: TensorRT chooses; large matmuls are 5 % faster, and inexact. Default None.

    faster_in_torch: run operators in PyTorch where that is faster. With TensorRT-RTX on an H100 or H200 this is
        half-precision attention over 1,024 or more queries and keys (measured on an H200). Programs whose tensors have
        256 MiB or more are measured on this GPU (in a CUDA graph with `cuda_graphs`), and run in PyTorch what is faster
        there: single engines, all half-precision matmuls by weights (if engines are for one profile each), or the whole
        program as captured. False, or ``require_full_compilation``, keeps all operators in engines. Default True.
    measurements: save the times that `faster_in_torch` measured. A later compilation of the same program for the same
        kind of GPU, even on a machine without a GPU, makes the same choice without measuring. True saves them in the
        user's cache folder (`PIPELINE_CACHE` names another), a path saves them in that file, and False nowhere. Ranks
        of a sharded model measure only if this is a path. Default True.
    collectives_in_engine: an experiment: let TensorRT-RTX 1.6 or newer run the collectives of a sharded program inside
        engines, with the process group's own communicator of NCCL. Collectives that an engine cannot run remain in
        PyTorch between engines; ``coverage`` reports why. Default False.
    load_built_engines: load each engine as soon as it is built, if there is a GPU that it is built for: operators for
        which TensorRT has no kernel there are computed by other operators, or run in PyTorch (``coverage.healed``). If
        False, the first call fails instead. Default True.
    progress: show progress bars of the stages on stderr while a model is compiled, and remove them at the end. None:
        only if stderr is a terminal. No bars are shown if a `pipeline.Ledger` is among the observers. Default None.
    cache_built_engines: save engines in the engine cache for other compilations and processes. Default False.
    reuse_cached_engines: load engines from the engine cache, if it has them, instead of building them. Default False.
    engine_cache_dir: the folder of the engine cache, or an fsspec URL (`"s3://bucket/engines"`) of a folder that
        several machines share; None for `engines` in the user's cache folder (`PIPELINE_CACHE` names another). Default
        None.
    engine_cache_size: the maximum size of the cache folder in bytes; the least recently used entries are deleted.
        Ignored for URLs. Default 5 GiB.

    The remaining settings control how compiled programs run; ``compiled.module(cuda_graphs=True)`` changes one for a
    module.

    cuda_graphs: record a CUDA graph of the whole program at the second call with the same shapes, and replay it from
        then on; programs that cannot be recorded run without a graph, and the log says why. Default False.
    max_cuda_graphs: the number of shapes whose graphs are cached, at least 1. Default 8.
    engine_graphs: let TensorRT-RTX launch an engine whose shapes are fixed as one CUDA graph of its own: ResNet-50 at
        batch 1 takes 0.42 ms instead of the bare engine's 0.50; with `cuda_graphs` the program's graph does that. Set
        it to False to capture the program yourself. Default True.
    reuse_outputs: return outputs in memory that the next call overwrites, which saves a copy. Default False.
    execution_contexts: the number of calls that may run at once (on threads or streams), at least 1. Each needs memory
        for its activations; further calls wait. Default 4.
    kernel_specialization: whether TensorRT-RTX compiles kernels for the actual sizes when dims are dynamic: `"none"`,
        `"eager"` (at the first call with a shape) or `"lazy"` (in the background, so that results change slightly when
        they are ready; a CUDA graph goes on with the kernels that it was captured with). Default `"none"`: on an H200
        the specialized kernels of TensorRT-RTX 1.4 gave wrong results for ConvNeXt in float32; the gain was 5 % for
        ResNet-50, and for BERT 42 % at batch 1 and sequence 32, but -11 % at 8 and 128 (docs/tensorrt.md).
    weight_streaming_budget: the maximum bytes on the GPU for the weights of each engine, at least 0; the other weights
        stay on the host and are streamed at each call. None for no streaming; an engine built with None cannot stream.
        Default None.
    torch_compile: the mode in which `torch.compile` compiles a program's PyTorch segments, if the program's sizes are
        fixed or the segment is for one profile: `"default"`, or `"max-autotune-no-cudagraphs"`, which measures more
        kernels. For a large model the first call in a process takes 15 s to 2 min longer. `faster_in_torch` then
        measures two such variants of every program, also of small programs. Loaded programs do not use `torch.compile`.
        None: segments call operators one by one. Default None.
    copy_weights: whether a module has a copy of the weights that `pipeline.shared_weights` leaves outside of engines,
        and of those that PyTorch reads. If False, the module shares the model's weights if they are on its device. Do
        not change the model's weights then: weights inside engines would not change, so the results would mix old and
        new weights. Default True.
    runtime_cache: save the kernels that TensorRT-RTX compiles on a GPU for the next start: True saves them in the
        user's cache folder (`PIPELINE_CACHE` names another), a path in that folder, False nowhere. Default True.
    """

    truncate_double: bool = attrs.field(default=False, validator=_check_boolean)
    require_full_compilation: bool = attrs.field(default=False, validator=_check_boolean)
    require_fused_quantization: bool = attrs.field(default=False, validator=_check_boolean)
    min_block_size: int = attrs.field(default=5, validator=integer_validator(1, optional=False))
    max_engines: int | None = attrs.field(default=None, validator=integer_validator(1))
    torch_executed_ops: frozenset[TorchExecuted] = attrs.field(default=frozenset(), converter=to_executed_entries)
    assume_dynamic_shape_support: bool = attrs.field(default=False, validator=_check_boolean)
    immutable_weights: bool = attrs.field(default=True, validator=_check_boolean)
    refittable_weights: tuple[str, ...] = attrs.field(default=(), converter=_parse_weight_patterns)
    refit_identical_engine_weights: bool = attrs.field(default=False, validator=_check_boolean)
    strip_engine_weights: bool = attrs.field(default=False, validator=_check_boolean)
    version_compatible: bool = attrs.field(default=False, validator=_check_boolean)
    optimization_level: int | None = attrs.field(default=None, validator=integer_validator(0, 5))
    workspace_size: int | None = attrs.field(default=None, validator=integer_validator(0, 2**63 - 1))
    max_aux_streams: int | None = attrs.field(default=None, validator=integer_validator(0, 2**31 - 1))
    compute_capabilities: tuple[str, ...] = attrs.field(default=(), converter=_sort_capabilities)
    device: str | None = attrs.field(default=None, converter=_to_device_type)
    decisions: str = attrs.field(default="refuse", validator=one_of("refuse", "example"))
    decompose_attention: bool = attrs.field(default=False, validator=_check_boolean)
    use_fp32_acc: bool | None = attrs.field(default=None, validator=_check_boolean)
    faster_in_torch: bool = attrs.field(default=True, validator=_check_boolean)
    measurements: bool | str = attrs.field(default=True, converter=_to_path, validator=_is_path_or_flag)
    collectives_in_engine: bool = attrs.field(default=False, validator=_check_boolean)
    load_built_engines: bool = attrs.field(default=True, validator=_check_boolean)
    progress: bool | None = attrs.field(default=None, validator=_check_boolean)
    cache_built_engines: bool = attrs.field(default=False, validator=_check_boolean)
    reuse_cached_engines: bool = attrs.field(default=False, validator=_check_boolean)
    engine_cache_dir: str | None = attrs.field(default=None, converter=_to_path, validator=_is_folder)
    engine_cache_size: int = attrs.field(default=5 << 30, validator=integer_validator(0, optional=False))
    cuda_graphs: bool = attrs.field(default=False, validator=_check_boolean)
    max_cuda_graphs: int = attrs.field(default=8, validator=integer_validator(1, optional=False))
    engine_graphs: bool = attrs.field(default=True, validator=_check_boolean)
    reuse_outputs: bool = attrs.field(default=False, validator=_check_boolean)
    execution_contexts: int = attrs.field(default=4, validator=integer_validator(1, optional=False))
    kernel_specialization: str = attrs.field(default="none", validator=one_of("none", "eager", "lazy"))
    weight_streaming_budget: int | None = attrs.field(default=None, validator=integer_validator(0, 2**63 - 1))
    torch_compile: str | None = attrs.field(
        default=None, validator=one_of(None, "default", "max-autotune-no-cudagraphs")
    )
    copy_weights: bool = attrs.field(default=True, validator=_check_boolean)
    runtime_cache: bool | str = attrs.field(default=True, converter=_to_path, validator=_is_path_or_flag)

    def evolve(self, **fields: Any) -> Self:
        """Return a validated copy with these fields changed; raise a `TypeError` for an unknown field."""
        if unknown := [name for name in fields if name not in self.names()]:
            raise TypeError(f"{unknown[0]!r} is not a compilation setting; {hint_for_unknown_setting(unknown[0])}")
        return attrs.evolve(self, **fields)

    def __getattr__(self, name: str) -> object:
        """Raise an `AttributeError`; for settings that converters for Torch-TensorRT read, it names the replacement."""
        if name in ELSEWHERE:
            raise AttributeError(f"{name!r} is not a compilation setting; {ELSEWHERE[name]}", name=name, obj=self)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}", name=name, obj=self)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of all settings, in the order of the documentation."""
        return tuple(field.name for field in attrs.fields(cls))

    def runs_in_torch(self, target: object, module_path: str = "") -> bool:
        """Return whether `torch_executed_ops` keeps nodes of this target, in this module's path, out of engines."""
        return any(entry_matches_node(entry, target, module_path) for entry in self.torch_executed_ops)

    def __repr__(self) -> str:
        """Return the fields that differ from the default, in order; equal settings have the same text in every process.

        A predicate is represented by its module and name, since its address differs between processes.
        """
        shown = (f"{name}={value}" for name, value in self.changed().items())
        return f"{type(self).__name__}({', '.join(shown)})"

    def changed(self) -> dict[str, str]:
        """Return the settings that differ from the default: a mapping from the setting's name to its value as text."""
        values = {f.name: getattr(self, f.name) for f in attrs.fields(type(self)) if getattr(self, f.name) != f.default}
        return {name: _format_setting(value) for name, value in values.items()}


def _format_setting(value: object) -> str:
    """Return a setting's value as Python code; a set is sorted by the names of its entries."""
    return f"{{{', '.join(sorted(map(entry_name, value)))}}}" if isinstance(value, frozenset) else repr(value)
