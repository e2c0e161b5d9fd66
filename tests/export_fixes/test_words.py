"""Messages say what is at fault, where, and what to do; and what is not the user's makes no noise."""

from __future__ import annotations

import gc
import logging
import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.export import Dim

import pipeline
from pipeline.build.memory import LEAST, MemoryMappedWeights


class Calls(nn.Module):
    """A function of a tensor as a model, with weights."""

    def __init__(self, function: Any, *layers: nn.Module) -> None:
        super().__init__()
        self.function, self.layers = function, nn.ModuleList(layers or [nn.Linear(4, 4)])

    def forward(self, x: torch.Tensor) -> Any:
        """The call."""
        return self.function(self, x)


X = torch.randn(2, 4)


def test_no_file_is_left_to_the_garbage_collector() -> None:
    gc.collect()  # what other tests left
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        pipeline.default(min_block_size=1)(nn.Linear(4, 4).eval(), args=(X,))
        held = MemoryMappedWeights([LEAST])
        moved = held.copy_to_file(torch.ones(LEAST // 4))
        del held
        gc.collect()
    assert moved.sum() == LEAST // 4
    assert [str(each.message) for each in caught if issubclass(each.category, ResourceWarning)] == []


INDICES = {
    "an element of a list": lambda m, x: m.layers[(x > 0).sum().item()](x),
    "a count": lambda m, x: sum(x * i for i in range((x > 0).sum().item())),
}


@pytest.mark.parametrize("name", INDICES)
def test_an_index_that_data_has_is_named_as_one(name: str) -> None:
    with pytest.raises(
        pipeline.CaptureError, match=r"reads a number from a tensor, and uses it as a Python index"
    ) as caught:
        pipeline.capture(Calls(INDICES[name]).eval(), (X,))
    assert "x[:, i]" in str(caught.value) and "torch.where" not in str(caught.value)
    assert "test_words.py:" in str(caught.value)


FIXED: dict[str, tuple[Any, str]] = {
    "math.log": (lambda m, x: x * math.log(x.shape[0]), r"converts sizes to numbers.*test_words\.py:\d+, .*math\.log"),
    "math.isqrt": (lambda m, x: x[: math.isqrt(x.shape[0])], r"converts sizes to numbers.*test_words\.py:\d+, .*isqrt"),
    "an index": (
        lambda m, x: [x, x + 1, x + 2, x * 2, x * 3][x.shape[0]],
        r"converts sizes to numbers.*test_words\.py:\d+",
    ),
    "a branch": (lambda m, x: x * 2 if x.shape[0] == 2 else x, r"converts sizes to numbers.*test_words\.py:\d+"),
    "a table": (lambda m, x: x + torch.ones(2, 4, device=x.device), "with a tensor of that size"),
}


@pytest.mark.parametrize("name", FIXED)
@pytest.mark.parametrize("device", [None, "cuda"])
def test_a_size_that_the_model_fixes_is_told(name: str, device: str | None) -> None:
    function, says = FIXED[name]
    rows, dims = pipeline.Input(min_shape=(2, 4), max_shape=(4, 4), opt_shape=(2, 4)), ({0: Dim("n", min=2, max=4)},)
    for given, shapes in (((X,), dims), ((rows,), None)):
        with pytest.raises(
            pipeline.CaptureError, match=rf"(?s)dynamic sizes to those of the example: \w+ is 2\..*{says}"
        ) as told:
            pipeline.capture(Calls(function).eval(), given, dynamic_shapes=shapes, device=device)
        assert "torch.tensor(n).log()" in str(told.value) and "mark_dynamic" not in str(told.value)


def test_what_a_model_raises_has_its_line() -> None:
    with pytest.raises(
        pipeline.CaptureError, match=r"capture Calls at test_words\.py:\d+, .*divmod.*: TypeError: unsup"
    ):
        pipeline.capture(Calls(lambda m, x: x * divmod(x.shape[0], 3)[1]), (X,), dynamic_shapes=({0: Dim.AUTO},))


def test_a_tensor_that_a_model_makes_elsewhere_is_named() -> None:
    made = Calls(lambda m, x: m.layers[0](x) + torch.ones(4, device="cpu")).eval()
    says = r"(?s)is on another device than the model and its inputs: test_words\.py:\d+, made = .*device=x\.device"
    with pytest.raises(pipeline.CaptureError, match=says) as caught:
        pipeline.capture(made, (X,), device="cuda")
    assert "input x" not in str(caught.value)


def test_antialiasing_names_the_size_that_varies() -> None:
    def resized(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        place = torch.ones(1, 4, 14, 14)
        return x + nn.functional.interpolate(place, x.shape[-2:], mode="bicubic", antialias=True)

    dims = ({2: Dim("h", min=2, max=16)},)
    compiled = pipeline.default(min_block_size=1)(Calls(resized).eval(), (torch.randn(1, 4, 8, 6),), None, dims)
    (found,) = [each.reason for each in compiled.coverage.fallback if "upsample" in each.target]
    assert found.startswith("dim 2 of the result is dynamic (s") and "antialiasing needs static sizes" in found


TRAINED = {
    "linear": (nn.Linear(4, 4), ""),
    "no dropout": (nn.Dropout(0.0), ""),
    "a norm without statistics": (nn.LayerNorm(4), ""),
    "dropout": (nn.Dropout(0.5), "aten.dropout.default"),
    "batch norm": (nn.BatchNorm1d(4), "aten.batch_norm.default"),
    "recurrent": (nn.GRU(4, 4, 2), ""),
    "recurrent with dropout": (nn.GRU(4, 4, 2, dropout=0.5), "gru"),
}


@pytest.mark.parametrize("name", TRAINED)
def test_training_mode_is_said_where_it_matters(name: str, caplog: pytest.LogCaptureFixture) -> None:
    layer, operator = TRAINED[name]
    with caplog.at_level(logging.WARNING, "pipeline"):
        pipeline.capture(Calls(lambda m, x: m.layers[0](x), layer).train(), (X,))
    said = [each.getMessage() for each in caplog.records if "training mode" in each.getMessage()]
    assert bool(said) == bool(operator)
    assert all(operator in each and "Calls is in training mode" in each and "model.eval()" in each for each in said)


def test_sizes_that_data_alone_bounds_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    def repeated(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
        return [torch.repeat_interleave(x[0], (x[1] > i).long()) for i in range(5)]

    with caplog.at_level(logging.WARNING, "pipeline"):
        pipeline.capture(Calls(repeated).eval(), (X,))
    (said,) = [each.getMessage() for each in caplog.records if "depend" in each.getMessage()]
    assert "and 3 others depend on data and have no upper bound; engines accept sizes up to 1024" in said


def test_warnings_point_to_the_callers_line() -> None:
    @pipeline.dynamo_tensorrt_converter(torch.ops.aten.relu.default, capability_validator=lambda *_: False)
    def never(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> Any:
        """relu(Tensor self) -> Tensor"""

    registry = pipeline.DYNAMO_CONVERTERS.override(never)
    with pytest.warns(pipeline.UnreachedWarning) as caught:
        pipeline.default(registry=registry).until("validate")(Calls(lambda m, x: x.relu()).eval(), (X,))
    assert {each.filename for each in caught} == {__file__}


def test_what_torch_says_of_memory_is_no_matter_of_dtypes() -> None:
    """A cast shares no memory with what it casts, and so a model is captured that shares too much."""

    def fails(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
        if x.dtype == torch.float32:
            raise RuntimeError("found an aliasing mismatch between fake output and real output of dtype float")
        return x

    with pytest.raises(pipeline.CaptureError, match="aliasing mismatch"):
        pipeline.capture(Calls(fails).eval(), (X,))


def test_decompositions_that_are_not_the_users_are_named_so() -> None:
    """An operator that PyTorch's decomposition gives another dtype for."""
    op = torch.ops.aten.silu.default

    def wrong(x: torch.Tensor) -> torch.Tensor:
        return x.double()

    wrong.__module__ = "torch._decomp.decompositions"
    decompositions = pipeline.DECOMPOSITIONS.register(pipeline.register_torch_trt_decomposition(op)(wrong))
    compile = pipeline.default(decompositions=decompositions).until("decompose")
    with pytest.raises(
        pipeline.ConversionError, match=r"decomposition of it fails: the decomposition returned float64\[2, 4\]"
    ):
        compile(Calls(lambda m, x: nn.functional.silu(x)).eval(), (X,))


def test_what_new_users_pass_is_explained(tmp_path: Path) -> None:
    """A file of torch.save, a tensor for a shape, a shape for a tensor, and a misspelled argument."""
    torch.save({"a": X}, tmp_path / "weights.pt")
    with pytest.raises(pipeline.ArtifactError, match=r"weights\.pt was saved by torch, (?s:.*)torch\.load"):
        pipeline.load(tmp_path / "weights.pt")
    with pytest.raises(TypeError, match=r"Input\.from_tensor\(x\)"):
        pipeline.Input(X)
    says = r"input input is .2, 4., and the model(?s:.*)Input\(shape=\(2, 4\)"
    for shape in ((2, 4), [2, 4]):
        with pytest.raises(pipeline.CaptureError, match=says):
            pipeline.capture(nn.Linear(4, 4).eval(), (shape,))
