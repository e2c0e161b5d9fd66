"""Errors say what, why and how to go on, and survive the way to another process."""

import builtins
import importlib
import inspect
import os
import pickle
import pkgutil
import sys
from collections.abc import Iterator

import pytest
import torch

import pipeline
from pipeline.errors import (
    BuildError,
    CaptureError,
    ConversionError,
    ExecutionError,
    Fallback,
    PipelineError,
    RefitError,
    ShapeError,
    UnsupportedOperatorException,
    package_folder,
    source_line,
)

TOPK = Fallback(
    "topk", "aten.topk.default", "k is 5000, TensorRT takes at most 3840", where="model.py:41, y = x.topk(5000)"
)
NONZERO = Fallback(
    "nonzero", "aten.nonzero.default", "no converter\nno decomposition", "use torch.where with three arguments"
)
ERRORS = [
    UnsupportedOperatorException([TOPK, NONZERO], 212),
    ConversionError("topk", "aten.topk.default", "model.py:41", "k is too large"),
    BuildError("engine 0: no tactic found"),
    CaptureError("Net: data-dependent control flow"),
    ShapeError("image", 0, 9, (1, 8)),
    RefitError({"conv.weight": "has another shape"}),
    ExecutionError("engine 0: enqueue failed"),
]


def test_an_error_as_a_user_should_see_it() -> None:
    assert str(UnsupportedOperatorException([TOPK], 212)) == (
        "1 of 212 nodes would run in PyTorch\n"
        "  aten.topk.default at node topk (model.py:41, y = x.topk(5000))\n"
        "    k is 5000, TensorRT takes at most 3840\n"
        "  hint: allow partial compilation (require_full_compilation=False)"
    )


def test_a_fallback_has_all_its_reasons_and_its_own_hint() -> None:
    assert str(NONZERO) == (
        "aten.nonzero.default at node nonzero\n"
        "  no converter\n"
        "  no decomposition\n"
        "  hint: use torch.where with three arguments"
    )


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_has_a_hint_and_is_a_runtime_error(error: PipelineError) -> None:
    assert isinstance(error, RuntimeError)
    assert str(error).splitlines()[-1].startswith("  hint: ")
    assert type(error).__module__ == "pipeline"


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_survives_pickling(error: PipelineError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def exceptions() -> Iterator[type[BaseException]]:
    """Every exception class of the package; private ones never leave the function that raises them."""
    for module in pkgutil.walk_packages(pipeline.__path__, "pipeline."):
        if not module.name.endswith(("__main__", "triton_model", "triton_kernels")):  # two import what may be missing
            for name, value in vars(importlib.import_module(module.name)).items():
                ours = inspect.isclass(value) and value.__module__.partition(".")[0] == "pipeline"
                if ours and issubclass(value, BaseException) and not name.startswith("_"):
                    yield value


def test_every_error_of_ours_is_a_pipeline_error() -> None:
    assert len(found := set(exceptions())) > 10
    assert [each for each in found if not issubclass(each, PipelineError | Warning)] == []


def test_no_error_of_ours_is_called_as_one_of_pythons() -> None:
    assert [each for each in exceptions() if hasattr(builtins, each.__name__)] == []


def test_positions_out_of_range_are_named() -> None:
    compiled = pipeline.default()(torch.nn.Embedding(4, 3).eval(), args=(torch.tensor([0, 3]),))
    with pytest.raises(PipelineError, match=r"GATHER 'embedding.*': indices 0\.\.4 exceed the range 0\.\.3") as caught:
        compiled.module(executor="reference")(torch.tensor([0, 4]))
    assert isinstance(caught.value, ExecutionError)
    assert "name the layer's operator in torch_executed_ops" in str(caught.value)


def test_a_shape_error_names_input_dimension_value_and_range() -> None:
    with pytest.raises(ValueError, match="input image has size 9 in dimension 0; compiled for 1 to 8"):
        raise ERRORS[4]
    assert str(ShapeError("image", None, 3, (4, 4), rank=True)) == "input image has rank 3; compiled for 4"
    assert "input n has value 7; compiled for 1 to 4\n" in str(ShapeError("n", None, 7, (1, 4)))


class Net(torch.nn.Module):
    """A layer of torch's own, called on a line of ours."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """One linear layer."""
        return self.layer(x)


def test_the_source_line_is_the_users_and_not_torchs() -> None:
    graph = torch.export.export(Net(), (torch.zeros(2, 3),)).graph
    linear = next(node for node in graph.nodes if node.op == "call_function")
    line = Net.forward.__code__.co_firstlineno + 2
    assert source_line(linear) == f"test_errors.py:{line}, return self.layer(x)"
    assert source_line(next(iter(graph.nodes))) == ""


@pytest.mark.parametrize("package", ["torch", "pipeline", "torch.export"])
def test_a_folder_is_not_that_of_a_package_whose_name_begins_so(package: str) -> None:
    """``torchvision`` is no part of torch."""
    file = str(sys.modules[package].__file__)
    assert file.startswith(package_folder(package))
    assert not file.replace(f"{os.sep}__init__.py", f"vision{os.sep}__init__.py").startswith(package_folder(package))
