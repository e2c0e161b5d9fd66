"""transpose_weights: replace matmuls by linear layers, so that several profiles can share one copy of the weights."""

from __future__ import annotations

from pipeline.improvements.rewriting import Node, Rewriting, argument, aten, improvement, rank_of

PRODUCTS = (aten.addmm.default, aten.mm.default, aten.matmul.default)


@improvement(after="merge_slices")
def transpose_weights(rewriting: Rewriting) -> None:
    """Replace a matmul with a constant ``[K, N]``, as in GPT-2, by a linear layer with weights ``[N, K]``.

    TensorRT-RTX 1.4 transposes a constant ``[K, N]`` in the profile for single tokens but not in the profile for
    prompts, and so an engine with both profiles stores it twice. It stores weights ``[N, K]`` once, for both profiles.
    """
    for node in rewriting.nodes(*PRODUCTS) if len(rewriting.program.profiles) > 1 else ():
        *bias, x, weight = node.args
        if not (isinstance(x, Node) and isinstance(weight, Node) and weight.op == "placeholder"):
            continue
        is_vector = bool(bias) and isinstance(bias[0], Node) and rank_of(bias[0]) == 1
        plain = not bias or (is_vector and argument(node, "alpha") == argument(node, "beta") == 1)
        if plain and rank_of(weight) == 2 and rewriting.owns_constant(node, weight):
            turned = rewriting.create(aten.transpose.int, (weight, 0, 1), {}, node)
            rewriting.offer(node, aten.linear.default, (x, turned, *bias))
