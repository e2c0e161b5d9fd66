"""decompose: ``Program`` → ``Program``. Decompose ATen operators to operators with a converter, and fold constants.

Before: any functional ATen graph. After: a converter accepts each operator, or the operator cannot be decomposed. Nodes
that depend only on parameters have become placeholders with a recipe, and dead nodes are removed. No tensor is computed
here.

An operator is decomposed by tracing its decomposition on the node's fake tensors, once for each distinct signature.
Other nodes are copied, so the cost depends on the number of different operators, not on the size of the graph.
Convolutions differ in every layer, so they are not traced but renamed to ``aten.convolution``.
"""

from __future__ import annotations

from attrs import evolve, field, frozen

from pipeline.capture.origin import origin_of
from pipeline.converters.decompositions import DecompositionTable, Op
from pipeline.converters.registry import ConverterRegistry
from pipeline.converters.user_registrations import UserRegistrations
from pipeline.decomposition.candidates import Decompositions
from pipeline.decomposition.fold import fold_constants
from pipeline.decomposition.quantized import eager_source, normalize_quantization
from pipeline.decomposition.quantized_layout import lay_out_quantized
from pipeline.decomposition.rewriter import Rewriter
from pipeline.program import Program


@frozen
class Decompose:
    """The decompose stage. It treats each operator by the first of these rules that applies:

    1. If the user has a converter of priority HIGH for the operator, the operator stays.
    2. If the operator's decomposition contains an operator for which the user has such a converter or a decomposition,
       it is decomposed until that operator appears.
    3. A registered decomposition is applied.
    4. If a converter accepts the operator, the operator stays.
    5. torch's decomposition is applied.

    Operators on complex tensors are rewritten to operators on pairs of reals, or else decomposed by torch.
    ``disabled``: operators that are not decomposed, so that a converter or PyTorch runs them.
    """

    registry: ConverterRegistry = field(repr=False)
    decompositions: DecompositionTable = field(repr=False)
    disabled: frozenset[Op] = field(default=frozenset(), repr=False)
    name: str = "decompose"

    def __call__(self, program: Program) -> Program:
        """Return the decomposed program; nodes that depend only on parameters become placeholders with recipes."""
        claims = UserRegistrations.of(self.registry, self.decompositions, program.settings)
        uniform = normalize_quantization(program)
        rewriter = Rewriter(uniform, claims, Decompositions(self.decompositions, self.disabled))
        source = program.source or eager_source(program, uniform)
        made = lay_out_quantized(uniform.with_graph(rewriter.rewrite(), source=source, origin=origin_of(program)))
        return evolve(fold_constants(made), decomposed=claims.decomposed_operators & rewriter.applied)
