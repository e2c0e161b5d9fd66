"""The registry's laws, on registries drawn at random from a small pool of declared functions."""

import copy
import functools
import operator
import random
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

import attrs
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pipeline.aten.support import CallingConvention, ConverterPriority, ConverterSupport, Declaration, Rejection
from pipeline.converters.registry import ConverterRegistry, dynamo_tensorrt_converter

aten = torch.ops.aten
HIGH, STANDARD = ConverterPriority.HIGH, ConverterPriority.STANDARD
TARGETS = (aten.add.Tensor, aten.relu.default, operator.getitem, torch.sym_min)


def converter(*targets: Any, name: str = "convert", module: str = __name__, **flags: Any) -> Callable[..., Any]:
    """A new function, declared for each target."""

    def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        return name

    convert.__name__ = convert.__qualname__ = name
    convert.__module__ = module
    for target in targets:
        dynamo_tensorrt_converter(target, **flags)(convert)
    return convert


POOL = [
    *(
        converter(target, name=f"{p.value}_{i}", priority=p)
        for target in TARGETS
        for p in (HIGH, STANDARD)
        for i in (1, 2)
    ),
    converter(*TARGETS[:2], name="two", priority=HIGH),
    converter(*TARGETS[2:], name="two", supports_dynamic_shapes=True),
]
functions = st.sampled_from(POOL)
registries = st.lists(functions, max_size=8).map(lambda chosen: ConverterRegistry().register(*chosen))


def implementations(registry: ConverterRegistry, target: Any) -> list[Callable[..., Any]]:
    return [support.converter_implementation for support in registry.get_all_converters_with_target(target)]


def targets_of(function: Callable[..., Any]) -> list[Any]:
    return list(ConverterRegistry().register(function))


class TestLaws:
    @given(registries, registries, registries)
    def test_or_is_associative(self, a: ConverterRegistry, b: ConverterRegistry, c: ConverterRegistry) -> None:
        assert (a | b) | c == a | (b | c)

    @given(registries)
    def test_or_has_an_identity_and_is_idempotent(self, a: ConverterRegistry) -> None:
        assert a | ConverterRegistry() == a == ConverterRegistry() | a
        assert a | a == a

    @given(registries, functions)
    def test_the_newest_high_is_asked_first(self, a: ConverterRegistry, function: Callable[..., Any]) -> None:
        registered = a.register(function)
        for declaration in ConverterRegistry().register(function).declarations():
            if declaration.priority is HIGH:
                assert registered.candidates[declaration.key][0] == declaration

    @given(registries)
    def test_high_is_asked_before_standard(self, a: ConverterRegistry) -> None:
        for candidates in a.candidates.values():
            priorities = [declaration.priority for declaration in candidates]
            assert priorities == sorted(priorities, key=[HIGH, STANDARD].index)

    @given(registries, functions)
    def test_registering_standard_keeps_the_others_first(self, a: ConverterRegistry, f: Callable[..., Any]) -> None:
        for declaration in ConverterRegistry().register(f).declarations():
            if declaration.priority is STANDARD:
                before = a.candidates.get(declaration.key, ())
                assert a.register(f).candidates[declaration.key][: len(before)] == before

    @given(registries, functions, functions)
    def test_register_takes_several_at_once(self, a: ConverterRegistry, f: Any, g: Any) -> None:
        assert (
            a.register(f, g)
            == a.register([f, g])
            == a.register(f).register(g)
            == a | ConverterRegistry().register(f, g)
        )

    @given(registries, functions)
    def test_override_leaves_one_converter(self, a: ConverterRegistry, f: Callable[..., Any]) -> None:
        overridden = a.override(f)
        for target in targets_of(f):
            assert implementations(overridden, target) == [f]
        assert overridden.without(*targets_of(f)) == a.without(*targets_of(f))

    @given(registries, st.sampled_from(TARGETS))
    def test_without_drops_a_target_and_no_other(self, a: ConverterRegistry, target: Any) -> None:
        left = a.without(target)
        assert target not in left
        assert left.without(target) == left
        assert {t: a.candidates[t] for t in a if t is not target} == dict(left.candidates)

    @given(registries, registries, functions)
    def test_nothing_changes_a_registry(
        self, a: ConverterRegistry, b: ConverterRegistry, f: Callable[..., Any]
    ) -> None:
        before, known = copy.deepcopy(a), hash(a)
        _ = a | b, a.register(f), a.override(f), a.without(*TARGETS)
        assert a == before
        assert hash(a) == known

    @given(registries)
    def test_declarations_make_the_same_registry(self, a: ConverterRegistry) -> None:
        again = ConverterRegistry(a.declarations())
        assert again == a
        assert hash(again) == hash(a)

    @given(registries)
    def test_it_is_a_mapping(self, a: ConverterRegistry) -> None:
        assert isinstance(a, Mapping)
        assert len(a) == len(list(a)) == len(a.unique_targets())
        assert set(a) == a.unique_targets()
        assert all(target in a for target in a)
        assert [entry[0] for entry in a.values()] == [implementations(a, target)[0] for target in a]

    @given(st.lists(functions, max_size=8), st.randoms())
    def test_no_order_of_modules_or_imports_counts(self, chosen: list[Any], rng: random.Random) -> None:
        modules = [ModuleType(name) for name in ("b", "a", "c")]
        for i, function in enumerate(chosen):
            setattr(modules[i % 3], f"f{i}", alike(function, modules[i % 3].__name__))
        shuffled = rng.sample(modules, 3)
        assert ConverterRegistry.of(*modules) == ConverterRegistry.of(*shuffled)
        assert list(ConverterRegistry.of(*modules)) == list(ConverterRegistry.of(*shuffled))


def alike(function: Callable[..., Any], module: str) -> Callable[..., Any]:
    """A function of another module that declares the same."""
    made = functools.wraps(function)(lambda *args: function(*args))
    made.__module__ = module
    return made


class TestOf:
    def test_order_of_definition_then_of_module_names(self) -> None:
        first, second = ModuleType("first"), ModuleType("second")
        first.x = x = converter(aten.relu.default, module="first")
        first.a = a = converter(aten.relu.default, module="first")
        second.b = b = converter(aten.relu.default, module="second")
        assert implementations(ConverterRegistry.of(second, first), aten.relu.default) == [x, a, b]

    def test_the_last_defined_is_the_newest_high(self) -> None:
        module = ModuleType("m")
        module.x = x = converter(aten.relu.default, module="m", priority=HIGH)
        module.a = a = converter(aten.relu.default, module="m", priority=HIGH)
        assert implementations(ConverterRegistry.of(module), aten.relu.default) == [a, x]

    def test_an_imported_function_belongs_to_its_own_module(self) -> None:
        home, user = ModuleType("home"), ModuleType("user")
        home.f = user.f = user.alias = f = converter(aten.relu.default, module="home", name="f")
        assert implementations(ConverterRegistry.of(user, home, home), aten.relu.default) == [f]
        assert len(ConverterRegistry.of(user)) == 0

    def test_functions_made_elsewhere_and_kept_in_tables_count(self) -> None:
        module = ModuleType("m")
        made = converter(aten.relu.default, module="factory", name="f")
        made.__qualname__ = "factory.<locals>.f"
        module.MADE = (made,)
        module.BY_NAME = {"add": converter(aten.add.Tensor, module="m")}
        module.LISTED = [converter(aten.mul.Tensor, module="m"), made, 3]
        assert set(ConverterRegistry.of(module)) == {aten.relu.default, aten.add.Tensor, aten.mul.Tensor}

    def test_a_function_is_no_module(self) -> None:
        with pytest.raises(TypeError, match=r"of\(\) takes modules"):
            ConverterRegistry.of(POOL[0])  # type: ignore[arg-type]


class TestDeclaring:
    def test_it_returns_the_function_and_declares_in_no_registry(self) -> None:
        def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...

        before = ConverterRegistry()
        assert dynamo_tensorrt_converter(aten.relu.default)(convert) is convert
        assert len(before) == 0
        assert ConverterRegistry().register(convert)[aten.relu.default] == (
            convert,
            CallingConvention.CTX,
            {"supports_dynamic_shapes": False, "requires_output_allocator": False},
        )

    def test_it_stacks(self) -> None:
        @dynamo_tensorrt_converter(aten.relu.default, supports_dynamic_shapes=True)
        @dynamo_tensorrt_converter(aten.nonzero.default, requires_output_allocator=True, priority=HIGH)
        def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...

        registry = ConverterRegistry().register(convert)
        assert registry[aten.relu.default][2] == {"supports_dynamic_shapes": True, "requires_output_allocator": False}
        assert registry[aten.nonzero.default][2] == {
            "supports_dynamic_shapes": False,
            "requires_output_allocator": True,
        }
        assert registry.candidates[aten.nonzero.default][0].priority is HIGH

    def test_enabled_false_declares_nothing(self) -> None:
        @dynamo_tensorrt_converter(aten.relu.default, enabled=False)
        def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...

        assert ConverterRegistry().register(convert) == ConverterRegistry()

    @pytest.mark.parametrize(
        ("packet", "overload"),
        [(aten.relu, aten.relu.default), (aten.gelu, aten.gelu.default), (aten.sym_numel, aten.sym_numel.default)],
    )
    def test_a_packet_that_leaves_no_choice_is_its_overload(self, packet: Any, overload: Any) -> None:
        assert targets_of(converter(packet)) == [overload]

    def test_a_packet_with_a_choice_is_refused_with_the_choices(self) -> None:
        with pytest.raises(TypeError, match=r"pass one of them, .*torch\.ops\.aten\.add\.Tensor"):
            dynamo_tensorrt_converter(aten.add)

    @pytest.mark.parametrize("key", ["aten::relu", "aten.relu.default"])
    def test_a_name_is_the_operator_it_means(self, key: str) -> None:
        registry = ConverterRegistry().register(converter(key))
        assert list(registry) == [aten.relu.default]
        assert key in registry
        assert aten.relu in registry
        assert registry[key] == registry[aten.relu.default] == registry[aten.relu]
        assert not registry.without(key)

    @pytest.mark.parametrize("key", ["relu", "aten.rellu", "aten.relu.tensor"])
    def test_a_name_that_no_operator_has_is_refused(self, key: str) -> None:
        with pytest.raises(ValueError, match="there is no operator"):
            dynamo_tensorrt_converter(key)

    @pytest.mark.parametrize(
        "key", [torch.nn.GELU, torch.nn.functional.gelu, torch.nn.Conv2d, torch.add], ids=lambda key: key.__name__
    )
    def test_functions_and_modules_are_refused_with_their_operators(self, key: Any) -> None:
        with pytest.raises(TypeError, match=r"only its operators: .*torch\.ops\.aten\.(gelu|conv2d|add)"):
            dynamo_tensorrt_converter(key)

    @pytest.mark.parametrize("key", [3, None, {}])
    def test_what_cannot_be_called_is_no_target(self, key: Any) -> None:
        with pytest.raises(TypeError, match=r"the target is .*: expected an operator"):
            dynamo_tensorrt_converter(key)

    @pytest.mark.parametrize(
        "flags", [{"priority": "high"}, {"capability_validator": 3}, {"supports_dynamic_shapes": 1}], ids=str
    )
    def test_a_wrong_flag_is_a_type_error(self, flags: dict[str, Any]) -> None:
        with pytest.raises(TypeError):
            converter(aten.relu.default, **flags)

    def test_what_takes_no_attributes_cannot_be_declared(self) -> None:
        with pytest.raises(TypeError, match="cannot be declared"):
            dynamo_tensorrt_converter(aten.relu.default)(len)

    @pytest.mark.parametrize("undeclared", [len, lambda ctx: None, 3], ids=["builtin", "lambda", "int"])
    def test_registering_an_undeclared_function_is_a_type_error(self, undeclared: Any) -> None:
        with pytest.raises(TypeError, match="is not a converter"):
            ConverterRegistry().register(undeclared)

    def test_a_wrapper_declares_itself(self) -> None:
        inner = converter(aten.relu.default)
        outer = functools.wraps(inner)(lambda *args: inner(*args))
        assert ConverterRegistry().register(outer)[aten.relu.default][0] is outer
        assert ConverterRegistry().register(inner)[aten.relu.default][0] is inner

    def test_records_are_frozen(self) -> None:
        support = ConverterSupport(len)
        records = [(support, "capability_validator"), (Declaration(len, support), "key"), (Rejection("no"), "hint")]
        for record, field in records:
            with pytest.raises(attrs.exceptions.FrozenInstanceError):
                setattr(record, field, None)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            ConverterRegistry().candidates = {}  # type: ignore[misc]

    def test_a_rejection_is_false_and_reads_well(self) -> None:
        assert not Rejection("k is 5000")
        assert str(Rejection("k is 5000")) == "k is 5000"
        assert str(Rejection("k is 5000", "take fewer")) == "k is 5000 (hint: take fewer)"
        with pytest.raises(TypeError):
            Rejection(3)  # type: ignore[arg-type]


class TestReading:
    REGISTRY = ConverterRegistry().register(
        converter(aten.relu.default, name="one", module="m"),
        converter(aten.relu.default, name="two", module="n"),
        converter(operator.getitem, name="three", module="m"),
    )

    def test_all_converters_with_target(self) -> None:
        supports = self.REGISTRY.get_all_converters_with_target(aten.relu.default)
        assert [support.name for support in supports] == ["m.one", "n.two"]
        with_info = self.REGISTRY.get_all_converters_with_target(aten.relu.default, return_registry_info=True)
        assert with_info == (supports, {"m": 1, "n": 1})
        assert self.REGISTRY.get_all_converters_with_target(aten.mul.Tensor) == ()

    def test_support_info_is_by_name_and_sorted(self) -> None:
        info = self.REGISTRY.get_converter_support_info()
        assert list(info.items()) == [("aten.relu.default", {"m": 1, "n": 1}), ("operator.getitem", {"m": 1})]

    def test_display(self) -> None:
        assert self.REGISTRY.display_all_available_converters() == (
            "2 targets have converters\n  aten.relu.default: 1 in m, 1 in n\n  operator.getitem: 1 in m"
        )

    def test_repr_has_no_address(self) -> None:
        assert repr(self.REGISTRY) == "<ConverterRegistry: 3 converters for 2 targets>"

    def test_legacy_functions_keep_their_convention(self) -> None:
        def old(net: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...

        registry = ConverterRegistry.from_legacy({aten.relu: old, operator.add: old})
        assert registry[aten.relu.default][:2] == (old, CallingConvention.LEGACY)
        assert set(registry) == {aten.relu.default, operator.add}
        assert implementations(self.REGISTRY | registry, aten.relu.default)[-1] is old
        with pytest.raises(TypeError):
            ConverterRegistry.from_legacy({aten.relu.default: "not a function"})  # type: ignore[dict-item]

    def test_a_packet_drops_all_its_overloads(self) -> None:
        registry = ConverterRegistry().register(converter(aten.add.Tensor, aten.add.Scalar, aten.mul.Tensor))
        assert set(registry.without(aten.add)) == {aten.mul.Tensor}

    def test_only_registries_are_joined(self) -> None:
        with pytest.raises(TypeError):
            _ = ConverterRegistry() | {}
        assert ConverterRegistry() != {}

    def test_an_absent_target_is_a_key_error(self) -> None:
        with pytest.raises(KeyError, match=r"no converter for aten\.mul\.Tensor"):
            self.REGISTRY[aten.mul.Tensor]
        assert self.REGISTRY.get(aten.mul.Tensor, 3) == 3
        assert aten.mul.Tensor not in self.REGISTRY
