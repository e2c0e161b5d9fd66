"""Layers with weights, and what networks of images, sound and text compute without weights, as tables.

A layer is made when it is first used, and used again by later statements, or with tied weights.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

import torch
from attrs import frozen

from tests.fuzz.scope import Choose, Scope, Value


@frozen
class Layer:
    """A row: which tensors it takes, the module (or parameter) it makes, if any, and the expression that applies it.

    In both texts ``{x}`` is the tensor, ``{m}`` the module, ``{c}`` the size of the tensor's second dim and ``{d}`` of
    its last (a row that names one takes tensors of which that dim is static), and one of ``<a|b>`` is drawn.
    """

    ranks: tuple[int, ...]
    made: str = ""
    applied: str = "{m}({x})"
    integer: bool = False

    def sizes(self, scope: Scope, x: Value) -> dict[str, int] | None:
        """The sizes that the row names; None if one of them is 0, or not static."""
        sizes = {name: scope.static(x, dim) for name, dim in (("c", 1), ("d", -1)) if f"{{{name}" in self.texts}
        return {name: size for name, size in sizes.items() if size} if all(sizes.values()) else None

    @property
    def texts(self) -> str:
        """Both texts."""
        return self.made + self.applied

    def takes(self, scope: Scope, x: Value, tensor: torch.Tensor) -> bool:
        """Whether the row can be applied to a value."""
        dtype = tensor.dtype == torch.int64 if self.integer else tensor.is_floating_point()
        return dtype and tensor.dim() in self.ranks and self.sizes(scope, x) is not None


_ANY = (1, 2, 3, 4)

VECTORS = (
    *(Layer(_ANY, "nn.Linear({d}, <3|4|2>, bias=<True|False>)", text) for text in ("{m}({x})", "torch.tanh({m}({x}))")),
    Layer(_ANY, "nn.Linear({d}, <3|4|2>)"),
    Layer(_ANY, "nn.LayerNorm({d}, eps=0.1, elementwise_affine=<True|False>)"),
    Layer(_ANY, "nn.Sequential(nn.Linear({d}, 4), nn.<Tanh|SiLU>(), nn.Linear(4, {d}))"),
    *(Layer(_ANY, "nn.Parameter(torch.randn({d}, <3|4|2>, dtype={t}) * 0.5)", "{x} @ {m}"),) * 2,
    Layer((2,), "nn.BatchNorm1d({d}, eps=0.1)"),
    Layer((3,), "nn.Conv1d({c}, <3|4|2>, 3, padding=1)"),
    *(Layer(_ANY, "nn.Embedding(7, <3|4>)", "{m}({x} % 7)", integer=True),) * 2,
    Layer((2,), "nn.EmbeddingBag(7, <3|4>, mode=<'sum'|'mean'|'max'>, padding_idx=<None|2>)", "{m}({x} % 7)", True),
)

_BOTH = "mode=<'nearest'|'nearest-exact'|'area'|'bilinear'|'bicubic'>"
_SMOOTH = "mode=<'bilinear'|'bicubic'>, align_corners=<True|False>"

IMAGES = (
    *(
        Layer(
            (4,),
            "nn.Conv2d({c}, <4|2|6|8>, <3|1|5|(1, 3)|(3, 1)>, stride=<1|1|1|2>, padding=<1|0|2>, dilation=<1|1|2>, "
            "groups=<1|1|2>, bias=<True|False>, padding_mode=<'zeros'|'zeros'|'reflect'|'circular'|'replicate'>)",
            text,
        )
        for text in ("{m}({x})", "{m}({x})", "F.<relu|silu|hardswish|mish>({m}({x}))")
    ),
    Layer((4,), "nn.Conv2d({c}, {c} * <1|2>, <3|(1, 5)>, padding='same', groups={c})"),
    Layer((4,), "nn.ConvTranspose2d({c}, <4|2>, <3|2|4>, stride=<2|1|(1, 2)>, padding=<1|0>, output_padding=<0|1>)"),
    Layer((4,), "nn.Sequential(nn.Conv2d({c}, 4, 3, padding=1), nn.BatchNorm2d(4, eps=0.1), nn.<ReLU|SiLU|PReLU>())"),
    Layer((4,), "nn.Conv2d({c}, {c}, 3, padding=1)", "{x} + F.relu({m}({x}))"),
    Layer((4,), "nn.Conv2d({c}, {c}, 1)", "{x} * {m}({x}.mean((2, 3), keepdim=True)).sigmoid()"),
    Layer((4,), "nn.<BatchNorm2d|InstanceNorm2d>({c}, eps=0.1, affine=<True|False>)"),
    *(Layer((3, 4, 5), "nn.GroupNorm(<1|2|{c}>, {c}, eps=0.1)"),) * 2,
    Layer((3, 4), "nn.LayerNorm({c}, eps=0.1)", "{m}({x}.movedim(1, -1)).movedim(-1, 1)"),
    Layer((3, 4, 5), "nn.PReLU(<1|{c}>)"),
    Layer(
        (4,),
        "nn.Linear({c}, {c} * 3)",
        "F.scaled_dot_product_attention(*{m}({x}.flatten(2).mT).chunk(3, -1)).mT.reshape({x}.shape)",
    ),
    Layer((4,), "", "F.max_pool2d({x}, <3, 1, 1|2|3, 2, 1|(1, 2)|2, 1>, ceil_mode=<False|True>)"),
    Layer((4,), "", "F.max_pool2d({x}, 3, <1|2>, 2, dilation=2)"),
    Layer((4,), "", "F.avg_pool2d({x}, <2|3, 1, 1|3, 2, 1>, ceil_mode=<False|True>, count_include_pad=<True|False>)"),
    Layer((4,), "", "F.adaptive_<avg|max>_pool2d({x}, <(2, 3)|1|(None, 2)>)"),
    Layer((4,), "", "F.lp_pool2d({x}, 2.0, 2)"),
    *(Layer((4,), "", f"F.interpolate({{x}}, scale_factor=<2|1.5|0.5|(2, 1)>, {way})") for way in (_BOTH, _SMOOTH)),
    *(
        Layer((4,), "", f"F.interpolate({{x}}, size=<(5, 7)|({{x}}.shape[-2] + 2, {{x}}.shape[-1] * 2)>, {way})")
        for way in (_BOTH, f"{_SMOOTH}, antialias=<False|True>")
    ),
    Layer((4,), "", "F.pad({x}, (1, 0, 2, 1), mode=<'constant'|'reflect'|'replicate'|'circular'>)"),
    Layer((4,), "", "F.<pixel_shuffle|pixel_unshuffle|channel_shuffle>({x}, 2)"),
    Layer((4,), "", "F.unfold(F.pad({x}, (0, 1, 0, 1)), 2).view({x}.shape[0], -1, *{x}.shape[2:])"),
    Layer((4,), "", "F.fold(F.unfold({x}, 3, padding=1), {x}.shape[-2:], 3, padding=1) / 9"),
    Layer((4,), "", "{x} / ({x}.std((2, 3), keepdim=True, correction=0) + 1)"),
    Layer((4,), "", "{x} - {x}.mean(<2|3|(2, 3)|1>, keepdim=True)"),
    Layer((4,), "", "torch.cat([{x}, {x}.flip(<-1|2>)], 1)"),
    Layer((4,), "", "{x}[:, :, 1:, :-1]"),
    Layer((3, 4), "", "F.glu({x}, 1)"),
    Layer((3, 4), "", "F.normalize({x}, dim=1, eps=0.1)"),
    Layer((4,), "", "F.local_response_norm({x}, 3)"),
    Layer(
        (4,),
        "nn.Parameter(torch.tensor([[[0.9, 0.1, 0.0], [-0.1, 0.8, 0.1]]], dtype={t}))",
        "F.grid_sample({x}, F.affine_grid({m}.expand({x}.shape[0], 2, 3), {x}.shape, align_corners=False), "
        "mode=<'bilinear'|'bicubic'>, padding_mode=<'zeros'|'border'|'reflection'>, align_corners=<True|False>)",
    ),
    Layer((3,), "nn.Conv1d({c}, <4|2>, <3|5>, stride=<1|2>, padding=<1|2>, padding_mode=<'zeros'|'reflect'>)"),
    Layer((3,), "nn.ConvTranspose1d({c}, <4|2>, 3, stride=<1|2>, padding=1)"),
    Layer((3,), "nn.<BatchNorm1d|InstanceNorm1d>({c}, eps=0.1, affine=<True|False>)"),
    Layer((3,), "", "F.<max_pool1d|avg_pool1d>({x}, <3, 1, 1|2>, ceil_mode=<False|True>)"),
    Layer((3,), "", "F.interpolate({x}, scale_factor=<2|1.5>, mode=<'nearest'|'linear'>)"),
    Layer((5,), "nn.Conv3d({c}, <4|2>, <3|(1, 3, 3)>, stride=<1|2>, padding=1)"),
    Layer((5,), "nn.BatchNorm3d({c}, eps=0.1)"),
    Layer((5,), "", "F.<max_pool3d|avg_pool3d>({x}, <3, 1, 1|2>, ceil_mode=<False|True>)"),
    Layer((5,), "", "F.interpolate({x}, scale_factor=<2|1.5>, mode=<'nearest'|'trilinear'>)"),
)

_CAUSAL = "torch.ones({x}.shape[1], {x}.shape[1], dtype=torch.bool).triu(1)"
_DISTANCE = "(torch.arange({x}.shape[1])[:, None] - torch.arange({x}.shape[1]))"
_MHA = "nn.MultiheadAttention({d}, <1|2|4>, batch_first=True, bias=<True|False>, add_<bias_kv|zero_attn>=<False|True>)"
_RECURRENT = "batch_first=<True|False>, bidirectional=<True|False>"
_FLAGS = "batch_first=True, norm_first=<False|True>, bias=<True|False>"

SEQUENCES = (
    Layer(
        (3,),
        "nn.<LSTM|GRU|RNN>({d}, <4|3>, <1|2>, batch_first=<True|False>, bidirectional=<True|False>)",
        "{m}({x})[0]",
    ),
    Layer((3,), "nn.LSTM({d}, 4, <1|2>, bias=<True|False>, batch_first=True, proj_size=<0|3>)", "{m}({x})[1][<0|1>]"),
    Layer((3,), f"nn.<GRU|RNN>({{d}}, <4|3>, {_RECURRENT})", "{m}({x})[1]"),
    Layer((3,), "nn.<LSTMCell|GRUCell|RNNCell>({d}, 4)", "torch.as_tensor({m}({x}[:, -1])[0])"),
    Layer((3,), _MHA, "{m}({x}, {x}, {x})[<0|1>]"),
    Layer((3,), _MHA, f"{{m}}({{x}}, {{x}}, {{x}}, attn_mask={_CAUSAL}, need_weights=<False|True>)[0]"),
    Layer((3,), _MHA, f"{{m}}({{x}}, {{x}}, {{x}}, attn_mask={_DISTANCE}.abs().to({{x}}.dtype) * -0.1)[0]"),
    Layer(
        (3,),
        _MHA,
        "{m}({x}[:, :2], {x}, {x}, key_padding_mask=(torch.arange({x}.shape[1]) > 1).expand({x}.shape[:2]))[0]",
    ),
    Layer((3,), f"nn.TransformerEncoderLayer({{d}}, <1|2>, 8, activation=<'relu'|'gelu'>, {_FLAGS})"),
    Layer(
        (3,), f"nn.TransformerDecoderLayer({{d}}, <1|2>, 8, {_FLAGS})", f"{{m}}({{x}}, {{x}} * 0.5, tgt_mask={_CAUSAL})"
    ),
    Layer(
        (3,),
        "nn.Linear({d}, 24)",
        "F.scaled_dot_product_attention(*{m}({x}).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4), "
        "is_causal=<True|False>).transpose(1, 2).flatten(2)",
    ),
    Layer(
        (3,),
        "nn.Linear({d}, 16)",
        "F.scaled_dot_product_attention({m}({x})[..., :8].unflatten(-1, (2, 4)).transpose(1, 2), "
        "*{m}({x})[:, None, :, 8:].chunk(2, -1), enable_gqa=True).transpose(1, 2).flatten(2)",
    ),
    Layer((3,), "nn.Conv1d({d}, {d}, 3, padding=<1|'same'>, groups=<1|{d}>)", "{m}({x}.mT).mT"),
    Layer((3,), "nn.Conv1d({d}, {d}, 4, groups={d})", "{m}(F.pad({x}.mT, (3, 0))).mT"),
    Layer((3,), "nn.Linear({d}, {d} * 2)", "F.glu({m}({x}), -1)"),
    Layer((3,), "nn.RMSNorm({d}, eps=0.1)"),
    Layer((3,), "", "{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 0.1)"),
    Layer((3,), "", "F.<max_pool1d|avg_pool1d>({x}.mT, <3, 1, 1|2>).mT"),
    Layer((3,), "", "F.interpolate({x}.mT, scale_factor=2, mode=<'linear'|'nearest'>).mT[:, ::2]"),
    Layer((3,), "", "F.pad({x}, (0, 0, <1|2>, 0)).unfold(1, <2|3>, 1).mean(-1)"),
    Layer((3,), "", "{x}.cumsum(1) * 0.3"),
    Layer((3,), "", "({x} * 0.1).cumprod(1)"),
    Layer((3,), "", "{x}.logcumsumexp(1) * 0.3"),
    Layer(
        (3,),
        "",
        f"({{x}} @ {{x}}.mT * 0.3 - {_DISTANCE}.abs() * 0.1).masked_fill({_CAUSAL}, <-1e9|float('-inf')>)"
        ".softmax(-1) @ {x}",
    ),
    Layer(
        (3,),
        "nn.Parameter(torch.linspace(-1, 1, 5, dtype={t}))",
        f"({{x}} @ {{x}}.mT + {{m}}[{_DISTANCE}.clamp(-2, 2) + 2]).softmax(-1) @ {{x}}",
    ),
    Layer((3,), "", "torch.einsum('btd,bsd->bts', {x}, {x}).softmax(-1) @ {x}"),
    Layer((3,), "", "(-torch.cdist({x}, {x})).softmax(-1) @ {x}"),
    Layer(
        (3,),
        "nn.Parameter(torch.tensor([1.0, 0.1], dtype={t}))",
        "torch.cat([{x}[..., :2] * torch.cos({m} * torch.arange({x}.shape[1])[:, None]), {x}[..., 2:]], -1)",
    ),
    Layer((3,), "", "torch.tril(torch.ones({x}.shape[1], {x}.shape[1]), <0|1>) / 4 @ {x}"),
    Layer((3,), "", "{x}.roll(<1|2|-1>, <1|-1>)"),
    Layer((3,), "", "{x}.repeat_interleave(2, 1)[:, 1::2]"),
    Layer((3,), "", "{x}.gather(1, (torch.arange({x}.shape[0]) % {x}.shape[1])[:, None, None].expand(-1, 1, {d}))"),
    Layer((3,), "", "{x}[torch.arange({x}.shape[0]), -1]"),
    Layer(
        (3,), "", "torch.zeros_like({x}).scatter_add(1, (torch.arange({x}.shape[1]) // 2)[:, None].expand_as({x}), {x})"
    ),
    Layer((3,), "", "torch.zeros_like({x}).index_<add|copy>(1, torch.arange({x}.shape[1]).flip(0), {x})"),
    Layer((3,), "", "{x}.flatten(0, 1).view({x}.shape[0], {x}.shape[1], {d})"),
    Layer((3,), "", "torch.lerp({x}, {x}.flip(1), 0.3)"),
    Layer((3,), "", "{x}.<log_softmax|softmax>(<-1|1>)"),
    Layer((2,), "nn.Embedding(7, <4|8>, padding_idx=<None|1>)", "{m}({x} % 7)", integer=True),
    Layer((2,), "nn.EmbeddingBag(7, <4|8>, mode=<'sum'|'mean'|'max'>)", "{m}({x} % 7)", integer=True),
    Layer((1,), "nn.EmbeddingBag(7, 4, mode=<'sum'|'mean'>)", "{m}({x} % 7, torch.tensor([0, 1]))", integer=True),
    Layer((1, 2), "", "F.one_hot({x} % 5, 5).float()", integer=True),
)


def layer(rows: tuple[Layer, ...]) -> Callable[[Scope], Value | None]:
    """A statement that applies a row of a table: with an existing or a new module."""

    def apply(scope: Scope) -> Value | None:
        row, before = scope.choose(rows), len(scope.setup)
        x = scope.pick(lambda v, t: row.takes(scope, v, t))
        if x is None:
            return None
        sizes = row.sizes(scope, x) or {}
        name = _module(scope, row, sizes, scope.tensor(x).dtype) if row.made else ""
        text = _drawn(scope.choose, row.applied, {"x": x.text, "m": name, **sizes})
        made = None if name is None else scope.assign(text)
        if name and made is None and len(scope.setup) > before:
            scope.forget_module(name, before)
        return made

    return apply


def _drawn(choose: Choose, text: str, values: Mapping[str, object]) -> str:
    """A text with its choices drawn and its names replaced."""
    drawn = re.sub(r"<([^<>]*)>", lambda match: str(choose(match[1].split("|"))), text)
    return drawn.format(**values)


def _module(scope: Scope, row: Layer, sizes: Mapping[str, int], dtype: torch.dtype) -> str | None:
    """An existing module of the same source, or a new one; None if PyTorch refuses it."""
    parameter = row.made.startswith("nn.Parameter")
    source = _drawn(scope.choose, row.made, {**sizes, "t": dtype if dtype.is_floating_point else torch.float32})
    if not parameter and dtype in (torch.float16, torch.bfloat16):
        source += f".to({dtype})"
    alike = [name for name, made in scope.modules.items() if made == source]
    if alike and scope.maybe(2):
        return str(scope.choose(alike))
    name = f"self.{scope.name(re.findall(r'[A-Z][a-z]+', source)[0].lower())}"
    if not scope.add_setup(f"{name} = {source}"):
        return None
    scope.modules[name] = source
    if "Norm" in source:
        scope.add_setup(f"[t.uniform_(0.5, 2) for t in {name}.state_dict().values() if t.dim()]")
    if alike and "Linear" in source and scope.maybe(2):
        scope.add_setup(f"{name}.weight = {scope.choose(alike)}.weight")
    return name
