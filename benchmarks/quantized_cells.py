"""``python -m benchmarks.quantized_cells``: write docs/quantization-forms.md, form by type by operator.

Each cell is a model of one operator whose weight, or whose weight and activations, pass through one form's operators;
it is captured and validated, for a TensorRT that builds quantized networks. No engine is built, and no GPU is needed.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, TypeAlias

import attrs
import torch
from attrs import frozen
from torch import nn

import pipeline
from benchmarks.markdown import table
from pipeline.aten.quantized import operators
from pipeline.converters import quantized
from pipeline.program import Validated

Tensor = torch.Tensor
Quantizer: TypeAlias = Callable[[Tensor], Tensor]

PAGE: Final = Path(__file__).parents[1] / "docs" / "quantization-forms.md"
HEAD: Final = """# Forms of quantization

After this page you know which kinds of quantized models become quantized TensorRT layers. `python -m
benchmarks.quantized_cells` writes the page. A row is a kind of quantization: the library, the dtype, and which elements
share a scale. A column is the operator that reads the quantized tensors. A cell says how the engine computes it: before
`;` if only the weight is quantized, after `;` if weight and activations are quantized. The words in cells are:

- `weights`: the engine stores the weight in the low-precision dtype, with its scales.
- `activations`: the engine fuses the quantize/dequantize pair of activations into the operator's kernel.
- `emulated`: TensorRT has no quantized layer for this kind, so elementwise layers of the engine compute the same
  numbers, without a low-precision kernel.
- `PyTorch (n)`: the quantize operator runs in PyTorch; reason n is below the table.

"""
SIZE: Final = 64
ATTENDING: Final = ("attention", "softmax's output")
"""Operators without a weight: query, key and value pass through a form, or the probabilities and the value do."""
OPERATORS: Final = ("linear", "matmul", "convolution", "embedding", *ATTENDING)


@frozen
class Form:
    """One way to write quantization: its name, its type, what shares a scale, and what it does to a tensor.

    ``eager``: whether PyTorch runs it on a CPU, so that results can be compared.
    """

    name: str
    type: str
    shares: str
    of: Quantizer
    eager: bool = True


def _scales(x: Tensor, high: float) -> Tensor:
    """A scale for each row."""
    return x.detach().abs().flatten(1).amax(1).clamp(min=1e-6) / high


def _rows(scale: Tensor, x: Tensor) -> Tensor:
    return scale.reshape(-1, *[1] * (x.dim() - 1))


def modelopt(bits: int, exponent: int, by_row: bool) -> Quantizer:
    """NVIDIA ModelOpt's ``quantize_op``."""

    def of(x: Tensor) -> Tensor:
        amax = torch.full((), 2.5) if not by_row else _rows(torch.linspace(1, 3, x.shape[0]), x)
        made: Tensor = torch.ops.tensorrt.quantize_op(x, amax, bits, exponent, False, False)
        return made

    return of


def modelopt_blocks(bits: int, exponent: int, scale: int, of_scale: int, size: int) -> Quantizer:
    """NVIDIA ModelOpt's ``dynamic_block_quantize_op``."""

    def of(x: Tensor) -> Tensor:
        amax = torch.full((), 2.5)
        made: Tensor = torch.ops.tensorrt.dynamic_block_quantize_op(x, size, amax, bits, exponent, scale, of_scale)
        return made

    return of


def pt2e(dtype: torch.dtype, zero: int) -> Quantizer:
    """torchao's PT2E, one scale for a tensor."""
    low, high = (0, 255) if dtype == torch.uint8 else (-128, 127)
    pair = torch.ops.quantized_decomposed

    def of(x: Tensor) -> Tensor:
        codes = pair.quantize_per_tensor(x, 0.02, zero, low, high, dtype)
        made: Tensor = pair.dequantize_per_tensor(codes, 0.02, zero, low, high, dtype)
        return made

    return of


def pt2e_rows(x: Tensor) -> Tensor:
    """torchao's PT2E, a scale for each row."""
    scale, zero = torch.linspace(0.01, 0.03, x.shape[0]), torch.zeros(x.shape[0], dtype=torch.int64)
    pair = torch.ops.quantized_decomposed
    codes = pair.quantize_per_channel(x, scale, zero, 0, -128, 127, torch.int8)
    made: Tensor = pair.dequantize_per_channel(codes, scale, zero, 0, -128, 127, torch.int8)
    return made


def affine(low: int, high: int, length: int | None) -> Quantizer:
    """torchao's ``quantize_affine``, in blocks along the last dim or by row."""

    def of(x: Tensor) -> Tensor:
        last = x.shape[-1] if length is None else length
        block = [1] * (x.dim() - 1) + [last]
        count = [*x.shape[:-1], x.shape[-1] // last]
        scale, zero = torch.full(count, 2.0 / high), torch.zeros(count, dtype=torch.int8)
        codes = torch.ops.torchao.quantize_affine(x, block, scale, zero, torch.int8, low, high)
        made: Tensor = torch.ops.torchao.dequantize_affine(codes, block, scale, zero, torch.int8, low, high)
        return made

    return of


def float8(x: Tensor) -> Tensor:
    """Casts to E4M3 and back."""
    return x.clamp(-448, 448).to(torch.float8_e4m3fn).to(x.dtype)


def fake(zero: int) -> Quantizer:
    """torch's own, one scale for a tensor."""
    return lambda x: torch.fake_quantize_per_tensor_affine(x, 0.02, zero, -128, 127)


def fake_rows(x: Tensor) -> Tensor:
    """torch's own, a scale for each row."""
    scale, zero = torch.linspace(0.01, 0.03, x.shape[0]), torch.zeros(x.shape[0], dtype=torch.int32)
    return torch.fake_quantize_per_channel_affine(x, scale, zero, 0, -128, 127)


FORMS: Final = (
    Form("ModelOpt", "INT8", "tensor", modelopt(8, 0, False), eager=False),
    Form("ModelOpt", "INT8", "channel", modelopt(8, 0, True), eager=False),
    Form("ModelOpt", "FP8", "tensor", modelopt(8, 4, False)),
    Form("ModelOpt", "FP8", "channel", modelopt(8, 4, True)),
    Form("ModelOpt", "NVFP4", "block of 16", modelopt_blocks(4, 2, 8, 4, 16), eager=False),
    Form("ModelOpt", "MXFP8", "block of 32", modelopt_blocks(8, 4, 9, 8, 32), eager=False),
    Form("ModelOpt", "E5M2", "block of 32", modelopt_blocks(8, 5, 9, 8, 32), eager=False),
    Form("PT2E", "INT8", "tensor", pt2e(torch.int8, 0)),
    Form("PT2E", "INT8 with zero points", "tensor", pt2e(torch.int8, 3)),
    Form("PT2E", "UINT8", "tensor", pt2e(torch.uint8, 117)),
    Form("PT2E", "INT8", "channel", pt2e_rows),
    Form("torchao `quantize_`", "INT8", "channel", affine(-128, 127, None)),
    Form("torchao `quantize_`", "INT4", "block of 32", affine(-8, 7, 32)),
    Form("torch `fake_quantize`", "INT8", "tensor", fake(0)),
    Form("torch `fake_quantize`", "INT8 with zero points", "tensor", fake(3)),
    Form("torch `fake_quantize`", "INT8", "channel", fake_rows),
    Form("torch casts", "FP8", "tensor", float8),
)


class Cell(nn.Module):
    """One operator, whose weight passes through a form, and whose activations do if asked for."""

    def __init__(self, operator: str, form: Form, activations: bool) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.operator, self.form, self.activations = operator, form, activations
        shape = (16, 16, 4, 4) if operator == "convolution" else (SIZE, SIZE)
        self.weight = nn.Parameter(torch.randn(shape))

    def rounded(self, x: Tensor) -> Tensor:
        """An activation, through the form if activations are."""
        return self.form.of(x) if self.activations else x

    def forward(self, x: Tensor) -> Tensor:
        """The operator on what is quantized."""
        if self.operator == "attention":
            q, k, v = (self.form.of(part) for part in (x, x * 0.5, x + 1))
            return nn.functional.scaled_dot_product_attention(q, k, v)
        if self.operator == "softmax's output":
            likely = (x @ x.transpose(-2, -1)).softmax(-1) * 1.1  # 0 and 1.1, which no form has halfway between codes
            return self.form.of(likely) @ self.form.of(x + 1)
        weight = self.form.of(self.weight)
        if self.operator == "embedding":
            return nn.functional.embedding(x, weight)
        if self.operator == "convolution":
            return nn.functional.conv2d(self.rounded(x), weight)
        return nn.functional.linear(self.rounded(x), weight) if self.operator == "linear" else self.rounded(x) @ weight


def given(operator: str) -> Tensor:
    """What a cell is called with."""
    generator = torch.Generator().manual_seed(4)
    if operator == "embedding":
        return torch.randint(0, SIZE, (8,), generator=generator)
    heads = dict.fromkeys(ATTENDING, (1, 2, SIZE, SIZE))
    shape = {"convolution": (2, 16, 8, 8), **heads}.get(operator, (8, SIZE))
    return torch.randn(shape, generator=generator)


def cells() -> Iterator[tuple[Form, str, bool]]:
    """Every cell: the form, the operator, and whether activations pass through the form too."""
    for form in FORMS:
        for operator in OPERATORS:
            for activations in (False, True) if operator not in ("embedding", *ATTENDING) else (False,):
                yield form, operator, activations


@contextmanager
def quantizing() -> Iterator[None]:
    """As with a TensorRT that builds quantized networks, whichever is at hand."""
    own: Any = quantized.CAPABILITIES
    vars(quantized)["CAPABILITIES"] = attrs.evolve(own, quantization=True)
    try:
        yield
    finally:
        vars(quantized)["CAPABILITIES"] = own


def validated(form: Form, operator: str, activations: bool) -> Validated | None:
    """A cell's program with a verdict for each operator; None where the library itself takes no such tensor."""
    compile = pipeline.default(compute_capabilities=("12.0",)).until("validate")
    with quantizing(), suppress(pipeline.CaptureError):
        made: Validated = compile(Cell(operator, form, activations).eval(), args=(given(operator),))
        return made
    return None


def outcome(record: Validated | None) -> str:
    """What a cell says: what became of weights and activations, or why it is refused."""
    if record is None:
        return "the library takes none"
    refused = [verdict for verdict in record.verdicts.values() if not verdict.supported]
    if refused:
        return f"no: {refused[0].reasons[0].reason}"
    targets = [node.target for node in record.program.graph.nodes]
    counts = {
        "weights": targets.count(operators.dequantize.default),
        "activations": targets.count(operators.fake_quantize.default)
        + targets.count(operators.fake_quantize_blocks.default),
    }
    rounds = any("round" in str(target) for target in targets)
    said = [name for name, count in counts.items() if count] + ["emulated"] * rounds
    return " + ".join(said) or "numbers"


def page() -> str:
    """docs/quantization-forms.md: the table, and below it the reasons."""
    reasons: dict[str, int] = {}

    def short(said: str) -> str:
        if not said.startswith("no: "):
            return said
        return f"PyTorch ({reasons.setdefault(said.removeprefix('no: '), len(reasons) + 1)})"

    rows = []
    for form in FORMS:
        row = [form.name, form.type, form.shares]
        for operator in OPERATORS:
            found = [outcome(validated(f, o, a)) for f, o, a in cells() if f is form and o == operator]
            row.append("; ".join(dict.fromkeys(map(short, found))))
        rows.append(row)
    lines = table(["quantized by", "type", "a scale for each", *OPERATORS], rows)
    return "\n".join([HEAD + "\n".join(lines), "", *(f"{number}. {why}" for why, number in reasons.items()), ""])


def main() -> int:
    """Writes the page."""
    import modelopt.torch.quantization  # noqa: F401  -- defines its operators
    import torchao.quantization
    import torchao.quantization.pt2e  # noqa: F401

    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
