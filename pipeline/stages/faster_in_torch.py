"""Find the operators of a program that may be faster in PyTorch, for `choose` to measure: matmuls and attention."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import torch

from pipeline.aten.arguments import argument
from pipeline.aten.op_predicates import moves_elements
from pipeline.aten.traits import Kind, op_kind
from pipeline.aten.types import Node, aten
from pipeline.program import Program
from pipeline.runtime.few_rows import is_triton_installed, supports_attention
from pipeline.runtime.torch_segment import where_of_open_mask
from pipeline.shapes.environment import evaluate_size, expression
from pipeline.trt import has_gpu
from pipeline.verification.samples import tuned_sizes

LEAST: Final = 1 << 20
"""The minimum bytes of a weight whose matmul may run in PyTorch: a GPU reads 1 MiB in the time of a kernel launch."""
SDPA: Final = aten.scaled_dot_product_attention.default
HALVES: Final = (torch.float16, torch.bfloat16)
QUERIES: Final = 64
"""The minimum number of queries for which attention is tried in PyTorch, whose kernels write no scores to memory."""


def to_try_in_torch(program: Program, profile: int | None) -> tuple[str, ...]:
    """Return the operators that may be faster in PyTorch in calls of a profile: half-precision matmuls by large
    weights, and attention of many queries, or of a single query in a CUDA graph."""
    matmuls = tuple(_matmul_names(program))
    return (*matmuls, *_attention_names(program, profile)) if matmuls else ()


def kinds_in_words(program: Program, names: Sequence[str]) -> str:
    """Return words for the operators ``names``: ``matmuls by weights``, or ``matmuls by weights and attention``."""
    inside = {*names}
    attends = any(node.name in inside and node.target is SDPA for node in program.graph.nodes)
    return "matmuls by weights and attention" if attends else "matmuls by weights"


def _matmul_names(program: Program) -> Iterator[str]:
    """Yield the names of half-precision matmuls by large weights, or by views of large weights."""
    for node in program.graph.nodes:
        if node.op == "call_function" and op_kind(node.target) in (Kind.MULTIPLIES, Kind.PROJECTS):
            sources = (_source_before_moves(operand) for operand in node.all_input_nodes)
            weights = (source.meta["val"] for source in sources if source.name in program.constants)
            if any(weight.dtype in HALVES and weight.nbytes >= LEAST for weight in weights):
                yield node.name


def _attention_names(program: Program, profile: int | None) -> Iterator[str]:
    """Yield the names of attention operators that may be faster in PyTorch, and of their masks.

    Attention may be faster with 64 queries or more at the optimal sizes of a profile, or with one in a CUDA graph. For
    one query, Triton must be installed, or this machine have no GPU: then stored times of another machine decide.
    """
    nodes = [node for node in program.graph.nodes if node.target is SDPA]
    sizes = tuned_sizes(program, profile)[0] if nodes else {}
    settings = program.settings
    in_graph = settings.cuda_graphs and settings.torch_compile is None and (is_triton_installed() or not has_gpu())
    for node in nodes:
        query, key, value = (argument(node, name).meta["val"] for name in ("query", "key", "value"))
        queries = evaluate_size(expression(query.shape[-2]), sizes)
        one = in_graph and queries == 1 and supports_attention(query[..., :1, :], key, value)
        if query.dtype in HALVES and (one or queries >= QUERIES):
            yield node.name
            mask = argument(node, "attn_mask")
            if isinstance(mask, Node) and (choice := where_of_open_mask(mask)) is not None:
                yield from (choice.name, mask.name)


def _source_before_moves(node: Node) -> Node:
    """Return the node that computes the elements which ``node`` only moves or casts (views, copies, casts)."""
    while moves_elements(node) and isinstance(node.args[0], Node):
        node = node.args[0]
    return node
