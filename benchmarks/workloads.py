"""What is measured: models of several sizes, and chains of operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as hf

from examples.models import Case, full, small


def llama() -> Case:
    """A Llama of about 500 MB in float16, with grouped keys and values."""
    config = hf.LlamaConfig(
        vocab_size=32000,
        hidden_size=1024,
        num_hidden_layers=14,
        num_attention_heads=16,
        num_key_value_heads=4,
        intermediate_size=3584,
        use_cache=False,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = hf.LlamaForCausalLM(config).eval().half()
    batch, sequence = torch.export.Dim("batch", min=1, max=8), torch.export.Dim("sequence", min=2, max=512)
    ids = torch.randint(3, 32000, (2, 128))
    dims = {0: batch, 1: sequence}
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    return Case("llama", model, inputs, {"input_ids": dims, "attention_mask": dims})


MODELS: dict[str, Callable[[], Case]] = {
    "ResNet-50, float32": lambda: full("resnet50"),
    "BERT-base, float32": lambda: full("bert"),
    "Llama-like, float16": llama,
}


def case(name: str) -> Case:
    """One of `MODELS`, or ``small NAME`` for the same architecture with hardly any weights."""
    return small(name.removeprefix("small ")) if name.startswith("small ") else MODELS[name]()


class Chain(torch.nn.Module):
    """Operators one after the other: every third a product with a parameter, an addition, an activation."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        self.nodes = nodes
        self.scale = torch.nn.Parameter(torch.full((16,), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 16] -> [N, 16]"""
        for index in range(self.nodes):
            x = _step(x, self.scale, index % 3)
        return x


def _step(x: torch.Tensor, scale: torch.Tensor, kind: int) -> torch.Tensor:
    if kind == 0:
        return x * scale
    return x + 0.25 if kind == 1 else torch.relu(x)


def chain(nodes: int) -> torch.export.ExportedProgram:
    """A chain of so many operators, with a dynamic batch, exported."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    return torch.export.export(Chain(nodes).eval(), (torch.ones(2, 16),), dynamic_shapes=shapes, strict=False)
