"""Input: shapes and ranges, the text form, and what torch.export makes of them."""

from typing import Any

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import pipeline
from pipeline.inputs import Input

DTYPES = [
    torch.float32,
    torch.float16,
    torch.bfloat16,
    torch.float64,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.bool,
]
names = st.none() | st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)


@st.composite
def inputs(draw: st.DrawFn) -> Input:
    """Static and dynamic inputs of rank 0 to 4."""
    ranges = draw(st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=3).map(sorted), max_size=4))
    device = draw(st.sampled_from([None, "cpu", "meta"]))
    fields: dict[str, Any] = {"dtype": draw(st.sampled_from(DTYPES)), "name": draw(names), "device": device}
    low, opt, high = zip(*ranges, strict=True) if ranges else ((), (), ())
    if low == high or draw(st.booleans()):
        return Input(opt, **fields)
    return Input(min_shape=low, opt_shape=opt, max_shape=high, **fields)


@given(inputs())
def test_the_text_form_reads_back(given_input: Input) -> None:
    assert Input.parse(str(given_input)) == given_input


@given(inputs())
def test_the_example_is_in_range_and_never_of_size_0_or_1_where_it_need_not_be(given_input: Input) -> None:
    example = given_input.example()
    assert example.dtype == given_input.dtype
    assert example.dim() == len(given_input.ranges)
    for dim, (size, (low, opt, high)) in enumerate(zip(example.shape, given_input.ranges, strict=True)):
        assert low <= size <= high
        assert size == opt or (dim in given_input.dynamic_dims and opt < 2 and size == 2)
        assert size >= 2 or dim not in given_input.dynamic_dims or high < 2
    assert example.device == (given_input.device or torch.device("cpu"))
    assert torch.equal(given_input.example("cpu"), given_input.example("cpu"))


@given(inputs(), st.integers(0, 5))
def test_dims_have_the_ranges_and_names_of_their_own(given_input: Input, index: int) -> None:
    dims = given_input.dynamic_shapes(index)
    assert tuple(dims) == given_input.dynamic_dims
    assert len({dim.__name__ for dim in dims.values()}) == len(dims)
    for at, dim in dims.items():
        assert (dim.min, dim.max) == given_input.ranges[at][::2]
        assert dim.__name__ == f"{given_input.name or f'input{index}'}_{at}"
    assert given_input.is_dynamic == bool(dims)


def test_values_are_valid_indices_and_true_masks() -> None:
    assert Input((2,), dtype=torch.int64).example().tolist() == [0, 0]
    assert Input((2,), dtype=torch.float16).example().tolist() == [1, 1]
    assert Input((2,), dtype=torch.bool).example().tolist() == [True, True]


def test_export_keeps_the_range() -> None:
    image = Input(min_shape=(1, 3), opt_shape=(1, 3), max_shape=(8, 3), name="image")
    exported = torch.export.export(torch.nn.ReLU(), (image.example(),), dynamic_shapes=(image.dynamic_shapes(0),))
    assert [(int(r.lower), int(r.upper)) for r in exported.range_constraints.values()] == [(1, 8)]


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("1..8x3x224x224:float16", Input(min_shape=(1, 3, 224, 224), max_shape=(8, 3, 224, 224), dtype=torch.float16)),
        (
            "ids=1..4..8x128:i64",
            Input(min_shape=(1, 128), opt_shape=(4, 128), max_shape=(8, 128), dtype=torch.int64, name="ids"),
        ),
        ("2x3", Input((2, 3))),
        ("7..7x3:bf16", Input((7, 3), dtype=torch.bfloat16)),
        ("():f32", Input(())),
        ("2x3@cuda:1", Input((2, 3), device="cuda:1")),
        ("1..2:f16@cuda", Input(min_shape=(1,), max_shape=(2,), dtype=torch.float16, device=torch.device("cuda"))),
    ],
)
def test_the_text_form(text: str, same: Input) -> None:
    assert Input.parse(text) == same


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "3x",
        "1...2",
        "1..2..3..4",
        "-1",
        "2x3:",
        "2:half8",
        "2:Tensor",
        "a b=2",
        "1=2",
        "2..1",
        "2@",
        "2@gpu:f16",
    ],
)
def test_a_bad_text_is_a_value_error_that_quotes_it(text: str) -> None:
    with pytest.raises(ValueError, match="does not describe an input") as error:
        Input.parse(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize(
    ("fields", "error", "says"),
    [
        ({}, ValueError, "must be given"),
        ({"opt_shape": (1,)}, ValueError, "min_shape and max_shape"),
        ({"shape": (1,), "max_shape": (1,)}, ValueError, "not both"),
        ({"shape": 4}, TypeError, "shape must be a sequence"),
        ({"shape": (2, 1.5)}, TypeError, r"shape\[1\]"),
        ({"shape": (2, -1)}, ValueError, r"shape\[1\] is negative \(-1\)"),
        ({"min_shape": (1, 2), "max_shape": (1,)}, ValueError, "min_shape has rank 2 and max_shape rank 1"),
        ({"min_shape": (1, 5), "max_shape": (1, 4)}, ValueError, "in dim 1, min_shape is 5 and max_shape 4"),
        ({"min_shape": (1,), "opt_shape": (9,), "max_shape": (8,)}, ValueError, "in dim 0, opt_shape is 9"),
        ({"shape": (1,), "dtype": "float32"}, TypeError, "dtype"),
        ({"shape": (1,), "name": "a b"}, ValueError, "name"),
        ({"shape": (1,), "device": "gpu"}, ValueError, r"must be a torch.device or a name \(cuda, cuda:1, cpu\)"),
        ({"shape": (1,), "device": 1}, TypeError, "device must be a torch.device or its name, got 1"),
    ],
)
def test_a_wrong_description_is_refused_by_field_and_dimension(
    fields: dict[str, Any], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        Input(**fields)


def test_inputs_are_values() -> None:
    tensor = torch.zeros(2, 3, dtype=torch.int32)
    assert Input.from_tensor(tensor) == Input([2, 3], dtype=torch.int32)
    assert len({Input((2, 3)), Input([2, 3]), Input(torch.Size([2, 3]))}) == 1
    with pytest.raises(attrs.exceptions.FrozenInstanceError):
        Input((1,)).shape = (2,)


def test_whole_numbers_of_numpy_are_sizes() -> None:
    given = Input(np.array([2, 4]))
    assert given == Input((2, 4))
    assert [type(size) for size in given.shape or ()] == [int, int]


class Sum(torch.nn.Module):
    """A module without tensors of its own."""

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """[2, 3], [2, 3] -> [2, 3]"""
        return x + y


def devices(model: torch.nn.Module, *given: Any, **named: Any) -> list[str]:
    """Where the graph has the inputs."""
    program = pipeline.capture(model.eval(), given, **named)
    names = {port.name for port in program.inputs}
    return [node.meta["val"].device.type for node in program.graph.nodes if node.name in names]


def test_an_input_lies_where_the_model_does_or_else_the_tensors_or_where_it_says() -> None:
    plain, meta = Input((2, 3)), torch.ones(2, 3, device="meta")
    assert devices(Sum(), plain, plain) == ["cpu", "cpu"]
    assert devices(Sum(), plain, meta) == devices(Sum(), meta, plain) == ["meta", "meta"]
    assert devices(Sum(), plain, attrs.evolve(plain, device="cpu")) == ["cpu", "cpu"]
    assert devices(Sum(), *[attrs.evolve(plain, device="meta")] * 2) == ["meta", "meta"]
    assert devices(torch.nn.Linear(3, 3), plain) == ["cpu"]


def test_a_device_that_all_is_captured_on_comes_before_the_inputs_own() -> None:
    given = Input(min_shape=(1, 3), max_shape=(2, 3), device="cuda:7")
    assert devices(Sum(), given, given, device="cuda") == ["cuda", "cuda"]
    assert devices(torch.nn.Linear(3, 3), given, device="cuda") == ["cuda"]
