"""Lookup by node: the rules in order, and a reason for every refusal."""

import operator
from collections.abc import Callable
from typing import Any

import attrs
import pytest
import torch

from pipeline.aten.support import CallingConvention, Choice, ConverterPriority, ConverterSupport, Rejection
from pipeline.converters.registry import BoundRegistry, ConverterRegistry, Refusal, dynamo_tensorrt_converter
from pipeline.settings import CompilationSettings

aten = torch.ops.aten
HIGH = ConverterPriority.HIGH


class Model(torch.nn.Module):
    """Each kind of argument through which a symbolic dim can reach a node; `static` has none of them."""

    def forward(self, x: torch.Tensor, static: torch.Tensor) -> tuple[Any, ...]:
        listed = torch.cat([static, x])
        batch = torch.ones(x.shape[0], 3)
        halves = x.split(2, dim=1)
        return listed, batch, halves[0].relu(), static.relu()


@pytest.fixture(scope="module")
def graph() -> torch.fx.Graph:
    dynamic = ({0: torch.export.Dim("batch", min=2, max=8)}, None)
    exported = torch.export.export(Model(), (torch.ones(3, 4), torch.ones(5, 4)), dynamic_shapes=dynamic)
    return exported.graph


@pytest.fixture
def static(graph: torch.fx.Graph) -> torch.fx.Node:
    """The `relu` without symbolic dims."""
    return calls(graph, aten.relu.default)[1]


@pytest.fixture
def dynamic(graph: torch.fx.Graph) -> torch.fx.Node:
    """The `relu` with them."""
    return calls(graph, aten.relu.default)[0]


def calls(graph: torch.fx.Graph, target: Any) -> list[torch.fx.Node]:
    return [node for node in graph.nodes if node.target is target]


def registry(*targets: Any, **flags: Any) -> ConverterRegistry:
    def convert(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> None: ...

    for target in targets:
        dynamo_tensorrt_converter(target, **flags)(convert)
    return ConverterRegistry().register(convert)


def refusing(verdict: Any, target: Any = aten.relu.default, **flags: Any) -> ConverterRegistry:
    """A registry with a converter whose validator gives this verdict."""

    def limit(node: torch.fx.Node, settings: CompilationSettings) -> Any:
        """At most
        four."""
        return verdict(node) if isinstance(verdict, Callable) else verdict

    return registry(target, capability_validator=limit, **flags)


def reasons(registry: ConverterRegistry, node: torch.fx.Node, **settings: Any) -> list[str]:
    found = registry.bind(CompilationSettings(**settings)).explain(node)
    assert isinstance(found, tuple), found
    return [rejection.reason for rejection in found]


class TestOrder:
    def test_the_first_to_pass_wins(self, static: torch.fx.Node) -> None:
        standard, newer = registry(aten.relu.default), registry(aten.relu.default)
        high, refused = registry(aten.relu.default, priority=HIGH), refusing(False, priority=HIGH)
        for joined, winner in [
            (standard | newer, standard),
            (standard | high, high),
            (high | standard, high),
            (standard | refused, standard),
            (high | registry(aten.relu.default, priority=HIGH) | refused | high, high),
        ]:
            assert joined[static] == winner[aten.relu.default]

    def test_choose_says_what_was_chosen(self, static: torch.fx.Node) -> None:
        lookup = registry(aten.relu.default, priority=HIGH)
        choice = lookup.choose(static)
        assert choice == Choice(lookup.candidates[static.target][0].support, CallingConvention.CTX, HIGH)
        assert choice == lookup.explain(static)
        with pytest.raises(attrs.exceptions.FrozenInstanceError):
            choice.priority = None  # type: ignore[misc, union-attr, assignment]

    def test_legacy_converters_are_called_their_way(self, static: torch.fx.Node) -> None:
        entry = ConverterRegistry.from_legacy({aten.relu.default: print})[static]
        assert entry == (
            print,
            CallingConvention.LEGACY,
            {"supports_dynamic_shapes": False, "requires_output_allocator": False},
        )

    def test_every_candidate_gives_its_reason_once(self, static: torch.fx.Node) -> None:
        joined = refusing(Rejection("one")) | refusing(Rejection("two")) | refusing(Rejection("one"), priority=HIGH)
        assert reasons(joined, static) == ["one", "two"]


class TestNodes:
    def test_a_refused_node_is_a_key_error_with_the_reason(self, static: torch.fx.Node) -> None:
        refused = refusing(Rejection("k is 5000", "take fewer"))
        with pytest.raises(KeyError, match=rf"{static.name}: k is 5000 \(hint: take fewer\)"):
            refused[static]
        assert refused.get(static) is None
        assert refused.get(static, 3) == 3
        assert static not in refused
        assert static.target in refused

    def test_a_taken_node_is_in(self, static: torch.fx.Node) -> None:
        assert static in registry(aten.relu.default)
        assert registry(aten.relu.default).get(static) is not None

    def test_no_converter(self, static: torch.fx.Node) -> None:
        assert reasons(ConverterRegistry(), static) == ["no converter for aten.relu.default"]
        refusal = ConverterRegistry().choose(static)
        assert refusal == Refusal((Rejection("no converter for aten.relu.default"),))
        assert not refusal
        assert str(refusal) == "no converter for aten.relu.default"

    def test_what_is_no_call_is_refused(self, graph: torch.fx.Graph) -> None:
        for node in graph.nodes:
            if node.op != "call_function":
                assert reasons(registry(*{aten.relu.default}), node) == [
                    f"{node.name} is a {node.op} node: only call_function nodes are converted"
                ]

    def test_a_bound_registry_has_the_same_lookups(self, static: torch.fx.Node) -> None:
        unbound = registry(aten.relu.default, operator.getitem)
        bound = unbound.bind(CompilationSettings())
        assert isinstance(bound, BoundRegistry)
        assert bound[static] == unbound[static]
        assert dict(bound) == dict(unbound)
        assert bound.unique_targets() == unbound.unique_targets()
        assert bound.display_all_available_converters() == unbound.display_all_available_converters()
        assert repr(bound) == f"{unbound!r}.bind(CompilationSettings())"
        with pytest.raises(TypeError):
            unbound.bind({})  # type: ignore[arg-type]


class TestTorchExecuted:
    @pytest.mark.parametrize(
        "name",
        [aten.relu.default, aten.relu, "aten.relu.default", "aten::relu", "torch.ops.aten.relu.default"],
        ids=str,
    )
    def test_every_name_of_an_operator_refuses_it(self, name: Any, static: torch.fx.Node) -> None:
        assert reasons(registry(aten.relu.default), static, torch_executed_ops={name}) == [
            "torch_executed_ops keeps aten.relu.default in PyTorch"
        ]

    @pytest.mark.parametrize("name", [operator.getitem, "operator.getitem", "_operator.getitem"], ids=str)
    def test_functions_too(self, name: Any, graph: torch.fx.Graph) -> None:
        lookup = registry(operator.getitem, supports_dynamic_shapes=True)
        node = calls(graph, operator.getitem)[0]
        assert reasons(lookup, node, torch_executed_ops={name}) == [
            "torch_executed_ops keeps operator.getitem in PyTorch"
        ]
        assert node in lookup

    def test_other_operators_are_not_refused(self, static: torch.fx.Node) -> None:
        settings = CompilationSettings(torch_executed_ops={aten.gelu, "aten.add.Tensor"})
        assert static in registry(aten.relu.default).bind(settings)

    def test_by_module(self, static: torch.fx.Node) -> None:
        lookup = registry(aten.relu.default)
        assert reasons(lookup, static, torch_executed_ops={lambda path: path == ""})
        assert static in lookup.bind(CompilationSettings(torch_executed_ops={lambda path: path == "encoder"}))


class TestValidators:
    def test_a_rejection_is_passed_on(self, static: torch.fx.Node) -> None:
        rejection = Rejection("k is 5000", "take fewer")
        assert refusing(rejection).explain(static) == (rejection,)

    @pytest.mark.parametrize("verdict", [None, "k is 5000"])
    def test_what_is_neither_yes_nor_no_is_an_error(self, verdict: Any, static: torch.fx.Node) -> None:
        with pytest.raises(TypeError, match=r"limit of .* returned .*Rejection\(reason, hint\)"):
            refusing(verdict).explain(static)

    def test_it_may_ask_for_the_node_alone(self, static: torch.fx.Node) -> None:
        assert static in registry(aten.relu.default, capability_validator=lambda node: True)
        assert static not in registry(aten.relu.default, capability_validator=lambda node: False)

    @pytest.mark.parametrize("verdict", [False, 0])
    def test_a_plain_no_is_told_with_the_docstring(self, verdict: Any, static: torch.fx.Node) -> None:
        (rejection,) = refusing(verdict).explain(static)
        assert rejection.reason == f"the validator {__name__}.limit rejects this call"
        assert rejection.hint == "At most four."

    def test_an_exception_is_a_reason(self, static: torch.fx.Node) -> None:
        def fails(node: torch.fx.Node) -> bool:
            raise IndexError("no such argument")

        assert reasons(refusing(fails), static) == [
            f"the converter's validator {__name__}.limit failed: IndexError: no such argument"
        ]

    def test_settings_reach_the_validator(self, static: torch.fx.Node) -> None:
        lookup = registry(aten.relu.default, capability_validator=lambda node, settings: settings.truncate_double)
        assert static not in lookup
        assert static in lookup.bind(CompilationSettings(truncate_double=True))


class TestDynamicShapes:
    def test_symbolic_dims_need_a_converter_that_knows_them(self, dynamic: torch.fx.Node) -> None:
        assert dynamic not in registry(aten.relu.default)
        assert dynamic in registry(aten.relu.default, supports_dynamic_shapes=True)
        assert dynamic in registry(aten.relu.default).bind(CompilationSettings(assume_dynamic_shape_support=True))

    def test_the_reason_names_the_places(self, dynamic: torch.fx.Node) -> None:
        symbol = dynamic.meta["val"].shape[0]
        assert reasons(registry(aten.relu.default), dynamic) == [
            f"the converter {__name__}.registry.convert supports static shapes only, "
            f"but dim 0 of {dynamic.args[0].name} is {symbol}, dim 0 of its result is {symbol}"
        ]

    @pytest.mark.parametrize(
        "target", [aten.cat.default, aten.ones.default, aten.split.Tensor, operator.getitem], ids=str
    )
    def test_nested_arguments_and_results_count(self, target: Any, graph: torch.fx.Graph) -> None:
        node = calls(graph, target)[0]
        assert node not in registry(target)
        assert node in registry(target, supports_dynamic_shapes=True)

    def test_symbolic_ints_and_keywords_count(self, graph: torch.fx.Graph, static: torch.fx.Node) -> None:
        size = calls(graph, aten.sym_size.int)[0]
        made = torch.fx.Graph()
        batch = made.placeholder("batch")
        batch.meta["val"] = size.meta["val"]
        for args, kwargs in [(([1, (batch,)],), {}), ((), {"end": {"nested": batch}}), ((slice(None, batch),), {})]:
            node = made.call_function(aten.relu.default, args, kwargs)
            assert reasons(registry(aten.relu.default), node) == [
                f"the converter {__name__}.registry.convert supports static shapes only, but "
                f"batch is {size.meta['val']}"
            ]

    def test_it_puts_no_guard_on_the_shapes(self, graph: torch.fx.Graph) -> None:
        size = calls(graph, aten.sym_size.int)[0].meta["val"]
        environment = size.node.shape_env
        before = len(environment.guards), dict(environment.replacements), dict(environment.var_to_range)
        lookup = refusing(lambda node: node.meta["val"].shape[0] > 3 or Rejection("small"))
        symbolic = refusing(lambda node: size > 3, supports_dynamic_shapes=True)
        for node in graph.nodes:
            lookup.choose(node)
            symbolic.choose(node)
        assert (len(environment.guards), dict(environment.replacements), dict(environment.var_to_range)) == before

    def test_a_verdict_that_depends_on_a_symbol_is_a_reason(
        self, graph: torch.fx.Graph, dynamic: torch.fx.Node
    ) -> None:
        size = calls(graph, aten.sym_size.int)[0].meta["val"]
        (reason,) = reasons(refusing(lambda node: size > 3, supports_dynamic_shapes=True), dynamic)
        assert "returned the symbolic condition" in reason


def test_a_support_names_its_converter_without_an_address() -> None:
    assert ConverterSupport(operator.add).name == "_operator.add"
