"""What is measured: models of several sizes, and programs of as many operators as one likes."""

from __future__ import annotations

import random
from collections.abc import Callable

import torch
import transformers as hf
from attrs import evolve, frozen

from examples.models import Case, full, small
from pipeline.converters.registry import Rejection
from pipeline.frozen import FrozenDict
from pipeline.program import Validated, is_operator


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


class Block(torch.nn.Module):
    """Ten operators: a product with its activation, a softmax, reductions and views, and a shortcut past them."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(16, 16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 16] -> [N, 16]"""
        weights = torch.softmax(torch.relu(self.linear(x)).reshape(-1, 4, 4), -1)
        scaled = (weights * weights.amax(-1, keepdim=True)).reshape(-1, 16)
        return torch.tanh(scaled - x) + x


class Blocks(torch.nn.Module):
    """Blocks one after the other; every tenth starts a submodule of its own."""

    def __init__(self, nodes: int) -> None:
        super().__init__()
        blocks = [Block() for _ in range(nodes // 10)]
        self.parts = torch.nn.ModuleList(torch.nn.Sequential(*blocks[i : i + 10]) for i in range(0, len(blocks), 10))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[N, 16] -> [N, 16]"""
        for part in self.parts:
            x = part(x)
        return x


def blocks(nodes: int) -> torch.export.ExportedProgram:
    """So many operators in blocks, with a dynamic batch, exported."""
    shapes = ({0: torch.export.Dim("batch", min=1, max=8)},)
    return torch.export.export(Blocks(nodes).eval(), (torch.ones(2, 16),), dynamic_shapes=shapes, strict=False)


@frozen
class RefuseAtRandom:
    """A stage after ``validate``: no engine takes ``share`` of the operators, drawn by ``seed``."""

    share: float
    seed: int = 0
    name: str = "refuse_at_random"

    def __call__(self, validated: Validated) -> Validated:
        """The same program, with these verdicts changed."""
        operators = [n.name for n in validated.program.graph.nodes if is_operator(n)]
        drawn = random.Random(self.seed).sample(operators, round(self.share * len(operators)))
        refused = {name: evolve(validated.verdicts[name], choice=None, reasons=(AT_RANDOM,)) for name in drawn}
        return Validated(validated.program, FrozenDict({**validated.verdicts, **refused}))


AT_RANDOM = Rejection("drawn at random")
