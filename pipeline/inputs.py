"""``Input``: the description of a model input by shape (or range of shapes) and dtype, without a tensor.

``Constant``: an input that has the same value in each call.
"""

import re
from collections.abc import Iterable, Sequence
from operator import index
from typing import Any, Self

import attrs
import torch
from attrs import field
from torch.export import Dim

from pipeline.records.wording import did_you_mean, kind_of, refuse_assignment, with_argument_advice

_SHORT = {"b": "bool", "u": "uint", "i": "int", "f": "float", "fp": "float", "bf": "bfloat", "c": "complex"}
_DIM = re.compile(r"\d+(\.\.\d+){0,2}", re.ASCII)
_GRAMMAR = (
    "write [NAME=]DIMxDIM…[:DTYPE][@DEVICE], DIM as SIZE, MIN..MAX or MIN..OPT..MAX: for example 1..8x3x224x224:float16"
)


def _to_shape(sizes: object) -> object:
    """Convert a shape's integers of any type, such as NumPy's, to Python ints."""
    if isinstance(sizes, torch.Tensor):
        raise TypeError("Input: shape must be a sequence of sizes, got a tensor: use pipeline.Input.from_tensor(x)")
    if not isinstance(sizes, Iterable) or isinstance(sizes, str | bytes):
        return sizes
    return tuple(index(size) if hasattr(size, "__index__") and not isinstance(size, bool) else size for size in sizes)


def _to_profiles(shapes: Any) -> Any:
    """Convert profiles to a tuple of (min_shape, opt_shape, max_shape) tuples; raise a `TypeError` for others."""
    if not isinstance(shapes, Iterable) or isinstance(shapes, str | bytes):
        raise TypeError(f"Input: profiles must be a list of (min_shape, opt_shape, max_shape), got {shapes!r}")
    rows = tuple(tuple(map(_to_shape, row)) if isinstance(row, Iterable) else row for row in shapes)
    if odd := [row for row in rows if not isinstance(row, tuple) or len(row) != 3]:
        raise TypeError(f"Input: each profile must be (min_shape, opt_shape, max_shape), got {odd[0]!r}")
    return rows


def _to_device(device: object) -> torch.device | None:
    """Convert a device or its name to a ``torch.device``."""
    if device is None or isinstance(device, torch.device):
        return device
    if not isinstance(device, str):
        raise TypeError(f"Input: device must be a torch.device or its name, got {device!r}")
    try:
        return torch.device(device)
    except RuntimeError:
        known = "a torch.device or a name (cuda, cuda:1, cpu)"
        raise ValueError(f"Input: device must be {known}, got {device!r}") from None


def _check_shape(_: object, field: "attrs.Attribute[Any]", shape: object) -> None:
    if shape is None:
        return
    if not isinstance(shape, tuple):
        raise TypeError(f"Input: {field.name} must be a sequence of sizes, got {shape!r}")
    for dim, size in enumerate(shape):
        if isinstance(size, bool) or not isinstance(size, int):
            ranged = "" if isinstance(size, float) else "; for a dynamic size, pass min_shape and max_shape"
            raise TypeError(f"Input: {field.name}[{dim}] must be an integer, got {size!r}{ranged}")
        if size < 0:
            raise ValueError(f"Input: {field.name}[{dim}] is negative ({size}); for ranges use min_shape and max_shape")


MOST = 1 << 16
"""The maximum number of elements of a `Constant`."""


def _copy_as_tensor(value: object) -> torch.Tensor:
    """Return a copy of a tensor, or a new tensor made of numbers in lists."""
    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if not isinstance(value, bool | int | float | Sequence) or isinstance(value, str | bytes):
        raise TypeError(f"Constant: value must be a tensor, or numbers in lists, got {kind_of(value)}")
    try:
        return torch.tensor(value)
    except (TypeError, ValueError) as error:
        raise type(error)(f"Constant: value must be a tensor, or numbers in lists of equal lengths: {error}") from None


def _field_advice(unknown_name: str) -> str:
    """Return the advice for an error: what to use in place of a field name that `Input` does not have."""
    known = ("shape", "min_shape", "opt_shape", "max_shape", "profiles", "dtype", "name", "device")
    if unknown_name in ("format", "memory_format", "tensor_domain", "torch_tensor", "shape_mode"):
        return "programs take inputs of any strides and values, and Input.from_tensor(x) describes a tensor"
    return did_you_mean(unknown_name, known, "") or f"it has {', '.join(known)}"


@attrs.frozen(eq=False, repr=False)
class Constant:
    """An input with a fixed value, which becomes a constant of the program.

    The model's Python code may read the value during capture (`for t, h, w in grid.tolist()`), and compute sizes from
    it; results that depend only on constants are computed once. A call with another value raises a `TypeError`. The
    comparison runs on the CPU: it synchronizes with the GPU if a tensor there is new or was written to.

    value: a tensor of up to 65,536 elements, or numbers in lists.

    Any other value raises a `TypeError` or `ValueError`.
    """

    value: torch.Tensor = field(converter=_copy_as_tensor)

    def __attrs_post_init__(self) -> None:
        if self.value.layout != torch.strided or self.value.is_meta or self.value.is_quantized:
            shown = f"{self.value.layout}, {self.value.dtype} on {self.value.device}"
            raise TypeError(f"Constant: value must be a dense tensor, not quantized or on the meta device, got {shown}")
        if self.value.numel() > MOST:
            count = self.value.numel()
            raise ValueError(f"Constant: value has {count} elements, more than {MOST}; make it a buffer of the model")

    def equals(self, other: object) -> bool:
        """Return whether another value has the same dtype, shape and elements; NaN equals NaN."""
        if not isinstance(other, torch.Tensor) or other.dtype != self.value.dtype or other.shape != self.value.shape:
            return False
        mine, theirs = self.value.cpu(), other.detach().cpu()
        return bool(((mine == theirs) | ((mine != mine) & (theirs != theirs))).all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and self.equals(other.value)

    def __hash__(self) -> int:
        return hash((self.value.dtype, self.value.shape))

    def __repr__(self) -> str:
        shown = str(self.value.tolist())
        shown = shown if len(shown) <= 60 else f"{shown[:57]}..."
        return f"Constant({shown}, {str(self.value.dtype).removeprefix('torch.')}{list(self.value.shape)})"


def unwrap_constant(value: object) -> object:
    """Return the value to pass to the model: the tensor of a `Constant`; any other value unchanged."""
    return value.value if isinstance(value, Constant) else value


@refuse_assignment("make another")
@with_argument_advice(_field_advice, "Input(shape, dtype=…) takes one shape, as (4, 8), and the other fields by name")
@attrs.frozen
class Input:
    """One input of a model: a dtype, and either one `shape` or the range from `min_shape` to `max_shape`.

    shape: the sizes of a static input.
    min_shape, opt_shape, max_shape: the sizes of a dynamic input, of equal rank, min <= opt <= max in each dimension.
        TensorRT chooses its kernels for `opt_shape`; without it, for `max_shape`.
    profiles: several ranges, each (min_shape, opt_shape, max_shape), in place of the three fields above: a call must
        fit one of them. Engines are tuned for each range and share one copy of the weights.
    dtype: a torch.dtype, float32 by default.
    device: the device of the example input at capture. None: the device of the model's parameters, else of the tensors
        among the inputs, else the CPU. Calls accept inputs on any device.
    name: the input's name in errors and in the names of its dynamic dimensions; a Python identifier.

    Any other value raises a `TypeError` or `ValueError` that names the field and the dimension.
    """

    shape: tuple[int, ...] | None = field(default=None, converter=_to_shape, validator=_check_shape)
    min_shape: tuple[int, ...] | None = field(default=None, kw_only=True, converter=_to_shape, validator=_check_shape)
    opt_shape: tuple[int, ...] | None = field(default=None, kw_only=True, converter=_to_shape, validator=_check_shape)
    max_shape: tuple[int, ...] | None = field(default=None, kw_only=True, converter=_to_shape, validator=_check_shape)
    profiles: tuple[tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]], ...] = field(
        default=(), kw_only=True, converter=_to_profiles
    )
    dtype: torch.dtype = field(default=torch.float32, kw_only=True)
    name: str | None = field(default=None, kw_only=True)
    device: torch.device | None = field(default=None, kw_only=True, converter=_to_device)

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.dtype, torch.dtype):
            known = str(getattr(self.dtype, "__name__", self.dtype)).removeprefix("torch.")
            close = f"; write torch.{known}" if isinstance(getattr(torch, known, None), torch.dtype) else ""
            raise TypeError(f"Input: dtype must be a torch.dtype, got {self.dtype!r}{close}")
        if self.name is not None and not (isinstance(self.name, str) and self.name.isidentifier()):
            raise ValueError(f"Input: name must be a Python identifier, got {self.name!r}")
        if self.profiles:
            self._set_range_from_profiles()
        ranged = (self.min_shape, self.opt_shape, self.max_shape)
        if self.shape is not None and ranged != (None, None, None):
            raise ValueError("Input: got shape and a range: give either shape, or min_shape and max_shape, not both")
        if self.shape is None and (self.min_shape is None or self.max_shape is None):
            missing = "shape, or min_shape and max_shape" if ranged == (None, None, None) else "min_shape and max_shape"
            raise ValueError(f"Input: {missing} must be given; for a static shape, write Input(shape=…)")
        _check_shapes_ascend("min_shape", self.min_shape, "max_shape", self.max_shape)
        if self.opt_shape is None:
            object.__setattr__(self, "opt_shape", self.max_shape)
        _check_shapes_ascend("min_shape", self.min_shape, "opt_shape", self.opt_shape)
        _check_shapes_ascend("opt_shape", self.opt_shape, "max_shape", self.max_shape)

    def _set_range_from_profiles(self) -> None:
        """Check the profiles, and set the input's range to their union."""
        if (self.shape, self.min_shape, self.opt_shape, self.max_shape) != (None,) * 4:
            raise ValueError("Input: got profiles and other shapes: give profiles alone, since they define all shapes")
        each = [Input(min_shape=low, opt_shape=opt, max_shape=high) for low, opt, high in self.profiles]
        if len({len(one.ranges) for one in each}) > 1:
            raise ValueError("Input: profiles have different ranks; give all shapes the same number of dimensions")
        columns = [tuple(zip(*shapes, strict=True)) for shapes in zip(*self.profiles, strict=True)]
        for name, choose, sizes in (("min_shape", min, columns[0]), ("max_shape", max, columns[2])):
            object.__setattr__(self, name, tuple(map(choose, sizes)))
        object.__setattr__(self, "opt_shape", self.profiles[-1][1])

    @property
    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Return the minimum, optimal and maximum size of each dimension: TensorRT's optimization profile."""
        ends = (self.min_shape, self.opt_shape, self.max_shape) if self.shape is None else (self.shape,) * 3
        return tuple(zip(*(end or () for end in ends), strict=True))

    @property
    def dynamic_dims(self) -> tuple[int, ...]:
        """Return the dynamic dimensions."""
        return tuple(dim for dim, (low, _, high) in enumerate(self.ranges) if low < high)

    @property
    def is_dynamic(self) -> bool:
        """Return whether any dimension is dynamic."""
        return bool(self.dynamic_dims)

    def example(self, device: torch.device | str | None = None) -> torch.Tensor:
        """Return a tensor of this dtype and the optimal shape: zeros for integers (valid indices anywhere), else ones.
        It is on ``device``; if that is None, on the input's ``device``; if both are None, on the CPU.

        torch.export specializes on sizes 0 and 1, so a dynamic dimension gets size 2 instead if its range has it.
        """
        integral = not (self.dtype.is_floating_point or self.dtype.is_complex or self.dtype == torch.bool)
        sizes = [2 if low < high and opt < 2 <= high else opt for low, opt, high in self.ranges]
        place = device or self.device or "cpu"
        return torch.full(sizes, 0 if integral else 1, dtype=torch.uint8, device=place).to(self.dtype)

    def dynamic_shapes(self, index: int) -> dict[int, Dim]:
        """Return torch.export's `dynamic_shapes` of the input at this index: its dynamic dimensions with their ranges.

        A dimension is named after the input's name or index and the dimension's number: `image_0`, `input1_0`. All
        names differ, so dimensions are independent; torch.export raises an error if the model requires equal ones.
        """
        stem = self.name or f"input{index}"
        ends = {dim: self.ranges[dim] for dim in self.dynamic_dims}
        return {dim: Dim(f"{stem}_{dim}", min=low, max=high) for dim, (low, _, high) in ends.items()}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `[NAME=]DIMxDIM…[:DTYPE][@DEVICE]`, the syntax that `str` prints.

        DIM is SIZE, MIN..MAX (optimal: MAX) or MIN..OPT..MAX; `()` is a scalar. DTYPE is torch's name or a short one
        (f16, bf16, f32, i64, u8), float32 if absent. Any other text raises a `ValueError` that explains what is wrong.
        """
        match = re.fullmatch(r"(?:(\w+)=)?([^=:@]*)(?::([^=:@]*))?(?:@(.*))?", text.strip())
        if not match:
            raise ValueError(f"{text!r} does not describe an input; {_GRAMMAR}")
        name, dims, dtype, device = match.groups()
        try:
            low, opt, high = zip(*map(_parse_range, dims.split("x")), strict=True) if dims != "()" else ((), (), ())
            kind = _parse_dtype(dtype) if dtype is not None else torch.float32
            fields: dict[str, Any] = {"dtype": kind, "name": name, "device": device}
            if low == high:
                return cls(low, **fields)
            return cls(min_shape=low, opt_shape=opt, max_shape=high, **fields)
        except ValueError as error:
            raise ValueError(f"{text!r} does not describe an input: {error}") from None

    @classmethod
    def from_tensor(cls, tensor: torch.Tensor, *, name: str | None = None) -> Self:
        """Return the static `Input` with this tensor's shape and dtype."""
        if not isinstance(tensor, torch.Tensor):
            shape = "; for a shape, use Input(shape)" if isinstance(tensor, list | tuple) else ""
            raise TypeError(f"Input.from_tensor takes a tensor, got {kind_of(tensor)}{shape}")
        return cls(tuple(tensor.shape), dtype=tensor.dtype, name=name)

    def __str__(self) -> str:
        """Return the input as text in the syntax that `parse` reads."""
        dims = "x".join(_format_range(*sizes) for sizes in self.ranges) or "()"
        name, device = (f"{self.name}=" if self.name else ""), (f"@{self.device}" if self.device else "")
        return f"{name}{dims}:{str(self.dtype).removeprefix('torch.')}{device}"


def _check_shapes_ascend(
    low_name: str, low_shape: tuple[int, ...] | None, high_name: str, high_shape: tuple[int, ...] | None
) -> None:
    """Raise a `ValueError` if two shapes differ in rank, or if ``low_shape`` is larger in any dimension."""
    low, high = low_shape or (), high_shape or ()
    if len(low) != len(high):
        raise ValueError(f"Input: {low_name} has rank {len(low)} and {high_name} rank {len(high)}; they must be equal")
    for dim, (a, b) in enumerate(zip(low, high, strict=True)):
        if a > b:
            raise ValueError(f"Input: in dim {dim}, {low_name} is {a} and {high_name} {b}; need min <= opt <= max")


def _parse_range(text: str) -> tuple[int, int, int]:
    """Parse one dimension, such as ``8``, ``1..8`` or ``1..4..8``, to its minimum, optimal and maximum size."""
    if not _DIM.fullmatch(text):
        raise ValueError(f"{text!r} is not a size; {_GRAMMAR}")
    sizes = [int(size) for size in text.split("..")]
    return sizes[0], sizes[len(sizes) // 2], sizes[-1]


def _parse_dtype(name: str) -> torch.dtype:
    short = re.fullmatch(r"(b|u|i|fp|f|bf|c)(\d*)", name, re.ASCII)
    dtype = getattr(torch, _SHORT[short[1]] + short[2] if short else name, None)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name!r} is not a dtype; use torch's names (float16, int64, bool) or short ones (f16, i64)")
    return dtype


def _format_range(low: int, opt: int, high: int) -> str:
    """Return a dimension's sizes as text: ``8``, ``1..8`` (optimal: 8) or ``1..4..8``."""
    if low == high:
        return str(low)
    return f"{low}..{high}" if opt == high else f"{low}..{opt}..{high}"


def is_input(value: object) -> bool:
    """Return whether a value is an `Input`: the test for leaves of a pytree of inputs."""
    return isinstance(value, Input)
