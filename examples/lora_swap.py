"""Swap LoRA adapters of a compiled program: each is a new program, and the base stays as it is."""

import torch
from torch import nn

import pipeline


def main() -> None:
    """Compile once; run the base, two adapters, and the base again."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4)).eval().requires_grad_(False)
    x = torch.randn(2, 8)
    base = pipeline.compile(model, args=(x,))
    for name in ("formal", "casual"):
        a, b = torch.randn(2, 8), torch.randn(16, 2)  # [rank, in], [out, rank]; or the path of PEFT's adapter
        tuned = base.with_lora({"0.weight": (a, b)}, scale=0.5)
        weight = model[0].weight + 0.5 * b @ a
        expected = model[2](torch.relu(nn.functional.linear(x, weight, model[0].bias)))
        torch.testing.assert_close(tuned(x), expected, rtol=1e-2, atol=1e-2)
        print(name, tuned(x).norm().item())
    torch.testing.assert_close(tuned.with_lora({})(x), base(x))


if __name__ == "__main__":
    main()
