"""Import the TensorRT bindings, which no other module imports, and determine what the installed version supports."""

import ctypes
import functools
import importlib
import importlib.util
import logging
import os
import re
from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType, ModuleType
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch

__all__ = ["trt"]  # what is imported here for others, beside what is defined here

INSTALL = {
    "tensorrt": "pip install tensorrt (data-centre and other GPUs; the wheels come from NVIDIA's own index)",
    "tensorrt_rtx": "pip install tensorrt-rtx (ordinary wheels; builds without a GPU, runs on RTX GPUs)",
}


def _import_bindings() -> ModuleType:
    """Import TensorRT or TensorRT-RTX: the one that ``PIPELINE_TENSORRT`` names, else the first that is installed."""
    forced = os.environ.get("PIPELINE_TENSORRT", "")
    if forced and forced not in INSTALL:
        raise ImportError(f"PIPELINE_TENSORRT is {forced!r}, but must be one of {', '.join(INSTALL)}")
    candidates = (forced,) if forced else tuple(INSTALL)
    for candidate in candidates:
        if importlib.util.find_spec(candidate) is not None:
            try:
                return importlib.import_module(candidate)
            except (ImportError, OSError) as error:
                why = f"{candidate} is installed but does not load: {error}"
                raise ImportError(f"{why}\n  {INSTALL[candidate]}") from error
    hints = "".join(f"\n  {INSTALL[candidate]}" for candidate in candidates)
    wanted = "PIPELINE_TENSORRT asks for it" if forced else "pipeline needs one of the two"
    raise ImportError(f"{' and '.join(candidates)} cannot be imported ({wanted}). Install:{hints}")


if TYPE_CHECKING:
    import tensorrt_rtx as trt  # type: ignore[import-untyped,unused-ignore]
else:
    trt = _import_bindings()

Attention = Literal["none", "v1", "v2"]


@attrs.frozen
class Capabilities:
    """What the installed TensorRT supports, according to its bindings. Layers that fail to build count as unsupported.

    Layers that TensorRT computes wrongly are listed in `pipeline.quirks`.
    """

    flavour: str
    version: str
    version_tuple: tuple[int, ...]
    plugins: bool
    attention: Attention
    kv_cache_update: bool
    rotary_embedding: bool
    normalization_v2: bool
    cumulative: bool
    nonzero: bool
    strided_dilated_deconvolution: bool
    int8_activations: bool
    quantization: bool
    code_convolutions: bool
    codes_beside_floats: bool
    collectives: bool
    runtime_config: bool
    compute_capabilities: tuple[str, ...]
    layer_kinds: frozenset[str]


def _read_capabilities(bindings: Any) -> Capabilities:
    """Return what these bindings support, judged by their attributes and version."""
    network = bindings.INetworkDefinition
    flavour, version = str(bindings.__name__), tuple(map(int, re.findall(r"\d+", bindings.__version__)))
    rtx = flavour == "tensorrt_rtx"
    targets = getattr(getattr(bindings, "ComputeCapability", None), "__members__", {})
    older: Attention = "v1" if hasattr(network, "add_attention") else "none"
    attention: Attention = "v2" if hasattr(network, "add_attention_v2") else older
    return Capabilities(
        flavour=flavour,
        version=bindings.__version__,
        version_tuple=version,
        plugins=hasattr(network, "add_plugin_v3"),
        attention=attention,
        kv_cache_update=hasattr(network, "add_kv_cache_update"),
        rotary_embedding=hasattr(network, "add_rotary_embedding"),
        normalization_v2=hasattr(network, "add_normalization_v2"),
        cumulative=hasattr(network, "add_cumulative"),
        nonzero=not rtx,  # RTX: the network takes the layer, "no runners" at the build
        strided_dilated_deconvolution=not rtx,
        int8_activations=not rtx,
        quantization=not rtx or version >= (1, 6),  # "cudaDeviceProfile" before, and no engine
        code_convolutions=not rtx or version >= (1, 7),  # before: none of INT8 by INT8, FP8 by FP8 without its scale
        codes_beside_floats=not rtx or version >= (1, 7),  # before: none of FP8, none of INT4 by float32 that runs
        collectives=hasattr(bindings.IExecutionContext, "set_communicator")
        and hasattr(bindings.ILayer, "num_ranks")
        and (not rtx or version >= (1, 6)),  # RTX 1.4: "not supported in this configuration"
        runtime_config=hasattr(bindings.ICudaEngine, "create_runtime_config"),
        compute_capabilities=tuple(f"{n[2:-1]}.{n[-1]}" for n in targets if n.startswith("SM")),  # 12.0 for SM120
        layer_kinds=frozenset(bindings.LayerType.__members__),
    )


CAPABILITIES = _read_capabilities(trt)
LIBRARY = f"{CAPABILITIES.flavour} {CAPABILITIES.version}"
"""The flavour and version of the installed TensorRT, which builds and loads plans."""


@functools.cache
def _enum_names(cls: Any) -> Mapping[int, str]:
    """Return an enum's names by value, the first of several aliases; cached, since the bindings search slowly."""
    return {int(member): name for name, member in reversed(list(cls.__members__.items()))}


def enum_name(value: Any) -> str:
    """Return the name of an enum member. Records store names, because the integer values differ between versions."""
    cls: object = type(value)
    return _enum_names(cls)[int(value)]


def enum_member(cls: Any, name: str) -> object:
    """Return the enum member called ``name``; raise a ValueError that lists the names in this TensorRT version."""
    try:
        return cls.__members__[name]
    except KeyError:
        raise ValueError(f"{LIBRARY} has no {cls.__name__}.{name}; it has {', '.join(cls.__members__)}") from None


def compute_capability(text: str) -> object:
    """Return the `trt.ComputeCapability` for a text such as "8.6", "12.0", "current" or "none"."""
    name = f"SM{text.replace('.', '')}" if "." in text else text.upper()
    return enum_member(getattr(trt, "ComputeCapability", Enum("ComputeCapability", [])), name)


# TensorRT's name of each dtype, and torch's; a torch too old for a type leaves its row out.
_DTYPES = {
    "FLOAT": "float32",
    "HALF": "float16",
    "BF16": "bfloat16",
    "INT8": "int8",
    "UINT8": "uint8",
    "INT32": "int32",
    "INT64": "int64",
    "BOOL": "bool",
    "FP8": "float8_e4m3fn",
    "E8M0": "float8_e8m0fnu",
    "FP4": "float4_e2m1fn_x2",
    "INT4": "int4",
}
DTYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {ours: torchs for ours, torchs in _DTYPES.items() if ours in trt.DataType.__members__}
)
_TORCH: Mapping[str, torch.dtype] = {o: getattr(torch, name) for o, name in _DTYPES.items() if hasattr(torch, name)}
_TRT: Mapping[torch.dtype, str] = {dtype: ours for ours, dtype in _TORCH.items() if ours in DTYPE_NAMES}


def dtype_name(dtype: "trt.DataType") -> str:
    """Return torch's name ("float32") for a TensorRT dtype."""
    ours = enum_name(dtype)
    return _DTYPES.get(ours, ours.lower())


def trt_dtype(name: str) -> "trt.DataType":
    """Return the TensorRT dtype for torch's name of it ("float32"); raise a TypeError if this TensorRT has none."""
    if ours := next((ours for ours, torchs in DTYPE_NAMES.items() if torchs == name), None):
        return trt.DataType.__members__[ours]
    raise TypeError(f"{LIBRARY} has no dtype called {name}")


def to_trt(dtype: torch.dtype) -> "trt.DataType":
    """Return the TensorRT dtype of a torch dtype; raise a TypeError if TensorRT has none."""
    try:
        return trt.DataType.__members__[_TRT[dtype]]
    except KeyError:
        raise TypeError(f"TensorRT has no dtype for {dtype}, only for {', '.join(map(str, _TRT))}") from None


def to_torch(dtype: "trt.DataType") -> torch.dtype:
    """Return the torch dtype of a TensorRT dtype; raise a TypeError if torch has none."""
    try:
        return _TORCH[dtype.name]
    except KeyError:
        raise TypeError(f"torch {torch.__version__} has no dtype for TensorRT's {dtype.name}") from None


def torch_dtype(name: str) -> torch.dtype:
    """Return the torch dtype called ``name`` ("float32"); raise a TypeError if torch has none."""
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"torch {torch.__version__} has no dtype called {name}")
    return dtype


def as_weights(tensor: torch.Tensor) -> "trt.Weights":
    """Return a ``trt.Weights`` that shares the memory of a contiguous CPU tensor, which the caller must keep alive."""
    if tensor.device.type != "cpu" or not tensor.is_contiguous():
        raise ValueError(f"weights need a contiguous CPU tensor, not {tensor.device} with strides {tensor.stride()}")
    return trt.Weights(to_trt(tensor.dtype), tensor.data_ptr(), tensor.numel())


class _WeightsStruct(ctypes.Structure):
    """The C++ struct nvinfer1::Weights, which a ``trt.Weights`` object contains."""

    _fields_ = (("type", ctypes.c_int32), ("values", ctypes.c_void_p), ("count", ctypes.c_int64))


def _struct_pointer(weights: Any) -> int | None:
    """Return the address of the values of a `trt.Weights`, read from the C struct in the object. Return None if the
    struct's dtype or count is not that of ``weights``: then the struct has another layout."""
    pointer = ctypes.c_void_p.from_address(id(weights) + object.__basicsize__)
    struct = ctypes.cast(pointer, ctypes.POINTER(_WeightsStruct))
    if not struct:
        return None
    held = struct.contents
    agrees = held.type == int(weights.dtype) and held.count == weights.size
    return (held.values or 0) if agrees else None


_STRUCT_IS_READABLE = _struct_pointer(trt.Weights(trt.DataType.BF16, 0x7AB5C0DE, 41)) == 0x7AB5C0DE


def weights_pointer(weights: object) -> int | None:
    """Return the address of a layer's weights: a numpy array, or `trt.Weights` of a dtype that numpy lacks."""
    if hasattr(weights, "__array_interface__"):
        return int(weights.__array_interface__["data"][0])
    return _struct_pointer(weights) if _STRUCT_IS_READABLE else None


_LEVELS = {
    "INTERNAL_ERROR": logging.CRITICAL,
    "ERROR": logging.ERROR,
    "WARNING": logging.WARNING,
    "INFO": logging.INFO,
    "VERBOSE": logging.DEBUG,
}
# Errors that are no faults: without a GPU an error about CUDA follows every error, and TensorRT reports a second
# logger as ignored, though it works.
_NOISE = re.compile(r"checkMacros\.cpp::catchCudaError.*Cuda Runtime|logger passed into create\w+ differs", re.DOTALL)
# Messages about the form of a network, which no user can change; `build` renames tensors with duplicate names.
_REMARKS = re.compile(r"^Unused Input|RemoveDeadLayers|for non-shape input|not self-consistent|duplicate tensor name")
_VERBOSE = trt.ILogger.Severity.VERBOSE
logger = logging.getLogger("pipeline.tensorrt")


@attrs.frozen
class Message:
    """One line of TensorRT's log."""

    severity: str
    text: str

    @property
    def is_noise(self) -> bool:
        """Return whether the message is harmless, such as a report that there is no GPU."""
        return _NOISE.search(self.text) is not None

    @property
    def level(self) -> int:
        """Return the level of Python's ``logging`` at which this message is logged."""
        if self.is_noise:
            return logging.DEBUG
        return logging.INFO if _REMARKS.search(self.text) else _LEVELS[self.severity]


class Log(trt.ILogger):  # type: ignore[misc,unused-ignore]
    """A TensorRT logger that stores messages, except verbose ones, and passes all to the logger `pipeline.tensorrt`."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[Message] = []

    def log(self, severity: Any, msg: str) -> None:
        if severity == _VERBOSE and not logger.isEnabledFor(logging.DEBUG):
            return  # thousands while an engine is built
        message = Message(severity.name, msg)
        level = message.level
        if message.severity != "VERBOSE":
            self.messages.append(message)
        if logger.isEnabledFor(level):
            logger.log(level, "%s", msg)

    def position(self) -> int:
        """Return the current position in the log, for `errors_since`."""
        return len(self.messages)

    def errors_since(self, position: int) -> tuple[str, ...]:
        """Return the errors that TensorRT logged since a `position` in the log, except reports of a missing GPU."""
        return tuple(m.text for m in self.messages[position:] if "ERROR" in m.severity and not m.is_noise)

    def error_text_since(self, position: int) -> str:
        """Return TensorRT's errors since a `position` in the log on one line, or a text that there are none."""
        return "; ".join(self.errors_since(position)) or "TensorRT gave no reason"


def new_network(builder: "trt.Builder") -> "trt.INetworkDefinition":
    """Return an empty, strongly typed network; this works with every supported version of TensorRT."""
    flag = trt.NetworkDefinitionCreationFlag.__members__.get("STRONGLY_TYPED")
    return builder.create_network(0 if flag is None else 1 << int(flag))


# The classes whose names are not I, the kind in camel case, Layer.
_CLASSES = {
    "ELEMENTWISE": "IElementWiseLayer",
    "SOFTMAX": "ISoftMaxLayer",
    "RAGGED_SOFTMAX": "IRaggedSoftMaxLayer",
    "TOPK": "ITopKLayer",
    "PARAMETRIC_RELU": "IParametricReLULayer",
    "CONDITIONAL_INPUT": "IIfConditionalInputLayer",
    "CONDITIONAL_OUTPUT": "IIfConditionalOutputLayer",
    "KV_CACHE_UPDATE": "IKVCacheUpdateLayer",
    "MOE": "IMoELayer",
    "LRN": "ILRNLayer",
    "NMS": "INMSLayer",
    "PLUGIN": "ILayer",
}


def layer_class(kind: str) -> object:
    """Return the bindings' class for a kind of layer; the class has the attributes of that kind."""
    camel = "".join(word.capitalize() for word in kind.split("_"))
    return getattr(trt, _CLASSES.get(kind, f"I{camel}Layer"), trt.ILayer)


def layer_kind(layer: "trt.ILayer") -> str:
    """Return the name of a layer's `trt.LayerType`; ``layer.type`` may be a pooling or activation type instead."""
    return enum_name(trt.ILayer.type.__get__(layer))


def typed_layer(network: "trt.INetworkDefinition", index: int) -> Any:
    """Return the layer with this index as an object of its kind's class; ``get_layer`` returns a plain ILayer."""
    layer = network.get_layer(index)
    cls = layer_class(layer_kind(layer))
    if type(layer) is not cls:
        layer.__class__ = cls
    return layer


def has_gpu() -> bool:
    """Return whether engines can run here: whether there is a CUDA GPU."""
    return torch.cuda.is_available()
