"""decompose: ``Program`` → ``Program``. Decompose ATen to the registry's opset, and fold constants.

Before: any functional ATen graph. After: each operator is one that a converter takes, or one that nothing can take
apart. What depends on parameters alone is a placeholder with a recipe; dead nodes are gone. No tensor is computed here.

An operator is decomposed by tracing its decomposition on the node's fake tensors, once for each distinct signature; the
other nodes are copied, so the cost follows the number of different operators, not the size of the graph. Convolutions
differ at every layer, and are ``aten.convolution`` by another name: they are renamed.
"""

from __future__ import annotations

from attrs import evolve, field, frozen

from pipeline.converters.claims import Claims
from pipeline.converters.decompositions import DecompositionTable, Op
from pipeline.converters.registry import ConverterRegistry
from pipeline.decomposition.fold import fold
from pipeline.decomposition.quantized import normalized, runs_anywhere
from pipeline.decomposition.quantized_layout import laid_out
from pipeline.decomposition.rewriter import Rewriter
from pipeline.decomposition.ways import Ways
from pipeline.frontend.origin import origin_of
from pipeline.program import Program


@frozen
class Decompose:
    """The stage. A node's fate, in order: a HIGH converter of the user's that may take it; the way to such an operator,
    or to one that the user has a decomposition of, if it is a composite of one; a registered decomposition; a converter
    that takes it; torch's decomposition. That of a node with complex values: its rule on pairs of reals; torch's
    decomposition. ``disabled`` are operators that stay whole, for a converter or for PyTorch."""

    registry: ConverterRegistry = field(repr=False)
    decompositions: DecompositionTable = field(repr=False)
    disabled: frozenset[Op] = field(default=frozenset(), repr=False)
    name: str = "decompose"

    def __call__(self, program: Program) -> Program:
        """The program in the registry's opset, constants folded."""
        claims = Claims.of(self.registry, self.decompositions, program.settings)
        uniform = normalized(program)
        rewriter = Rewriter(uniform, claims, Ways(self.decompositions, self.disabled))
        source = program.source or source_of(program, uniform)
        made = laid_out(uniform.with_graph(rewriter.rewrite(), source=source, origin=origin_of(program)))
        return evolve(fold(made), decomposed=claims.decomposed & rewriter.applied)


def source_of(program: Program, uniform: Program | None = None) -> Program:
    """What eager PyTorch runs of a captured program: the program, or the uniform one where it runs on its GPU alone."""
    return (program if runs_anywhere(program) else uniform or normalized(program)).as_source()
