"""Sizes that vary: ranges, sizes that inputs share, several profiles, and the error beyond them."""

import torch
from torch import nn
from torch.export import Dim

import pipeline


class Scores(nn.Module):
    """Scores of queries against keys."""

    def forward(self, queries: torch.Tensor, keys: torch.Tensor) -> torch.Tensor:
        """[N, Q, 8], [N, K, 8] -> [N, Q, K]"""
        return (queries @ keys.transpose(1, 2)).softmax(-1)


def main() -> None:
    """Compile for a range, then for two profiles; call with sizes in and out of them."""
    model, batch = Scores().eval(), Dim("batch", max=8)
    shapes = {"queries": {0: batch, 1: Dim("q", max=16)}, "keys": {0: batch, 1: Dim("k", max=32)}}
    compiled = pipeline.compile(model, args=(torch.ones(2, 3, 8), torch.ones(2, 5, 8)), dynamic_shapes=shapes)
    q, k = torch.randn(4, 1, 8), torch.randn(4, 32, 8)
    torch.testing.assert_close(compiled(q, k), model(q, k), rtol=1e-2, atol=1e-2)
    try:
        compiled(q, torch.randn(4, 33, 8))
    except pipeline.ShapeError as error:
        print(error)
    single, prompt = ((1, 1, 8),) * 3, ((1, 2, 8), (1, 16, 8), (1, 32, 8))
    rows = pipeline.Input(profiles=[single, prompt])
    print(pipeline.compile(nn.Linear(8, 8).eval(), args=(rows,)).report())


if __name__ == "__main__":
    main()
