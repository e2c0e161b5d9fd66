"""Quantize weights to INT8; the program says which matmuls read the quantized values."""

import torch
from torch import nn

import pipeline


def main() -> None:
    """Compile a model in half precision with INT8 weights; compare with float32."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 64)).eval().requires_grad_(False)
    x = torch.randn(4, 64)
    stages = pipeline.default(precision="float16").insert(pipeline.quantize("int8"), before="decompose")
    compiled = stages(model, args=(x,))
    error = ((compiled(x) - model(x)).norm() / model(x).norm()).item()
    assert error < 2e-2
    print(compiled, f"relative error {error:.1e}", *compiled.quantization, sep="\n")


if __name__ == "__main__":
    main()
