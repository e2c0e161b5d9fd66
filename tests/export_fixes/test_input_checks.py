"""The front door refuses what cannot be compiled, in the user's own words, and passes over nothing that it is given."""

from __future__ import annotations

import collections
import dataclasses
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim
from torch.utils._pytree import MappingKey

import pipeline
from pipeline.errors import error_text

X = torch.ones(2, 4)
RANGE = pipeline.Input(min_shape=(1, 4), max_shape=(8, 4))


class Scaled(nn.Module):
    """A product and an optional factor."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor | None = None) -> torch.Tensor:
        """[N, 4] -> [N, 4]"""
        y = self.layer(x)
        return y if scale is None else y * scale


def exported(dynamic: bool = False) -> torch.export.ExportedProgram:
    shapes = {"x": {0: Dim("batch", min=1, max=8)}} if dynamic else None
    return torch.export.export(Scaled().eval(), (X,), dynamic_shapes=shapes)


def compile(*given: Any, **named: Any) -> Callable[[], Any]:
    return lambda: pipeline.default().until("decompose")(Scaled().eval(), *given, **named)


def of(model: Any, *given: Any, **named: Any) -> Callable[[], Any]:
    return lambda: pipeline.default().until("decompose")(model() if callable(model) else model, *given, **named)


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return Scaled().eval()


MISUSE: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "a tensor for args": (compile(X), TypeError, r"args is a Tensor: pass a tuple of inputs, such as args=\(x,\)"),
    "a string for args": (compile("x"), TypeError, "args is a str"),
    "a tensor for kwargs": (compile((), X), TypeError, "kwargs is a Tensor: pass a dict of inputs by name"),
    "a list for kwargs": (compile((), [("x", X)]), TypeError, "kwargs is a list"),
    "a name that is none": (compile((), {1: X}), TypeError, r"names of inputs \(strings\), got 1"),
    "an unknown name": (compile((X,), {"factor": X}), TypeError, r"Scaled.forward\(x, scale\) rejects .*'factor'"),
    "shapes beside an Input": (compile((RANGE,), None, {"y": {0: Dim("b")}}), ValueError, "'y', but .* the inputs x"),
    "too many shapes": (compile((RANGE,), None, ({0: Dim("b")}, None)), ValueError, "2 entries, expected 1, for x"),
    "a number for an Input": (compile((RANGE,), None, 3), TypeError, "dynamic_shapes is an int"),
    "a dim that no Input has": (compile((RANGE,), None, {"x": {5: Dim("b")}}), ValueError, "x has dimension 5"),
    "a name for a dim": (
        compile((RANGE,), None, {"x": {0: "b"}}),
        TypeError,
        "dimension 0 of x is 'b': expected torch",
    ),
    "dims of a wrong type": (compile((X,), None, {"x": "b"}), TypeError, "dynamic_shapes for x is a str"),
    "dims of another rank": (compile((X,), None, {"x": (None,)}), ValueError, "1 entries, but this input has rank 2"),
    "a model without values": (of(on_meta, (X,)), pipeline.CaptureError, r"layer\.weight is on the meta device"),
    "an export without values": (
        of(lambda: torch.export.export(on_meta(), (X.to("meta"),))),
        pipeline.CaptureError,
        r"layer\.weight is on the meta device",
    ),
    "a model that was not called": (
        of(lambda: nn.Sequential(nn.LazyLinear(4)).eval(), (X,)),
        pipeline.CaptureError,
        r"0\.weight has no shape yet: it is in a lazy module, which was not called\n  hint: call the model once",
    ),
    "inputs that a script does not take": (
        of(lambda: torch.jit.script(nn.ReLU()), (X, X)),
        TypeError,
        r"ReLU.forward\(input\) rejects .*: too many positional arguments",
    ),
    "too many for an export": (of(exported, (X, X)), TypeError, "do not fit the exported inputs .x.: Node arity"),
    "an unknown name of an export": (of(exported, (X,), {"y": X}), TypeError, "do not fit the exported inputs .x.: "),
    "a range that was not exported": (of(exported, (RANGE,)), ValueError, r"as 2x4:float32, not 1\.\.8x4:float32"),
    "another dtype than exported": (of(exported, (X.half(),)), ValueError, "as 2x4:float32, not 2x4:float16"),
    "decompositions that are none": (
        lambda: pipeline.default(decompositions=None),  # type: ignore[arg-type]
        TypeError,
        "decompositions must be a DecompositionTable, got None",
    ),
    "the executor of builds by its former name": (
        lambda: pipeline.default(executor=None),
        TypeError,
        r"'executor' is not a compilation setting; default\(build_executor=…\) builds engines in parallel",
    ),
    "a GPU that is not built for": (
        lambda: pipeline.default(compute_capabilities=("99.0",)),
        ValueError,
        "compute_capabilities: .* cannot build for 99.0; it builds for",
    ),
    "stages that are none": (lambda: pipeline.Pipeline(3), TypeError, "expected a sequence of stages"),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("call, kind, says", MISUSE.values(), ids=MISUSE)
def test_misuse_is_refused_at_the_front_door(call: Callable[[], Any], kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=says):
        call()


def test_what_fits_an_export_chooses_its_optimal_sizes() -> None:
    def shapes(*given: Any) -> str:
        return str(pipeline.default().until("decompose")(exported(dynamic=True), *given).shapes)

    assert "1..3..8" in shapes((torch.ones(3, 4),))
    assert "1..5..8" in shapes((pipeline.Input(min_shape=(1, 4), opt_shape=(5, 4), max_shape=(8, 4)),))
    with pytest.raises(ValueError, match=r"exported as 1\.\.8x4:float32, not 9x4:float32"):
        shapes((torch.ones(9, 4),))


def test_an_error_from_cpp_has_no_addresses() -> None:
    error = RuntimeError("Cannot call numel()\nException raised from throw at TensorImpl.cpp:289\nframe #0: c10::Error")
    assert error_text(error) == "Cannot call numel()"


def test_an_error_without_words_has_its_kind() -> None:
    class Lookup(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            """Looks for a name that is not there."""
            return {"y": x}["x"]

    with pytest.raises(pipeline.CaptureError, match=r"torch\.export cannot capture Lookup at .*: KeyError: 'x'"):
        of(Lookup, (X,))()


@dataclasses.dataclass
class Record:
    """Two tensors, registered with torch.export."""

    a: Any
    b: Any


torch.export.register_dataclass(Record, serialized_type_name="tests.export_fixes.test_input_checks.Record")
Named = collections.namedtuple("Named", "a b")


class OfLibrary(dict):  # type: ignore[type-arg]
    """A dict that a library registers, as transformers does its outputs."""


torch.utils._pytree.register_pytree_node(
    OfLibrary,
    lambda given: (list(given.values()), list(given)),
    lambda values, keys: OfLibrary(zip(keys, values, strict=True)),
    flatten_with_keys_fn=lambda given: ([(MappingKey(key), value) for key, value in given.items()], list(given)),
    serialized_type_name="tests.export_fixes.test_input_checks.OfLibrary",
)


class OfRecord(nn.Module):
    """Takes what has two tensors, as fields or as keys."""

    def forward(self, pair: Any) -> torch.Tensor:
        """[N, 4], [N, 4] -> [N, 4]"""
        a, b = (pair["a"], pair["b"]) if isinstance(pair, dict) else (pair.a, pair.b)
        return a * 2 + b


@pytest.mark.parametrize(
    "make",
    [
        Named,
        Record,
        lambda a, b: collections.OrderedDict(a=a, b=b),
        lambda a, b: collections.defaultdict(list, a=a, b=b),
        lambda a, b: OfLibrary(a=a, b=b),
    ],
    ids=["namedtuple", "dataclass", "OrderedDict", "defaultdict", "registered dict"],
)
def test_ranges_reach_into_every_container(make: Callable[..., Any]) -> None:
    compiled = pipeline.default()(OfRecord().eval(), (make(RANGE, RANGE),))
    for batch in (1, 5):
        x = torch.randn(batch, 4)
        torch.testing.assert_close(compiled.module(executor="reference")(make(x, x)), 3 * x)


class Nameless(dict):  # type: ignore[type-arg]
    """A dict that is registered without names for its values."""


torch.utils._pytree.register_pytree_node(
    Nameless,
    lambda given: (list(given.values()), list(given)),
    lambda values, keys: Nameless(zip(keys, values, strict=True)),
)


def test_a_container_without_names_is_named() -> None:
    given, said = Nameless(a=X, b=X), r"an input is a .*Nameless, a pytree class registered without names"
    with pytest.raises(pipeline.CaptureError, match=said):
        pipeline.capture(OfRecord().eval(), (given,))
    model = OfRecord()
    with pipeline.recorded(model) as calls:
        model(given)
    with pytest.raises(pipeline.CaptureError, match=said):
        calls.inputs  # noqa: B018


def test_what_torch_warns_of_itself_is_not_told() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline.default().until("decompose")(nn.BatchNorm2d(4).train(), (torch.ones(2, 4, 3, 3),))


def test_a_predicate_that_fails_is_named() -> None:
    compile = pipeline.default(torch_executed_ops=[lambda path: path[0]]).until("decompose")
    said = r"torch_executed_ops: the predicate .*<lambda> raised IndexError.*for the module path ''"
    with pytest.raises(pipeline.PipelineError, match=said) as caught:
        compile(nn.ReLU().eval(), (X,))
    assert isinstance(caught.value.__cause__, IndexError)


class Draws(nn.Module):
    """With a generator of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.rand(x.shape, generator=self.generator.manual_seed(0))


def test_a_generator_is_named_with_a_way_on() -> None:
    with pytest.raises(pipeline.CaptureError, match=r"a torch.Generator of its own.*torch.manual_seed"):
        pipeline.capture(Draws().eval(), (torch.randn(3),))
