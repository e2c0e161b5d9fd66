"""The program that eager PyTorch runs in the place of engines."""

from __future__ import annotations

import operator

from pipeline.aten.graphs import copied
from pipeline.aten.op_predicates import draws_random
from pipeline.aten.types import Node
from pipeline.decomposition.quantized import normalized, runs_anywhere
from pipeline.program import Program, is_operator


def source_of(program: Program, uniform: Program | None = None) -> Program:
    """Return the program for eager PyTorch: the captured one, or the normalized one if the captured runs only on its
    GPU. What nothing uses is left out: reading a number of a tensor waits for the GPU, which no CUDA graph may do."""
    program = program if runs_anywhere(program) else uniform or normalized(program)
    if any(map(_is_unused, program.graph.nodes)):
        graph = copied(program.graph)
        for node in reversed(list(graph.nodes)):
            if _is_unused(node):
                graph.erase_node(node)
        program = program.with_graph(graph)
    return program.as_source()


def _is_unused(node: Node) -> bool:
    computes = node.target is operator.getitem or (node.op == "call_function" and is_operator(node))
    return computes and not node.users and not draws_random(node)
