"""``torch.compile`` with TensorRT: graphs that Dynamo traces become engines, what it cannot trace stays Python."""

import torch
from torch import nn

import pipeline


class Branching(nn.Module):
    """Layers around a print, at which Dynamo breaks the graph."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 8] -> [N, 4]"""
        y = self.first(x).relu()
        print("between two graphs")
        return self.second(y).softmax(-1)


def main() -> None:
    """Compile by name, with options; then with a backend that counts its graphs."""
    torch.manual_seed(0)
    model, x = Branching().eval().requires_grad_(False), torch.randn(2, 8)
    by_name = torch.compile(model, backend="pipeline", options={"precision": "float16", "min_block_size": 1})
    torch.testing.assert_close(by_name(x), model(x), rtol=1e-2, atol=1e-2)
    torch._dynamo.reset()
    backend = pipeline.backend(pipeline.default(min_block_size=1))
    torch.testing.assert_close(torch.compile(model, backend=backend)(x), model(x), rtol=1e-2, atol=1e-2)
    assert backend.compiled == 2
    print(backend.report())


if __name__ == "__main__":
    main()
