"""Rewrite complex numbers as pairs of real numbers: the real and the imaginary part.

TensorRT has no complex dtype. A rule in ``RULES`` computes an operator on pairs, in torch, and ``decompose`` replaces
the node by the rule's trace, as it does for a decomposition. Rules are a part of ``decompose`` and not a separate
stage, since each needs the other: decomposing reveals the parts of a composite operator (``outer`` of complex tensors
is a multiplication), and the operators of a rule may be decomposed further.

Before: ``mul(view_as_complex(x), freqs)``. After: ``complex(re, im)``, where re and im are sums of products of real
nodes. Operators with a rule read re and im, so ``complex`` is unread and dropped, unless an operator without a rule or
the program's output reads it: PyTorch joins such values (``complex``) and splits them (``view_as_real``). The recipe of
a constant splits the constant.

A rule receives the operator's arguments with a ``Pair`` for each complex tensor or number, and returns a ``Pair`` for
each complex result. Parts of a result may need broadcasting, and may have another dtype than the result:
`rule_with_cast_results` handles both. A real factor multiplies both parts, while eager multiplies by a complex number
with imaginary part 0. The results differ if a part is infinite (in eager, 0 times inf is NaN).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves, tree_map

from pipeline.aten.types import Argument, Target, aten
from pipeline.capture.fake_tensors import fake_result
from pipeline.converters.unsupported import aten_operator
from pipeline.decomposition.complex_functions import (
    FUNCTIONS,
    Pair,
    Rule,
    angle,
    bilinear_rule,
    complex_to_complex,
    complex_to_real,
    magnitude,
    multiply,
    real_to_complex,
)
from pipeline.decomposition.templates import Call
from pipeline.shapes.environment import shape_of


def leaf_values(value: object) -> Iterator[object]:
    """Yield the values inside of sequences and mappings; for a node, its fake value."""
    for leaf in tree_leaves(value):
        yield from tree_leaves(leaf.meta.get("val")) if isinstance(leaf, torch.fx.Node) else [leaf]


def _is_pair(value: object) -> bool:
    """Return whether a value is a `Pair`, the real and imaginary part of a complex value."""
    return isinstance(value, Pair)


def _as_pair(value: object) -> Pair:
    """Return a value as a `Pair`; a real value gets imaginary part 0."""
    if isinstance(value, Pair):
        return value
    return Pair(value, torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0.0)


def _as_pairs(value: object) -> Argument:
    """Return a value, or each value of a list, as a `Pair`; return None for None."""
    if isinstance(value, (list, tuple)) and not isinstance(value, Pair):
        return [_as_pairs(v) for v in value]
    return value if value is None else _as_pair(value)


def rule_with_cast_results(rule: Rule, expected: object) -> Rule:
    """Return ``rule`` with results like ``expected``, the operator's fake result: both parts of each `Pair` get one
    shape and the dtype of ``expected``, and become a plain tuple, which torch.fx can record. If ``expected`` is real,
    only the real part is returned."""
    dtype = next((v.dtype for v in leaf_values(expected) if isinstance(v, torch.Tensor)), torch.float32)

    def settle(result: object) -> object:
        if not isinstance(result, Pair):
            return result
        real, imag = result
        if not dtype.is_complex:
            return real
        if shape_of(real) != shape_of(imag):
            real, imag = torch.broadcast_tensors(real, imag)
        return real.to(dtype.to_real()), imag.to(dtype.to_real())

    def settling(*args: object, **kwargs: object) -> object:
        result = rule(*args, **kwargs)
        return result if result is NotImplemented else tree_map(settle, result, is_leaf=_is_pair)

    return settling


def rule_for_each_part(operator: Rule, *complex_arguments: int) -> Rule:
    """Return a rule that applies an operator, which is linear or only moves elements, to real and imaginary parts
    separately.

    complex_arguments: the indices of arguments that may be real or complex (default: the first).
    """

    def part(index: int, args: Argument, kwargs: Argument) -> Argument:
        def one(leaf: object) -> Argument:
            if isinstance(leaf, Pair):
                return leaf[index]
            return leaf.to_real() if isinstance(leaf, torch.dtype) and leaf.is_complex else leaf

        args, kwargs = tree_map(one, (args, kwargs), is_leaf=_is_pair)
        return operator(*args, **kwargs)

    def rule(*args: object, **kwargs: object) -> Argument:
        args = tuple(_as_pairs(a) if i in (complex_arguments or (0,)) else a for i, a in enumerate(args))
        real, imag = part(0, args, kwargs), part(1, args, kwargs)
        if isinstance(real, (list, tuple)):
            return [Pair(r, i) for r, i in zip(real, imag, strict=True)]
        return Pair(real, imag)

    return rule


def add(a: Argument, b: Argument, *, alpha: object = 1) -> Pair:
    """Return a + alpha * b for complex or real a and b."""
    b = _as_pair(b if alpha == 1 else multiply(b, alpha) if _is_pair(b) or _is_pair(alpha) else b * alpha)
    a = _as_pair(a)
    return Pair(a.real + b.real, a.imag + b.imag)


def subtract(a: Argument, b: Argument, *, alpha: Any = 1) -> Pair:
    """Return a - alpha * b for complex or real a and b."""
    return add(a, b, alpha=Pair(-alpha.real, -alpha.imag) if _is_pair(alpha) else -alpha)


def divide(a: Argument, b: Argument) -> Argument:
    """Return a / b for complex or real a and b."""
    if not isinstance(b, Pair):
        return Pair(a.real / b, a.imag / b)
    if isinstance(b.real, torch.Tensor):
        return multiply(a, inverse(b))
    number = 1 / complex(*b)
    return multiply(a, Pair(number.real, number.imag))


def inverse(z: Pair) -> Pair:
    """Return 1 / z. z is divided by its larger part before squaring, so that no square overflows."""
    largest = torch.maximum(z.real.abs(), z.imag.abs())
    c, d = z.real / largest, z.imag / largest
    scale = (c * c + d * d) * largest
    return Pair(c / scale, -d / scale)


def from_polar(magnitude: Any, angle: Any) -> Pair:
    """Return the complex number with this absolute value and angle."""
    return Pair(magnitude * torch.cos(angle), magnitude * torch.sin(angle))


def conjugate(z: Pair) -> Pair:
    """Return the conjugate: negate the imaginary part."""
    return Pair(z.real, -z.imag)


def power(z: Argument, exponent: Argument) -> Argument:
    """Return z to an integer power from -8 to 8 except 0, by multiplication; NotImplemented for other powers."""
    if isinstance(exponent, Pair) or int(exponent) != exponent or not 0 < abs(exponent) <= 8:
        return NotImplemented
    result = z
    for bit in bin(abs(int(exponent)))[3:]:
        result = multiply(result, result)
        result = multiply(result, z) if bit == "1" else result
    return result if exponent > 0 else inverse(result)


def equal(a: object, b: object) -> torch.Tensor:
    """Return for each element whether two complex values are equal."""
    a, b = _as_pair(a), _as_pair(b)
    result: torch.Tensor = (a.real == b.real) & (a.imag == b.imag)
    return result


def divide_by_magnitude(z: Pair) -> Argument:
    """Return z divided by its absolute value; 0 stays 0."""
    size = magnitude(z)
    return divide(z, torch.where(size == 0, 1.0, size))


def to_copy(
    value: Argument, *, dtype: torch.dtype | None = None, device: torch.device | None = None, **options: object
) -> Argument:
    """Cast a real number to complex, a complex number to another dtype or device, or a complex number to real."""
    if device is not None:
        value = Pair(value.real.to(device), value.imag.to(device)) if _is_pair(value) else value.to(device)
    if dtype == torch.bool:
        return (value.real != 0) | (value.imag != 0)
    return _as_pair(value) if dtype is None or dtype.is_complex else value.real.to(dtype)


def rule_of_fill(operator: Rule) -> Rule:
    """Return a function that fills a tensor with a complex number, a `Pair`, by an operator such as ``full``."""

    def rule(shape: Any, value: Argument, **kwargs: Argument) -> Argument:
        return rule_for_each_part(operator, 1)(shape.real if _is_pair(shape) else shape, value, **kwargs)

    return rule


def rule_like_addmm(product: Rule) -> Rule:
    """Return the rule of an operator such as ``addmm``: ``beta * c + alpha * product(a, b)``. ``product``: a matmul's
    rule."""

    def rule(c: Argument, a: Argument, b: Argument, *, beta: Argument = 1, alpha: Argument = 1) -> Argument:
        return add(c if beta == 1 else multiply(c, beta), product(a, b), alpha=alpha)

    return rule


def convolution(x: Argument, weight: Argument, bias: Argument, *options: object) -> Argument:
    """Return a complex convolution, computed by real ones, since it is linear in input and weight."""
    result = bilinear_rule(lambda a, b: aten.convolution.default(a, b, None, *options))(x, weight)
    if bias is None:
        return result
    dims = result.real.dim() - 2
    return add(result, Pair(*(part.reshape(-1, *[1] * dims) for part in _as_pair(bias))))


def variance(z: Pair, *args: object, **kwargs: object) -> torch.Tensor:
    """Return the variance of complex numbers: the sum of the variances of the real and the imaginary parts."""
    real, imag = (aten.var.correction(part, *args, **kwargs) for part in z)
    return real + imag  # type: ignore[no-any-return]


def rule_of_predicate(operator: Rule) -> Rule:
    """Return the rule of a predicate, such as ``isnan``, that holds if it holds for either of the two parts."""
    return lambda z, *args, **kwargs: operator(z.real, *args, **kwargs) | operator(z.imag, *args, **kwargs)


_MOVING_OPERATORS = (
    "permute transpose.int t unsqueeze squeeze squeeze.dim squeeze.dims expand "
    "slice.Tensor select.int flip roll repeat index_select index.Tensor gather unfold diagonal tril triu clone alias "
    "reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d embedding "
    "detach split.Tensor split_with_sizes unbind.int lift_fresh_copy resolve_conj resolve_neg"
)
_RESHAPING_OPERATORS = "view reshape _unsafe_view"
"""Operators computed by ``reshape``, since a part's strides may differ from those of the complex tensor."""
_SUMMING_OPERATORS = "neg sum sum.dim_IntList mean mean.dim cumsum"


RULES: Final[Mapping[object, Rule]] = {
    aten.complex.default: Pair,
    aten.polar.default: from_polar,
    aten.view_as_complex.default: lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    aten.view_as_real.default: lambda z: torch.stack(z, -1),
    aten.real.default: lambda z: z.real,
    aten.imag.default: lambda z: z.imag,
    aten.sym_size.int: lambda z, dim: z.real.size(dim),
    aten.sym_numel.default: lambda z: z.real.numel(),
    aten.abs.default: magnitude,
    aten.angle.default: angle,
    aten.sgn.default: divide_by_magnitude,
    **dict.fromkeys((aten.conj.default, aten._conj.default, aten.conj_physical.default), conjugate),
    **dict.fromkeys((aten.add.Tensor, aten.add.Scalar), add),
    **dict.fromkeys((aten.sub.Tensor, aten.sub.Scalar), subtract),
    **dict.fromkeys((aten.rsub.Tensor, aten.rsub.Scalar), lambda a, b, alpha=1: subtract(b, a, alpha=alpha)),
    **dict.fromkeys((aten.mul.Tensor, aten.mul.Scalar), multiply),
    **dict.fromkeys((aten.div.Tensor, aten.div.Scalar), divide),
    aten.reciprocal.default: inverse,
    aten.pow.Tensor_Scalar: power,
    aten.exp.default: lambda z: from_polar(torch.exp(z.real), z.imag),
    **{aten_operator(name): function for name, function in FUNCTIONS.items()},
    **{op: bilinear_rule(op) for op in (aten.mm.default, aten.bmm.default, aten.matmul.default, aten.mv.default)},
    aten.dot.default: bilinear_rule(aten.dot.default),
    aten.addmm.default: rule_like_addmm(bilinear_rule(aten.mm.default)),
    aten.baddbmm.default: rule_like_addmm(bilinear_rule(aten.bmm.default)),
    aten.convolution.default: convolution,
    aten.var.correction: variance,
    **{op: rule_of_predicate(op) for op in (aten.isnan.default, aten.isinf.default, aten.any.default, aten.any.dim)},
    aten._fft_c2c.default: complex_to_complex,
    aten._fft_r2c.default: real_to_complex,
    aten._fft_c2r.default: complex_to_real,
    aten.vdot.default: lambda a, b: bilinear_rule(aten.dot.default)(conjugate(a), b),
    **dict.fromkeys((aten.eq.Tensor, aten.eq.Scalar), equal),
    **dict.fromkeys((aten.ne.Tensor, aten.ne.Scalar), lambda a, b: equal(a, b).logical_not()),
    aten.where.self: rule_for_each_part(aten.where.self, 1, 2),
    aten.scatter.src: rule_for_each_part(aten.scatter.src, 0, 3),
    **{op: rule_for_each_part(op, 0, 2) for op in (aten.index_put.default, aten.constant_pad_nd.default)},
    **{
        op: rule_for_each_part(op, 0, 1)
        for op in (aten.copy.default, aten.slice_scatter.default, aten.select_scatter.default)
    },
    aten.empty.memory_format: lambda size, *, device=None, **_: Pair(
        torch.zeros(size, device=device), torch.zeros(size, device=device)
    ),
    **{op: rule_for_each_part(op) for op in (aten.cat.default, aten.stack.default)},
    **{op: rule_of_fill(op) for op in (aten.full.default, aten.full_like.default)},
    aten._to_copy.default: to_copy,
    **{op: rule_for_each_part(op) for op in map(aten_operator, f"{_MOVING_OPERATORS} {_SUMMING_OPERATORS}".split())},
    **{op: rule_for_each_part(aten.reshape.default) for op in map(aten_operator, _RESHAPING_OPERATORS.split())},
}
"""For each ATen operator, the rule that computes it on pairs of real tensors."""


_BORDER = (aten.complex.default, aten.resolve_conj.default, aten.view_as_real.default)


def joins_or_splits_complex(target: object) -> bool:
    """Return whether an operator splits a complex tensor into real ones, or joins real ones (``aten.complex``)."""
    return target in _BORDER


def contains_complex(*values: object) -> bool:
    """Return whether any of these values, nodes, or sequences of them is a complex tensor or number."""
    found = leaf_values(values)
    return any(v.dtype.is_complex if isinstance(v, torch.Tensor) else isinstance(v, complex) for v in found)


class ComplexValues:
    """The complex nodes of a graph under construction, each with a `Pair` of nodes: its real and its imaginary part.
    ``emit`` appends an operator call to the graph, and returns its result."""

    def __init__(self, graph: torch.fx.Graph, mode: FakeTensorMode, emit: Callable[[Call], Argument]) -> None:
        self.graph, self.mode, self.emit = graph, mode, emit
        self.parts: dict[torch.fx.Node, Pair] = {}

    def split_arguments(self, arguments: object, meta: Mapping[str, object]) -> Argument:
        """Return arguments with a `Pair` for each complex node or number; new nodes get the metadata ``meta``."""

        def one(value: object) -> Argument:
            if isinstance(value, complex):
                return Pair(value.real, value.imag)
            return self.pair_of(value, meta) if isinstance(value, torch.fx.Node) and contains_complex(value) else value

        return tree_map(one, arguments)

    def pair_of(self, value: torch.fx.Node, meta: Mapping[str, object]) -> Pair:
        """Return the real and imaginary part of a complex node: the nodes that it joins, or new nodes that split it."""
        if value not in self.parts:
            resolved = self.insert_node(aten.resolve_conj.default, (value,), meta)
            shown = self.insert_node(aten.view_as_real.default, (resolved,), meta)

            def part(index: int, name: str) -> Argument:
                args = (shown, -1, index)
                val = fake_result(self.mode, aten.select.int, args, {})
                return self.emit(Call(aten.select.int, args, {}, {**meta, "val": val}, f"{value.name}_{name}"))

            self.parts[value] = Pair(part(0, "real"), part(1, "imag"))
        return self.parts[value]

    def join_results(self, results: object, meta: Mapping[str, object]) -> Argument:
        """Return the results of a function of pairs, with each pair joined into a node of complex numbers."""
        if isinstance(results, list):
            return [self.join_results(r, meta) for r in results]
        if not isinstance(results, tuple):
            return results
        made = self.graph.call_function(aten.complex.default, results)
        # the kernel of ``complex`` would fix dynamic sizes if a part is strided
        dtype = results[0].meta["val"].dtype.to_complex()
        made.meta = {**meta, "val": fake_result(self.mode, aten._to_copy.default, results[:1], {"dtype": dtype})}
        self.parts[made] = Pair(*results)
        return made

    def insert_node(self, target: Target, args: tuple[Argument, ...], meta: Mapping[str, object]) -> torch.fx.Node:
        """Add a node, with its fake tensor, for an operator that converts between complex and real values."""
        node = self.graph.call_function(target, tuple(args))
        node.meta = {**meta, "val": fake_result(self.mode, target, node.args, {})}
        return node
