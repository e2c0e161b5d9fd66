"""Compare the programs captured from the same model on two devices."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import zip_longest

import torch
from torch.fx.node import map_arg
from torch.utils._pytree import tree_map_only

from pipeline.program import Program
from pipeline.recipes import Recipe


def first_difference(program: Program, other: Program) -> str:
    """Return, as text, the first node in which two programs differ, other than in devices and names of nodes, and its
    index; empty if they do not differ."""
    for index, (ours, theirs) in enumerate(zip_longest(_node_rows(program), _node_rows(other))):
        if ours != theirs:
            return f"%{index}:\n  {ours}\n  {theirs}"
    return ""


def _node_rows(program: Program) -> Iterator[tuple[str, ...]]:
    """Yield texts for each node: its target or constant, its arguments by index, its value's dtype and shape."""
    indices: dict[torch.fx.Node, str] = {}
    for node in program.graph.nodes:
        recipe = program.constants.get(node.name)
        called = str(node.target) if recipe is None else _recipe_text(recipe)
        args, kwargs = map_arg((node.args, dict(node.kwargs)), indices.__getitem__)
        shown = tree_map_only(torch.device, lambda device: "a device", (args, kwargs))
        indices[node] = f"%{len(indices)}"
        values = tree_map_only(torch.Tensor, lambda x: f"{x.dtype}{[str(d) for d in x.shape]}", node.meta.get("val"))
        yield node.op, called, str(shown), str(values)


def _recipe_text(recipe: Recipe) -> str:
    """Return a recipe (how a constant is computed from parameters) as text, with its steps renamed ``%0``, ``%1``, …"""
    text = f"{recipe.dtype} {recipe}"
    for index, step in enumerate(recipe.steps):
        text = re.sub(rf"\b{re.escape(step.name)}\b", f"%{index}", text)
    return text
