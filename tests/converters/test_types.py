"""`enforce_tensor_types`: what it lets through, what it promotes and to what, what it refuses."""

import operator
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import sympy
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter
from pipeline.converters.types import TRTLayer, TRTNetwork, TRTTensor, enforce_tensor_types
from pipeline.network.context import ConversionContext, SymbolicInt
from pipeline.settings import CompilationSettings
from pipeline.trt import Log, new_network, trt

aten = torch.ops.aten
ALL = (np.ndarray, torch.Tensor, TRTTensor)
CONSTANTS = [True, 3, 2.5, np.float32(2), np.arange(6, dtype=np.int32).reshape(2, 3), torch.ones(2, 3)]


@pytest.fixture
def ctx() -> Iterator[ConversionContext]:
    log = Log()
    builder = trt.Builder(log)
    yield ConversionContext(new_network(builder), CompilationSettings(), log)


def enforced(types: Any, *args: Any, ctx: Any = None, promote: bool = True, **kwargs: Any) -> tuple[Any, Any]:
    """What a converter is given for these arguments."""
    echo = enforce_tensor_types(types, promote)(lambda ctx, target, args, kwargs, name: (args, kwargs))
    return echo(ctx, aten.add.Tensor, args, kwargs, "encoder/add")


class TestPassing:
    @pytest.mark.parametrize("value", CONSTANTS, ids=lambda value: type(value).__name__)
    def test_an_allowed_type_is_untouched(self, value: Any) -> None:
        args, kwargs = enforced({0: (type(value), torch.Tensor), "weight": (type(value),)}, value, weight=value)
        assert args[0] is value
        assert kwargs["weight"] is value

    def test_absent_and_none_are_let_through(self) -> None:
        types = {0: (TRTTensor,), 1: (TRTTensor,), 2: (TRTTensor,), "weight": (TRTTensor,), "bias": (TRTTensor,)}
        assert enforced({**types, 0: (int,)}, 3, None, bias=None) == ((3, None), {"bias": None})

    def test_what_is_not_named_is_untouched(self) -> None:
        assert enforced({1: (int,)}, "x", 3, dim=[1], y=None) == (("x", 3), {"dim": [1], "y": None})

    def test_a_layers_output_is_a_tensor(self, ctx: ConversionContext) -> None:
        x = ctx.net.add_input("x", trt.float32, (2, 3))
        assert enforced({0: (TRTTensor,)}, x)[0][0] is x
        assert isinstance(ctx.net, TRTNetwork)
        assert isinstance(ctx.net.add_identity(x), TRTLayer)

    def test_the_callers_arguments_are_not_changed(self) -> None:
        kwargs = {"weight": 3}
        enforce_tensor_types({"weight": (torch.Tensor,)})(lambda *call: None)(None, aten.add.Tensor, (), kwargs, "n")
        assert kwargs == {"weight": 3}


class TestPromotion:
    @pytest.mark.parametrize(
        ("value", "allowed", "kind", "dtype"),
        [
            (3, ALL, np.ndarray, np.int64),
            (2.5, ALL, np.ndarray, np.float32),
            (True, ALL, np.ndarray, np.bool_),
            (3, (torch.Tensor, np.ndarray), torch.Tensor, torch.int64),
            (2.5, (torch.Tensor,), torch.Tensor, torch.float32),
            (np.float16(2), (torch.Tensor,), torch.Tensor, torch.float16),
            (np.arange(3, dtype=np.int32), (torch.Tensor, TRTTensor), torch.Tensor, torch.int32),
        ],
        ids=str,
    )
    def test_upwards_to_the_first_that_can_be_reached(self, value: Any, allowed: Any, kind: type, dtype: Any) -> None:
        (promoted,), kwargs = enforced({0: allowed, "weight": allowed}, value, weight=value)
        assert type(promoted) is type(kwargs["weight"]) is kind
        assert promoted.dtype == dtype
        assert np.array_equal(np.asarray(promoted), np.asarray(value, dtype=np.asarray(promoted).dtype))

    def test_a_tensor_is_an_array_where_only_that_is_allowed(self) -> None:
        x = torch.ones(3)
        array = enforced({0: (np.ndarray,)}, x)[0][0]
        assert isinstance(array, np.ndarray)
        assert array.ctypes.data == x.data_ptr()
        with pytest.raises(TypeError, match="no bfloat16"):
            enforced({0: (np.ndarray,)}, x.bfloat16())

    def test_a_type_below_is_passed_over(self, ctx: ConversionContext) -> None:
        args, _ = enforced({0: (int, np.ndarray, TRTTensor)}, torch.ones(2), ctx=ctx)
        assert isinstance(args[0], TRTTensor)

    @pytest.mark.parametrize("value", CONSTANTS, ids=lambda value: type(value).__name__)
    def test_to_a_constant_layer_named_after_the_argument(self, value: Any, ctx: ConversionContext) -> None:
        (promoted,), kwargs = enforced({0: (TRTTensor,), "other": (TRTTensor,)}, value, ctx=ctx, other=value)
        assert isinstance(promoted, TRTTensor)
        assert isinstance(kwargs["other"], TRTTensor)
        assert tuple(promoted.shape) == np.shape(value)
        assert ctx.net.get_layer(0).name.startswith("encoder/add/0")

    def test_a_symbolic_size_becomes_a_tensor_of_the_network(self, ctx: ConversionContext) -> None:
        x = ctx.net.add_input("x", trt.float32, (-1, 3))
        ctx.symbols["s0"] = (x, 0)
        size = SymbolicInt(sympy.Symbol("s0", integer=True, positive=True))
        assert isinstance(enforced({0: (torch.Tensor, TRTTensor)}, size, ctx=ctx)[0][0], TRTTensor)
        with pytest.raises(TypeError, match="must be Tensor, not SymbolicInt"):
            enforced({0: (torch.Tensor,)}, size, ctx=ctx)

    @given(st.integers(-(2**62), 2**62) | st.booleans() | st.floats(width=32, allow_nan=False))
    def test_numbers_keep_their_value(self, value: Any) -> None:
        assert enforced({0: (torch.Tensor,)}, value)[0][0].item() == value
        assert enforced({0: (np.ndarray,)}, value)[0][0].item() == value

    def test_promoted_arrays_are_not_aliased(self) -> None:
        array = np.zeros(3)
        promoted = enforced({0: (torch.Tensor,)}, array)[0][0]
        promoted += 1
        assert not array.any()


class TestRefusal:
    @pytest.mark.parametrize(
        ("value", "allowed", "message"),
        [
            ("x", (torch.Tensor, TRTTensor), "argument 0 must be Tensor or ITensor, not str"),
            ([1, 2], (TRTTensor,), r"argument 0 must be ITensor, not list"),
            (2.5, (int,), "argument 0 must be int, not float"),
        ],
        ids=str,
    )
    def test_it_names_target_argument_and_types(self, value: Any, allowed: Any, message: str) -> None:
        with pytest.raises(TypeError, match=rf"aten\.add\.Tensor: {message}"):
            enforced({0: allowed}, value)

    def test_without_promotion_nothing_is_promoted(self) -> None:
        with pytest.raises(TypeError, match=r"aten\.add\.Tensor: argument 'alpha' must be Tensor, not int"):
            enforced({"alpha": (torch.Tensor,)}, promote=False, alpha=3)

    @pytest.mark.parametrize(
        "types", [{-1: (int,)}, {True: (int,)}, {None: (int,)}, {0: int}, {0: ()}, {0: ("int",)}], ids=str
    )
    def test_a_wrong_declaration_is_refused_at_once(self, types: Any) -> None:
        with pytest.raises(TypeError, match="enforce_tensor_types"):
            enforce_tensor_types(types)


def test_it_stands_above_the_declaration_or_below() -> None:
    @enforce_tensor_types({0: (torch.Tensor,)})
    @dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
    def above(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return args[0]

    @dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
    @enforce_tensor_types({0: (torch.Tensor,)})
    @dynamo_tensorrt_converter(operator.neg)
    def between(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return args[0]

    for converter, targets in [(above, {aten.relu.default}), (between, {aten.relu.default, operator.neg})]:
        registry = ConverterRegistry().register(converter)
        assert set(registry) == targets
        for target in targets:
            implementation, _, flags = registry[target]
            assert implementation(None, target, (3,), {}, "n") == torch.tensor(3)
            assert flags["supports_dynamic_shapes"] is (target is aten.relu.default)
    assert above.__name__ == "above"
