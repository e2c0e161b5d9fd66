"""Convert an operator of your own: declare its converter, check a call with it, compile with it."""

from typing import Any

import torch
from torch import nn

import pipeline
from pipeline.testing import Call, TensorSpec, check
from pipeline.trt import trt


@torch.library.custom_op("examples::softsign", mutates_args=())
def softsign(x: torch.Tensor) -> torch.Tensor:
    """``x / (1 + |x|)``, as an operator that nobody else knows."""
    return x / (x.abs() + 1)


@softsign.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pipeline.dynamo_tensorrt_converter(torch.ops.examples.softsign.default, supports_dynamic_shapes=True)
def convert_softsign(ctx: pipeline.ConversionContext, target: Any, args: Any, kwargs: Any, name: str) -> Any:
    """examples::softsign(Tensor x) -> Tensor"""
    return ctx.add(name, "activation", args[0], trt.ActivationType.SOFTSIGN).get_output(0)


class Net(nn.Module):
    """A linear layer and the operator."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        return softsign(self.linear(x))


def main() -> None:
    """Check a call, as `check_converter` does with drawn ones; compile a model, all of it in TensorRT."""
    registry = pipeline.DYNAMO_CONVERTERS.register(convert_softsign)
    assert check(Call(torch.ops.examples.softsign.default, (TensorSpec((2, 4)),)), registry=registry)
    model, x = Net().eval().requires_grad_(False), torch.randn(2, 4)
    compiled = pipeline.default(require_full_compilation=True, registry=registry)(model, args=(x,))
    torch.testing.assert_close(compiled(x), model(x), rtol=1e-2, atol=1e-2)
    print(compiled)


if __name__ == "__main__":
    main()
