"""Replace the functions by which transformers' models compute recurrent states, so that a program can store the states.

The replacements call operators (`pipeline.aten.own_ops`) that work for any number of tokens. The model gets a cache
that claims to have no states, and the replacement functions add the stored states.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import cache, wraps
from types import ModuleType
from typing import Final, TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus
from transformers import cache_utils
from transformers.activations import ACT2FN

from pipeline.aten.own_ops import LINEAR_ATTENTION, SELECTIVE_SCAN
from pipeline.aten.types import Argument, Target
from pipeline.errors import CaptureError
from pipeline.export_fixes.interrupts import set_contextvar
from pipeline.export_fixes.patching import Patches, Replacement

Function: TypeAlias = Callable[..., Argument]

WithStates: Final = getattr(cache_utils, "LinearAttentionCacheLayerMixin", type("WithStates", (), {}))
"""transformers' base class of cache layers with recurrent states; an empty class before 5.8, which has none."""


class RecurrentStates(WithStates):  # type: ignore[misc, valid-type]
    """The recurrent states of one layer, by name, which the replacement functions read and write: ``conv_0`` [rows,
    channels, width - 1], the last inputs of a convolution, and ``recurrent_0``, of any shape, in float32. States are
    zero at the start of a sequence.

    Args:
        own: the buffers of the states, by name; None if the first call creates the states.
        start: the position of this call's first token, as a tensor.
        mask: bool [rows, length], False for padding, which does not change states. None: no padding.
        count: the number of convolutions in the layer.
        model: the name of the model.

    ``is_initialized`` is False, since there are no keys. Layers with cross attention to an image (Mllama) read this
    attribute: without an image they have no keys.
    """

    is_initialized = False

    def __init__(
        self,
        own: Mapping[str, Tensor] | None,
        start: Tensor,
        mask: Tensor | None = None,
        count: int = 1,
        model: str = "the model",
    ) -> None:
        super().__init__(count)
        self.own, self.is_new, self.start, self.model = dict(own or {}), own is None, start, model
        self.mask = None if mask is None else mask[:, None]
        self.joined: Tensor | None = None
        self.scans = 0

    def lazy_initialization(self, *args: object, **kwargs: object) -> None:
        """Do nothing: the state buffers already exist."""

    def state_before(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return the stored state, or zeros at the start of a sequence. If there are no buffers yet, store a new one of
        ``shape`` with the dtype of ``like``."""
        if self.is_new and name not in self.own:
            self.own[name] = like.new_zeros(shape)
        return torch.where(self.start > 0, self.own[name], 0.0)

    def update_conv_state(self, conv_states: Tensor, state_idx: int = 0, *args: Argument, **kwargs: Argument) -> Tensor:
        """Return the stored inputs of convolution number ``state_idx``, followed by the new ones [rows, channels, width
        - 1 + length]. Store the last width - 1 of them for the next call."""
        width, name = kwargs.get("conv_kernel_size"), f"conv_{state_idx}"
        if width is None:
            raise self._unsupported_recurrence_error()
        before = self.state_before(name, (*conv_states.shape[:2], width - 1), conv_states)
        joined = torch.cat([before, self.zero_padding(conv_states)], -1)
        self.own[name].copy_(joined[..., 1 - width :])
        self.joined, self.scans = joined, 0
        _current.set(self)
        return joined

    def zero_padding(self, x: Tensor) -> Tensor:
        """Return ``x`` [rows, channels, length] with zeros at padding positions."""
        return x if self.mask is None else x * self.mask

    def update_recurrent_state(self, recurrent_states: Tensor, *args: object, **kwargs: object) -> Tensor:
        """Return the states, which transformers wants to store here: our recurrences have already stored them."""
        if not self.scans:
            raise self._unsupported_recurrence_error()
        return recurrent_states

    def run_operator(self, operator: Target, state_shape: tuple[int, ...], *inputs: Tensor | None) -> Tensor:
        """Return the output of ``operator(*inputs, state)`` for the stored state; store the new state."""
        name, like = f"recurrent_{self.scans}", inputs[0]
        assert like is not None
        output, last = operator(*inputs, self.state_before(name, state_shape, like))
        self.own[name].copy_(last)
        self.scans += 1
        return output  # type: ignore[no-any-return]

    def _unsupported_recurrence_error(self) -> CaptureError:
        return CaptureError(
            f"{self.model} computes its recurrent states by its own functions, which are not supported",
            "use a model with transformers' functions for Mamba, Mamba-2, gated DeltaNet or Kimi delta attention",
        )


_current: ContextVar[RecurrentStates | None] = ContextVar("states", default=None)


def causal_convolution(
    original: Function,
    hidden_states: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **kwargs: object,
) -> Tensor:
    """Convolve ``hidden_states`` like ``original``, transformers' ``causal_conv1d_fn``, if `update_conv_state` returned
    them: as a float32 sum over the kernel's positions, which TensorRT fuses. Else call ``original``."""
    states = _current.get()
    if states is None or states.joined is not hidden_states:
        return original(hidden_states, weight, bias, activation=activation, **kwargs)  # type: ignore[no-any-return]
    width, inputs = weight.shape[-1], hidden_states.float()
    length = hidden_states.shape[-1] - width + 1
    terms = [inputs[..., k : k + length] * weight[:, k, None].float() for k in range(width)]
    result = sum(terms[1:], start=terms[0] if bias is None else terms[0] + bias[:, None].float()).to(weight.dtype)
    result = (result if activation is None else ACT2FN[activation](result)).to(hidden_states.dtype)
    # without a bias the result is 0 where the inputs are
    return result if bias is None else states.zero_padding(result)


def replace_if_states(compute: Function) -> Function:
    """Return a replacement `(original, *args)` for a transformers function: it calls `compute(states, *args)` with the
    current layer's `RecurrentStates` or, if the layer has none, `original(*args)`."""

    @wraps(compute)
    def replacement(original: Function, *args: Argument, **kwargs: Argument) -> Argument:
        states = _current.get()
        return original(*args, **kwargs) if states is None else compute(states, *args, **kwargs)

    return replacement


@replace_if_states
def delta_rule(
    states: RecurrentStates,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *args: Argument,
    use_qk_l2norm_in_kernel: bool = False,
    **kwargs: Argument,
) -> tuple[Tensor, Tensor | None]:
    """Compute transformers' ``torch_chunk_gated_delta_rule`` and ``chunk_kimi_delta_attention``: return the output and
    the new state. ``states`` has the state before the call, and is updated. Queries, keys and values are [rows, length,
    heads, width], with a multiple of heads for values; ``g`` is the log of the decay, ``beta`` the update rate."""
    heads, (rows, _, _, width) = value.shape[2], key.shape
    query, key = (x.repeat_interleave(heads // x.shape[2], 2) if x.shape[2] != heads else x for x in (query, key))
    q, k, v, decay, rate = (x.transpose(1, 2).float() for x in (query, key, value, g, beta))
    if use_qk_l2norm_in_kernel:
        q, k = (x * torch.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6) for x in (q, k))
    shape = (rows, heads, value.shape[-1], width)
    output = states.run_operator(LINEAR_ATTENTION, shape, q * width**-0.5, k, v, decay, rate)
    return output.transpose(1, 2).to(query.dtype), states.own["recurrent_0"]


@replace_if_states
def mamba2(
    states: RecurrentStates,
    hidden_states: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *args: Argument,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    **kwargs: Argument,
) -> Argument:
    """Compute transformers' ``mamba2_chunk_scan`` from the stored ``states``, and update them. ``hidden_states`` [rows,
    length, heads, width], time steps ``dt`` [rows, length, heads], decay rates ``a`` [heads], ``b`` and ``c`` [rows,
    length, groups, state]. Return the output or, for ``return_final_states=True``, (output, new state)."""
    (rows, _, heads, width), inputs = hidden_states.shape, hidden_states.float()
    step = _mamba_step_size(dt, dt_bias, dt_softplus).clamp(*dt_limit).float()
    key, query = (x.float().repeat_interleave(heads // x.shape[2], 2).transpose(1, 2) for x in (b, c))
    value, decay = (inputs * step[..., None]).transpose(1, 2), (a.float() * step).transpose(1, 2)
    shape = (rows, heads, width, b.shape[-1])
    output = states.run_operator(LINEAR_ATTENTION, shape, query, key, value, decay, None).transpose(1, 2).contiguous()
    through = kwargs.get("D")
    output = output if through is None else output + through[..., None] * inputs
    return (output, states.own["recurrent_0"]) if kwargs.get("return_final_states") else output


@replace_if_states
def mamba(
    states: RecurrentStates,
    hidden_states: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    z: Tensor | None = None,
    delta_bias: Tensor | None = None,
    delta_softplus: bool = False,
    **kwargs: Argument,
) -> Argument:
    """Compute transformers' ``mamba_selective_scan`` from the stored ``states``, and update them. ``hidden_states``,
    time steps ``dt`` and gate ``z`` [rows, width, length], decay rates ``a`` [width, state], ``b`` and ``c`` [rows,
    state, length]. Return the output or, for ``return_last_state=True``, (output, new state)."""
    step = _mamba_step_size(dt, None if delta_bias is None else delta_bias[:, None], delta_softplus).float()
    (rows, width, _), name = hidden_states.shape, f"recurrent_{states.scans}"
    given = hidden_states.float(), step, a.float(), b.float(), c.float()
    output = states.run_operator(SELECTIVE_SCAN, (rows, width, a.shape[-1]), *given)
    through = kwargs.get("D")
    output = output if through is None else output + hidden_states * through[:, None]
    output = output if z is None else output * silu(z)
    return (output, states.own[name]) if kwargs.get("return_last_state") else output


def omit_recurrent_mask(
    original: Function,
    config: object,
    inputs_embeds: Tensor,
    attention_mask: Tensor | None,
    past_key_values: object = None,
    **kwargs: object,
) -> Tensor | None:
    """Return no mask if the cache has `RecurrentStates`, which set padding to zero themselves: a mask before a layer's
    first matmul would make that matmul slow. Else call ``original``, transformers' function of this name."""
    if any(isinstance(each, RecurrentStates) for each in getattr(past_key_values, "layers", ())):
        return None
    return original(config, inputs_embeds, attention_mask, past_key_values, **kwargs)  # type: ignore[no-any-return]


def _mamba_step_size(dt: Tensor, bias: Tensor | None, use_softplus: bool) -> Tensor:
    dt = dt if bias is None else dt + bias.to(dt.dtype)
    return softplus(dt) if use_softplus else dt


REPLACEMENTS: Final[Mapping[str, Function]] = {
    "causal_conv1d_fn": causal_convolution,
    "torch_chunk_gated_delta_rule": delta_rule,
    "chunk_kimi_delta_attention": delta_rule,
    "mamba2_chunk_scan": mamba2,
    "mamba_selective_scan": mamba,
    "create_recurrent_attention_mask": omit_recurrent_mask,
}
"""The replacements, by the name of the transformers function, which each module that defines a model has as a global. A
replacement's first argument is the replaced function; its other parameters are the same, as a test checks."""


@cache
def _replacements(module: ModuleType) -> Patches:
    """Return patches that replace recurrence functions in a transformers module. Models call these functions as
    globals, so neither a registry of transformers nor a torch mode can intercept the calls."""
    why = "reads and writes states that its cache holds, and computes one token otherwise than several"
    return Patches([Replacement(module, name, ours, why, module.__name__) for name, ours in REPLACEMENTS.items()])


@contextmanager
def replace_recurrences(model: torch.nn.Module) -> Iterator[None]:
    """Return a context in which this thread's calls of a transformers model compute recurrences by `REPLACEMENTS`."""
    paths = dict.fromkeys(type(each).__module__ for each in model.modules())
    modules = [sys.modules[path] for path in paths if path.startswith("transformers.") and path in sys.modules]
    with set_contextvar(_current, None), ExitStack() as stack:
        for module in modules:
            stack.enter_context(_replacements(module).activate(module.__name__))
        yield
