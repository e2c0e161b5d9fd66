"""Recurrent layers and transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from tests.zoo.rows import Row, b, f, m, t


def _named(kind: type[nn.Module], **options: Any) -> str:
    return " ".join([kind.__name__, *(f"{k}={v}" for k, v in options.items())])


def _recurrent(kind: type[nn.Module], **options: Any) -> Row:
    """[batch, sequence, feature] of dynamic batch, or sequence first; few steps are written out, more are a loop."""
    steps = 12 if options else 4
    shape = ("n", steps, 5) if options.get("batch_first") else (steps, "n", 5)
    return m(_named(kind, **options), lambda: kind(5, 4, **options), t(*shape))


OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    {"batch_first": True, "bias": False},
    {"num_layers": 2, "bidirectional": True, "batch_first": True},
)


class Stateful(nn.Module):
    """A recurrent layer that is given its state."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, *state: torch.Tensor) -> Any:
        """The layer's output and state."""
        return self.layer(x, state if len(state) > 1 else state[0])


class Masked(nn.Module):
    """Attention with the arguments by name."""

    def __init__(self, layer: nn.Module, *names: str, **options: Any) -> None:
        super().__init__()
        self.layer, self.names, self.options = layer, names, options

    def forward(self, x: torch.Tensor, *more: torch.Tensor) -> Any:
        """Self-attention."""
        return self.layer(x, x, x, **dict(zip(self.names, more, strict=True)), **self.options)


def _attention(**options: Any) -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True, **options).eval()


def _encoder(layers: int = 1, **options: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, **options)
    return (layer if layers == 1 else nn.TransformerEncoder(layer, layers)).eval()


def _decoder(**options: Any) -> nn.Module:
    return nn.TransformerDecoderLayer(8, 2, 16, batch_first=True, **options).eval()


class Causal(nn.Module):
    """A whole transformer with a causal mask for its target."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.layer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True, **options).eval()

    def forward(self, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        """The decoder's output."""
        mask = nn.Transformer.generate_square_subsequent_mask(target.shape[1])
        return self.layer(source, target, tgt_mask=mask, tgt_is_causal=True)


NO_PADDING = t("n", "s", values="zeros")
ROWS = (
    *(_recurrent(kind, **options) for kind in (nn.LSTM, nn.GRU, nn.RNN) for options in OPTIONS),
    _recurrent(nn.LSTM, proj_size=3),
    _recurrent(nn.RNN, nonlinearity="relu"),
    m("LSTM with state", lambda: Stateful(nn.LSTM(5, 4)), t(12, "n", 5), t(1, "n", 4), t(1, "n", 4)),
    m(
        "LSTM with state, projected",
        lambda: Stateful(nn.LSTM(5, 4, proj_size=3)),
        t(12, "n", 5),
        t(1, "n", 3),
        t(1, "n", 4),
    ),
    m("GRU with state", lambda: Stateful(nn.GRU(5, 4, 2)), t(12, "n", 5), t(2, "n", 4)),
    m("RNN with state", lambda: Stateful(nn.RNN(5, 4)), t(12, "n", 5), t(1, "n", 4)),
    m("LSTM without batch", lambda: nn.LSTM(5, 4), t(6, 5)),
    m("GRU of dynamic length", lambda: nn.GRU(5, 4, batch_first=True), t(2, "s", 5)),
    m("RNN of dynamic length", lambda: nn.RNN(5, 4), t("s", 2, 5)),
    m("LSTM of dynamic length and batch", lambda: nn.LSTM(5, 4, batch_first=True), t("n", "s", 5)),
    m("LSTM of dynamic length, both ways", lambda: nn.LSTM(5, 4, 2, bidirectional=True), t("s", 2, 5)),
    m("long LSTM", lambda: nn.LSTM(5, 4), t(500, 2, 5)),
    m("LSTMCell", lambda: Stateful(nn.LSTMCell(5, 4)), t("n", 5), t("n", 4), t("n", 4)),
    m("GRUCell", lambda: Stateful(nn.GRUCell(5, 4)), t("n", 5), t("n", 4)),
    m("RNNCell", lambda: Stateful(nn.RNNCell(5, 4)), t("n", 5), t("n", 4)),
    m("MultiheadAttention", lambda: Masked(_attention()), t("n", "s", 8)),
    m("MultiheadAttention, no weights", lambda: Masked(_attention(), need_weights=False), t("n", "s", 8)),
    m(
        "MultiheadAttention, weights of each head",
        lambda: Masked(_attention(), average_attn_weights=False),
        t("n", "s", 8),
    ),
    m("MultiheadAttention, attn_mask", lambda: Masked(_attention(), "attn_mask"), t("n", "s", 8), t("s", "s")),
    m(
        "MultiheadAttention, bool attn_mask",
        lambda: Masked(_attention(), "attn_mask", need_weights=False),
        t("n", 4, 8),
        b(4, 4),
    ),
    m(
        "MultiheadAttention, attn_mask of each head",
        lambda: Masked(_attention(), "attn_mask"),
        t(2, "s", 8),
        t(4, "s", "s"),
    ),
    m(
        "MultiheadAttention, key_padding_mask",
        lambda: Masked(_attention(), "key_padding_mask"),
        t("n", "s", 8),
        NO_PADDING,
    ),
    m(
        "MultiheadAttention, bool key_padding_mask",
        lambda: Masked(_attention(), "key_padding_mask", need_weights=False),
        t("n", "s", 8),
        b("n", "s"),
    ),
    m(
        "MultiheadAttention, extra keys",
        lambda: Masked(_attention(add_bias_kv=True, add_zero_attn=True)),
        t("n", "s", 8),
    ),
    f(
        "MultiheadAttention, other sizes",
        nn.MultiheadAttention(8, 2, kdim=4, vdim=6).eval(),
        t(5, "n", 8),
        t("s", "n", 4),
        t("s", "n", 6),
    ),
    *(
        m(
            _named(nn.TransformerEncoderLayer, norm_first=first, activation=activation),
            lambda first=first, activation=activation: _encoder(norm_first=first, activation=activation),
            t("n", "s", 8),
        )
        for first in (False, True)
        for activation in ("relu" if first else "gelu",)
    ),
    m("TransformerEncoder", lambda: _encoder(2), t("n", "s", 8)),
    m("TransformerEncoder in training mode", lambda: _encoder(2, dropout=0.0).train(), t("n", "s", 8)),
    *(
        m(
            _named(nn.TransformerDecoderLayer, norm_first=first),
            lambda first=first: _decoder(norm_first=first),
            t("n", "s", 8),
            t("n", 5, 8),
        )
        for first in (False, True)
    ),
    m("Transformer, causal", Causal, t("n", "s", 8), t("n", 5, 8)),
    *(
        f(f"scaled_dot_product_attention {name}", function, *specs)
        for name, function, specs in (
            ("causal", lambda q: F.scaled_dot_product_attention(q, q, q, is_causal=True), (t("n", 2, "s", 8),)),
            ("scale", lambda q: F.scaled_dot_product_attention(q, q, q, scale=0.3), (t("n", 2, "s", 8),)),
            ("bool mask", lambda q, mask: F.scaled_dot_product_attention(q, q, q, mask), (t("n", 2, 4, 8), b(4, 4))),
            (
                "grouped",
                lambda q, k: F.scaled_dot_product_attention(q, k, k, enable_gqa=True),
                (t("n", 4, "s", 8), t("n", 2, "s", 8)),
            ),
        )
    ),
)
