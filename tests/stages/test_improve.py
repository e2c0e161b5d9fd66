"""improve as a stage: it is pure, its passes can be chosen, and models come out the same, in fewer layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._pytree import tree_leaves

import pipeline
from examples.models import small
from pipeline import Program, autocast
from pipeline.improvements import PASSES, Rewriting, improvement
from pipeline.stages.improve import Improve

aten = torch.ops.aten

NAMES = [each.name for each in PASSES]


def model(name: str, *, spelled_out: bool = False, dtype: torch.dtype = torch.float16) -> tuple[Any, Program]:
    """An example model, with its attention spelled out or not, and its program as the stage gets it."""
    case = small(name, dtype)
    if spelled_out:
        case.model.set_attn_implementation("eager")
    decompose = pipeline.default().until("decompose")
    return case, decompose(case.model, kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)


def test_it_is_a_stage_of_the_default_pipeline() -> None:
    names = pipeline.default().names
    assert names[names.index("improve") - 1 : names.index("improve") + 2] == ("decompose", "improve", "validate")
    assert Improve() == Improve(passes=NAMES) and Improve().name == "improve"


def test_passes_are_chosen_by_name() -> None:
    assert [p.name for p in Improve().without("fuse_attention", "simplify_masks").passes] == [
        name for name in NAMES if name not in ("fuse_attention", "simplify_masks")
    ]
    with pytest.raises(ValueError, match="no pass 'atention'; the passes are split_doubles, contract_products"):
        Improve(passes=("atention",))
    with pytest.raises(ValueError, match="the pass 'scales' was renamed: write 'fold_batch_norm'"):
        Improve().without("scales")
    with pytest.raises(ValueError, match="the stage improve has no pass fuse_gelu"):
        Improve().without("fuse_gelu").without("fuse_gelu")
    with pytest.raises(TypeError, match="collection"):
        Improve(passes="fuse_attention")
    with pytest.raises(TypeError, match="3 is neither a pass"):
        Improve(passes=(3,))


def test_without_passes_nothing_is_done() -> None:
    _, program = model("resnet18")
    assert Improve(passes=())(program) is program


def test_a_pass_of_ones_own() -> None:
    @improvement
    def no_relus(rewriting: Rewriting) -> None:
        """Relus vanish."""
        for node in rewriting.nodes(torch.ops.aten.relu.default):
            rewriting.replace(node, node.args[0])

    _, program = model("resnet18")
    after = Improve(passes=(no_relus,))(program)
    assert not [n for n in after.graph.nodes if n.target is torch.ops.aten.relu.default]


def wraps(rewriting: Rewriting) -> None:
    """Replace each relu by a call that reads it."""
    for node in rewriting.nodes(aten.relu.default):
        rewriting.replace(node, rewriting.create(aten.neg.default, (node,), {}, node.next))


def adds_bare_nodes(rewriting: Rewriting) -> None:
    """Add a call by torch's own method, without the call's value."""
    for node in rewriting.nodes(aten.relu.default):
        with rewriting.graph.inserting_before(node):
            node.replace_input_with(node.args[0], rewriting.graph.call_function(aten.neg.default, (node.args[0],)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (wraps, "pass wraps left an invalid graph: .*'relu' was used before it has been defined"),
        (adds_bare_nodes, "pass adds_bare_nodes left an invalid graph: the node neg_default has no meta"),
    ],
)
def test_a_pass_that_leaves_an_invalid_graph_is_named(function: Any, words: str) -> None:
    program = pipeline.capture(torch.nn.ReLU(), (torch.randn(4),))
    with pytest.raises(pipeline.PipelineError, match=words) as caught:
        Improve(passes=(improvement(function), *PASSES))(program)
    assert len(str(caught.value).splitlines()) == 2


class Draws(torch.nn.Module):
    """A branch that draws random numbers, so that ``torch.cond`` and the nodes of its graphs stay."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4] -> [4]"""
        return torch.cond(x.sum() > 0, lambda x: x + torch.rand(4), lambda x: x - 1, (x,))


def test_a_pass_that_changes_nothing_leaves_graphs_of_control_flow() -> None:
    program = pipeline.capture(Draws(), (torch.randn(4),))
    same = Improve(passes=(improvement(lambda rewriting: None),))(program)
    assert [node.op for node in same.graph.nodes] == [node.op for node in program.graph.nodes]


def test_passes_are_in_the_order_that_they_name() -> None:
    late, lost = improvement(after="fuse_gelu")(wraps), improvement(after="fuse_gelus")(adds_bare_nodes)
    assert Improve(passes=(*PASSES, late)).without("fuse_gelu").passes[-1] is late
    with pytest.raises(ValueError, match="pass wraps runs after fuse_gelu: put it behind that pass in passes"):
        Improve(passes=(late, *PASSES))
    with pytest.raises(ValueError, match="pass adds_bare_nodes runs after 'fuse_gelus', but there is no such pass"):
        Improve(passes=(*PASSES, lost))
    assert Improve(passes=("fuse_gelu", late, "fuse_gelu")).passes[1] is late


class Affine(torch.nn.Module):
    """A sum and a product with parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.term, self.factor = (torch.nn.Parameter(torch.randn(4)) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[4] -> [4]"""
        return (x + self.term) * self.factor


def doubles(target: Any) -> Any:
    @improvement
    def doubled(rewriting: Rewriting) -> None:
        """Twice the second operand."""
        for node in rewriting.nodes(target):
            twice = rewriting.create(aten.mul.Tensor, (node.args[1], 2.0), {}, node)
            rewriting.offer(node, target, (node.args[0], twice))

    return doubled


@improvement
def joins(rewriting: Rewriting) -> None:
    """The operands of the sum and of the product, added to each other."""
    for node in rewriting.nodes(aten.mul.Tensor):
        x, term = node.args[0].args  # type: ignore[union-attr]
        both = rewriting.create(aten.add.Tensor, (term, node.args[1]), {}, node)
        rewriting.offer(node, aten.add.Tensor, (x, both))


def test_constants_of_several_stages_keep_apart_what_is_called_alike() -> None:
    model = Affine().eval()
    program = pipeline.default().until("decompose")(model, (torch.ones(4),))
    for each in (doubles(aten.add.Tensor), doubles(aten.mul.Tensor), joins):
        program = Improve(passes=(each,))(program)
    (recipe,) = program.constants.values()
    assert torch.equal(recipe.evaluate(program.parameters), 2 * model.term + 2 * model.factor)


def test_nothing_is_introduced_that_no_converter_takes() -> None:
    _, program = model("bert", spelled_out=True)
    attention = torch.ops.aten.scaled_dot_product_attention.default
    registry = pipeline.DYNAMO_CONVERTERS.without(attention)
    assert attention not in {n.target for n in Improve(registry)(program).graph.nodes}


def operators(program: pipeline.Program) -> int:
    return sum(node.op == "call_function" for node in program.graph.nodes)


@pytest.mark.parametrize("name", ["resnet18", "vit", "gpt2"])
def test_models_come_out_the_same_of_fewer_operators(name: str) -> None:
    case, program = model(name, spelled_out=name != "resnet18")
    before, stage = str(program), Improve()
    after = stage(program)
    assert str(program) == before
    assert str(after) == str(stage(program)) and after.digest == stage(program).digest
    assert str(stage(after)) == str(after)
    assert operators(after) == operators(program) if name == "resnet18" else operators(after) < operators(program)
    stages = pipeline.default(require_full_compilation=True).stages
    rest = pipeline.Pipeline(stages[[s.name for s in stages].index("validate") :])
    with torch.no_grad():
        expected = case.model(**case.kwargs)
    actual = rest(after).module(executor="reference")(**case.kwargs)
    for a, e in zip(tree_leaves(actual), tree_leaves(expected), strict=True):
        torch.testing.assert_close(a, e, rtol=2e-2, atol=2e-2)


def test_after_autocast_attention_is_recognised_too() -> None:
    case = small("bert")
    case.model.set_attn_implementation("eager")
    compile = pipeline.default().insert(autocast(), before="decompose").until("improve")
    after = compile(case.model, kwargs=case.kwargs, dynamic_shapes=case.dynamic_shapes)
    found = [n for n in after.graph.nodes if n.target is torch.ops.aten.scaled_dot_product_attention.default]
    assert len(found) == 2
