"""Decompositions: how they are declared and joined, and torch's that we use."""

import copy
from types import ModuleType
from typing import Any

import pytest
import torch
import torch._decomp
from hypothesis import given
from hypothesis import strategies as st
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx

from pipeline.converters.decompositions import (
    DISABLED,
    NOT_CORE,
    DecompositionTable,
    get_decompositions,
    register_torch_trt_decomposition,
    torch_disabled_decompositions,
    torch_enabled_decompositions,
)
from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter
from pipeline.recipes import find_target

aten = torch.ops.aten
OPS = (aten.addcmul.default, aten.addcdiv.default, aten.relu.default)


def decomposition(*ops: Any, module: str = __name__) -> Any:
    """A new function, declared for each operator."""

    def decompose(*args: Any) -> Any:
        return args

    decompose.__module__, decompose.__qualname__ = module, "decompose"
    for op in ops:
        register_torch_trt_decomposition(op)(decompose)
    return decompose


POOL = [*map(decomposition, OPS * 2), decomposition(*OPS)]
functions = st.sampled_from(POOL)
tables = st.lists(functions, max_size=4).map(lambda chosen: DecompositionTable().register(*chosen))


class TestTable:
    @given(tables, tables, tables)
    def test_or_is_associative_with_an_identity(self, a: Any, b: Any, c: Any) -> None:
        assert (a | b) | c == a | (b | c)
        assert a | DecompositionTable() == a == DecompositionTable() | a

    @given(tables, tables)
    def test_the_right_one_wins(self, a: Any, b: Any) -> None:
        assert all((a | b)[op] is b[op] for op in b)
        assert (a | b).keys() == a.keys() | b.keys()

    @given(tables, functions)
    def test_the_newest_wins(self, a: Any, function: Any) -> None:
        registered = a.register(function)
        for op in DecompositionTable().register(function):
            assert registered[op] is function

    @given(tables, st.sampled_from(OPS))
    def test_without(self, a: Any, op: Any) -> None:
        assert a.without(op) == {key: function for key, function in a.items() if key is not op}

    @given(tables, tables, functions)
    def test_nothing_changes_a_table(self, a: Any, b: Any, function: Any) -> None:
        before, known = copy.deepcopy(a), hash(a)
        _ = a | b, a.register(function), a.without(*OPS)
        assert a == before
        assert hash(a) == known
        with pytest.raises(AttributeError):
            a.anything = 1

    def test_repr_has_no_address(self) -> None:
        assert repr(DecompositionTable().register(POOL[-1])) == "<DecompositionTable: 3 operators>"

    def test_only_tables_are_joined(self) -> None:
        with pytest.raises(TypeError):
            _ = DecompositionTable() | {}


class TestOf:
    def test_modules_in_any_order(self) -> None:
        one, two = ModuleType("one"), ModuleType("two")
        one.f = two.imported = decomposition(OPS[0], module="one")
        two.TABLE = {"g": decomposition(OPS[1], OPS[2], module="two")}
        table = DecompositionTable.of(one, two)
        assert table == DecompositionTable.of(two, one, two)
        assert set(table) == set(OPS)
        assert table[OPS[0]] is one.f

    def test_two_for_one_operator_is_an_error_that_names_both(self) -> None:
        one, two = ModuleType("one"), ModuleType("two")
        one.f, two.f = decomposition(OPS[0], module="one"), decomposition(OPS[0], module="two")
        with pytest.raises(ValueError, match=r"two decompositions of aten\.addcmul\.default: one\.decompose and two\."):
            DecompositionTable.of(two, one)

    def test_converters_are_not_decompositions(self) -> None:
        module = ModuleType("m")
        module.f = f = decomposition(OPS[0], module="m")
        dynamo_tensorrt_converter(OPS[1])(f)
        assert set(DecompositionTable.of(module)) == {OPS[0]}
        assert set(ConverterRegistry.of(module)) == {OPS[1]}


class TestDeclaring:
    def test_it_returns_the_function(self) -> None:
        def decompose(x: torch.Tensor) -> torch.Tensor:
            return x

        assert register_torch_trt_decomposition(aten.relu.default)(decompose) is decompose
        assert DecompositionTable().register(decompose) == {aten.relu.default: decompose}

    def test_packets(self) -> None:
        assert set(DecompositionTable().register(decomposition(aten.addcmul))) == {aten.addcmul.default}
        assert set(DecompositionTable().register(decomposition(aten.add))) == {aten.add.Tensor, aten.add.Scalar}
        assert set(DecompositionTable().register(decomposition("aten.relu.default"))) == {aten.relu.default}

    def test_a_dict_of_the_callers_gets_the_function_too(self) -> None:
        mine: dict[Any, Any] = {}
        function = register_torch_trt_decomposition(aten.relu.default, registry=mine)(lambda x: x)
        assert mine == {aten.relu.default: function}
        with pytest.raises(ValueError, match="already"):
            register_torch_trt_decomposition(aten.relu.default, registry=mine)(lambda x: x)
        with pytest.raises(TypeError, match="A table is immutable"):
            register_torch_trt_decomposition(aten.relu.default, registry=DecompositionTable())

    @pytest.mark.parametrize("key", [torch.relu, None], ids=["function", "None"])
    def test_what_is_no_operator_is_a_type_error(self, key: Any) -> None:
        with pytest.raises(TypeError):
            register_torch_trt_decomposition(key)

    def test_an_undeclared_function_is_a_type_error(self) -> None:
        with pytest.raises(TypeError, match="is no decomposition"):
            DecompositionTable().register(len)

    def test_the_declaration_is_frozen(self) -> None:
        """It is a tuple of the operators."""
        assert vars(decomposition(OPS[0]))["__decomposition_declarations__"] == (OPS[0],)


class TestTorchs:
    def test_the_sets_are_frozen_and_disjoint(self) -> None:
        assert isinstance(torch_enabled_decompositions, frozenset)
        assert isinstance(torch_disabled_decompositions, frozenset)
        assert not torch_enabled_decompositions & torch_disabled_decompositions
        assert all(isinstance(op, OpOverload) for op in torch_enabled_decompositions | torch_disabled_decompositions)

    def test_every_name_in_the_tables_is_an_operator_of_torchs(self) -> None:
        named = {find_target(name) for name in " ".join(DISABLED.values()).split()}
        assert torch_disabled_decompositions == named & set(torch._decomp.decomposition_table)
        assert set(NOT_CORE.split()) <= {str(op) for op in torch_enabled_decompositions}

    def test_nothing_enabled_mutates(self) -> None:
        assert not any(op._schema.is_mutable for op in torch_enabled_decompositions)

    def test_our_own_win(self) -> None:
        own = DecompositionTable().register(decomposition(aten.addcmul.default, aten._softmax.default))
        found = get_decompositions(own)
        assert found[aten.addcmul.default] is own[aten.addcmul.default]
        assert found[aten._softmax.default] is own[aten._softmax.default]
        assert found[aten.addcdiv.default] is torch._decomp.decomposition_table[aten.addcdiv.default]
        assert set(found) == torch_enabled_decompositions | set(own)
        assert list(found) == list(get_decompositions(own))


IMAGE, MATRIX = torch.ones(1, 2, 6, 6), torch.ones(3, 4)
SAMPLES = {
    aten._addmm_activation.default: (torch.ones(4), MATRIX, torch.ones(4, 4)),
    aten.addmv.default: (torch.ones(3), MATRIX, torch.ones(4)),
    aten.dist.default: (MATRIX, MATRIX),
    aten.elu.default: (MATRIX,),
    aten.hardtanh.default: (MATRIX,),
    aten.index_select.default: (MATRIX, 0, torch.tensor([0, 1])),
    aten.leaky_relu.default: (MATRIX,),
    aten.lift.default: (MATRIX,),
    aten.lift_fresh.default: (MATRIX,),
    aten.linalg_vector_norm.default: (MATRIX,),
    aten.logical_xor.default: (MATRIX, MATRIX),
    aten.narrow_copy.default: (MATRIX, 0, 0, 2),
    aten.permute_copy.default: (MATRIX, [1, 0]),
    aten.tril_indices.default: (3, 3),
    aten.triu_indices.default: (3, 3),
    aten.unbind_copy.int: (MATRIX,),
    aten.view_copy.default: (MATRIX, [4, 3]),
}


@pytest.mark.parametrize("op", [pytest.param(op, id=str(op)) for op in SAMPLES])
def test_what_we_enable_beyond_core_ends_in_aten(op: Any) -> None:
    function = get_decompositions(DecompositionTable())[op]
    traced = make_fx(lambda *args: function(*args), tracing_mode="fake")(*SAMPLES[op])
    targets = {str(node.target) for node in traced.graph.nodes if node.op == "call_function"}
    assert str(op) not in targets
    assert not any(target.startswith("prims.") for target in targets)


def test_every_one_beyond_core_has_a_sample() -> None:
    assert {str(op) for op in SAMPLES} == set(NOT_CORE.split())
