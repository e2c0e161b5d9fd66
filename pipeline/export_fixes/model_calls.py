"""Rewrite calls in a model that torch.export rejects, or whose result it would make constant.
They are ``x.data``, uint8 masks, 0-d index tensors, pooling over dynamic sizes, ``torch.istft`` of dynamic length."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from typing import Final

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.proxy_tensor import _ProxyTensor, get_proxy_mode, get_proxy_slot, set_proxy_slot
from torch.fx.experimental.symbolic_shapes import free_unbacked_symbols
from torch.nn import functional

from pipeline.aten.types import Argument, Target, aten
from pipeline.export_fixes import packed_sequence, runtime_asserts, value_hooks
from pipeline.export_fixes.patching import VERSION, Kernel, ModelCall
from pipeline.shapes.environment import expression

assigned_tensors: ContextVar[list[torch.Tensor] | None] = ContextVar("tensors whose data was assigned", default=None)
"""Collects the tensors whose ``.data`` the model assigns during a traced call; None outside of such a call."""


def set_data(tensor: torch.Tensor, value: torch.Tensor) -> None:
    """Trace ``tensor.data = value``: later reads of the tensor return the new value."""
    mode = get_proxy_mode()
    new = value if mode is None or get_proxy_slot(value, mode.tracer, None) is not None else torch.clone(value)
    torch.Tensor.data.__set__(tensor, new)  # type: ignore[attr-defined]
    slot = None if mode is None else get_proxy_slot(new, mode.tracer, None)
    if mode is not None and slot is not None:
        set_proxy_slot(tensor, mode.tracer, _ProxyTensor(slot.proxy, None))
    if (found := assigned_tensors.get()) is not None:
        found.append(tensor)


def trace_legacy_call(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call to trace in place of legacy code that torch.export rejects: ``x.data``, which torch does not
    trace as an operator, and ``torch.where`` with a uint8 mask. Any other call is returned unchanged."""
    if func == torch.Tensor.data.__get__:  # type: ignore[attr-defined]
        return torch.Tensor.detach, args[:1], {}
    if func == torch.Tensor.data.__set__:  # type: ignore[attr-defined]
        return set_data, args, {}
    if func is torch.where or func is torch.Tensor.where:
        place = int(func is torch.Tensor.where)
        args = tuple(_as_bool_mask(arg) if i == place else arg for i, arg in enumerate(args))
        kwargs = {name: _as_bool_mask(arg) if name == "condition" else arg for name, arg in kwargs.items()}
    return func, args, kwargs


def _as_bool_mask(mask: Argument) -> Argument:
    return mask.bool() if isinstance(mask, torch.Tensor) and mask.dtype == torch.uint8 else mask


INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8)


def trace_scalar_index(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call to trace in place of a read or write at data-dependent 0-d indices (``cache[:, i] = x``).

    torch.export reads the number from such an index and fails: for writes, and before torch 2.13 for reads. Here a
    write uses an index tensor of one element, and a read uses a new symbol, as in torch 2.13.
    """
    name = getattr(func, "__name__", "")
    if name in ("__getitem__", "__setitem__") and isinstance(args[0], torch.Tensor):
        index = args[1] if isinstance(args[1], tuple) else (args[1],)
        if any(map(_is_scalar, index)) and all(_is_scalar(each) or _is_basic_index(each) for each in index):
            if name == "__setitem__":
                return _write_at_scalars, (args[0], index, args[2]), {}
            if VERSION < (2, 13):
                args = (args[0], value_hooks.map_index(index, lambda each: each.item() if _is_scalar(each) else each))
    return func, args, kwargs


def _is_scalar(index: object) -> bool:
    """Return whether an index is a 0-d integer tensor of data-dependent value, even if ``item()`` gave it a symbol."""
    if not isinstance(index, FakeTensor) or index.dim() or index.dtype not in INTEGERS or index.constant is not None:
        return False
    number = index.item_memo
    return number is None or bool(free_unbacked_symbols(number))


def _is_basic_index(index: object) -> bool:
    """Return whether an index is basic, so that it returns a view: it contains no tensor, list or bool."""
    return index is None or index is Ellipsis or isinstance(index, slice | torch.SymInt) or type(index) is int


def _write_at_scalars(tensor: torch.Tensor, index: tuple[Argument, ...], value: Argument) -> None:
    """Run ``tensor[index] = value`` with 0-d index tensors so that torch.export accepts it: move the dims that they
    index to the front of a view, and write to it with index tensors of one element."""
    view = tensor[tuple(slice(None) if _is_scalar(each) else each for each in index)]
    dims = _indexed_dims(index, tensor.dim())
    first = view.movedim(dims, tuple(range(len(dims))))
    first[tuple(each.reshape(1) for each in index if _is_scalar(each))] = value


def _indexed_dims(index: tuple[Argument, ...], rank: int) -> tuple[int, ...]:
    """Return the dim that each 0-d tensor in ``index`` selects from, counted after its other items are applied: for
    ``x[2, :, i]``, dim 1 of ``x[2]``. ``rank``: the number of dims of ``x``."""
    found, dim = list[int](), 0
    read = sum(each is not None and each is not Ellipsis for each in index)
    for each in index:
        if _is_scalar(each):
            found.append(dim)
        if each is Ellipsis:
            dim += rank - read
        elif each is None or isinstance(each, slice | torch.Tensor):
            dim += 1
    return tuple(found)


MAX_POOLS: Final[Mapping[Target, int]] = {
    getattr(module, f"max_pool{count}d"): count for module in (torch, functional) for count in (1, 2, 3)
}
POOLS: Final = {**MAX_POOLS, torch.avg_pool1d: 1, functional.avg_pool2d: 2, functional.avg_pool3d: 3}
"""For each pooling function, the number of dims that it pools."""

NEUTRAL: Final = {"kernel_size": 1, "stride": 1, "padding": 0, "dilation": 1}
"""The pooling arguments with one number per dim, each with the number that leaves a dim unchanged."""
AVG_ARGS: Final = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
POOL_ARGS: Final = {func: ("input", *NEUTRAL, "ceil_mode") if func in MAX_POOLS else AVG_ARGS for func in POOLS}


def trace_pooling(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call to trace in place of pooling with a symbolic size that torch rejects: a window as long as a
    dynamic dim (``F.avg_pool2d(x, x.shape[2:])``), or `max_pool1d` over a dynamic dim. Other calls are unchanged."""
    if func in POOLS:
        given = {**dict(zip(POOL_ARGS[func], args, strict=False)), **kwargs}
        lengths = _one_number_per_dim(given["kernel_size"], 1) + [given["input"].shape[-1]] * (MAX_POOLS.get(func) == 1)
        if any(isinstance(length, torch.SymInt) for length in lengths):
            return _pool_dynamic_windows, (func, given), {}
    return func, args, kwargs


def _pool_dynamic_windows(func: Target, args: Mapping[str, Argument]) -> object:
    """Call the pooling ``func`` (``args``: by name): reduce each dynamic dim that one window covers by `torch.mean` or
    `torch.amax`, then pool the other dims. A half-precision mean is computed in float32, to round only once."""
    count, x, dtype = POOLS[func], args["input"], args["input"].dtype
    by_dim = {
        name: _one_number_per_dim(args.get(name, default), count)
        for name, default in NEUTRAL.items()
        if name in POOL_ARGS[func]
    }
    if not args.get("stride"):
        by_dim["stride"] = [*by_dim["kernel_size"]]
    sizes = zip(x.shape[-count:], by_dim["kernel_size"], by_dim["padding"], strict=True)
    covered = [  # whether a window always covers a dim of varying size
        isinstance(kernel, torch.SymInt) and padding == 0 and expression(size) == kernel.node.expr
        for size, kernel, padding in sizes
    ]
    if any(covered) and x.is_floating_point() and args.get("divisor_override") is None:
        if func not in MAX_POOLS and not all(covered):
            x = x.to(torch.promote_types(dtype, torch.float32))
        reduce = torch.amax if func in MAX_POOLS else torch.mean
        x = reduce(x, [dim - count for dim, is_covered in enumerate(covered) if is_covered], keepdim=True)
        for name, numbers in by_dim.items():
            by_dim[name] = [NEUTRAL[name] if each else number for each, number in zip(covered, numbers, strict=True)]
        if all(covered):
            return x
    others = {name: value for name, value in args.items() if name not in by_dim and name != "input"}
    if MAX_POOLS.get(func) != 1:
        return func(x, **by_dim, **others).to(dtype)
    rows: dict[str, Argument] = {name: (NEUTRAL[name], *numbers) for name, numbers in by_dim.items()}
    return functional.max_pool2d(x.unsqueeze(-2), **rows, **others).squeeze(-2)


def _one_number_per_dim(one_or_several: Argument, dim_count: int) -> list[Argument]:
    numbers = [*one_or_several] if isinstance(one_or_several, tuple | list) else [one_or_several]
    return numbers * dim_count if len(numbers) == 1 else numbers


def trace_istft(mode: object, func: Target, args: Argument, kwargs: Argument) -> ModelCall:
    """Return the call of our `istft` in place of ``torch.istft`` with a dynamic length; torch accepts only an int."""
    if func is torch.istft or func is torch.Tensor.istft:
        given = {**dict(zip(ISTFT, args, strict=False)), **kwargs}
        if isinstance(given.get("length"), torch.SymInt):
            return istft, (), given
    return func, args, kwargs


ISTFT = tuple(argument.name.replace("self", "input") for argument in aten.istft.default._schema.arguments)


def istft(
    input: torch.Tensor,
    n_fft: int,
    hop_length: int | None = None,
    win_length: int | None = None,
    window: torch.Tensor | None = None,
    center: bool = True,
    normalized: bool = False,
    onesided: bool | None = None,
    length: Argument = None,
    return_complex: bool = False,
) -> torch.Tensor:
    """istft(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True,
    bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor. Computed as in
    ATen, but without its check that no sum of windows is 0."""
    hop, width = n_fft // 4 if hop_length is None else hop_length, n_fft if win_length is None else win_length
    spectrum = input.unsqueeze(0) if input.dim() == 2 else input
    real = spectrum.real.dtype
    weights = torch.ones(width, dtype=real, device=input.device) if window is None else window
    left = (n_fft - width) // 2
    weights = torch.nn.functional.pad(weights, (left, n_fft - width - left))
    frames, norm = spectrum.transpose(1, 2), "ortho" if normalized else "backward"
    whole = return_complex if onesided is None else not onesided
    if return_complex:
        pieces = torch.fft.ifft(frames, dim=-1, norm=norm)
    else:
        pieces = torch.fft.irfft(frames[..., : n_fft // 2 + 1] if whole else frames, n_fft, dim=-1, norm=norm)
    count = spectrum.shape[-1]
    total = _overlap_add(pieces * weights, n_fft, hop, count)
    weight = _overlap_add(weights.square().expand(1, count, n_fft), n_fft, hop, count)
    start = n_fft // 2 if center else 0
    ends = torch.sym_max(0, start + length - (n_fft + hop * (count - 1)))  # zeros beyond the last window
    total = torch.nn.functional.pad(total, (0, ends)).narrow(1, start, length)
    weight = torch.nn.functional.pad(weight, (0, ends), value=1.0).narrow(1, start, length)
    signal = total / weight
    return signal.squeeze(0) if input.dim() == 2 else signal


def _overlap_add(windows: torch.Tensor, n_fft: int, hop: int, count: Argument) -> torch.Tensor:
    """Return the sum of overlapping ``windows`` [batch, count, n_fft], each ``hop`` samples after the last one."""
    size = [windows.shape[0], n_fft + hop * (count - 1)]
    if windows.is_complex():
        parts = (aten.unfold_backward(part, size, 1, n_fft, hop) for part in (windows.real, windows.imag))
        return torch.complex(*parts)
    added: torch.Tensor = aten.unfold_backward(windows, size, 1, n_fft, hop)
    return added


CALL_REWRITES: Final = (
    trace_legacy_call,
    trace_istft,
    packed_sequence.replace_packed_call,
    runtime_asserts.assume_check,
    trace_scalar_index,
    value_hooks.replace_known_index,
    trace_pooling,
)
"""The functions that may rewrite a call of the model, in this order, before torch.export traces it."""


def rewrite_model_call(orig: Kernel, mode: Argument, func: Argument, args: Argument, kwargs: Argument) -> object:
    """Replace torch.export's handling of a torch function that the model calls: apply `CALL_REWRITES` first."""
    for replaced in CALL_REWRITES:
        func, args, kwargs = replaced(mode, func, args, kwargs)
    return orig(mode, func, args, kwargs)
