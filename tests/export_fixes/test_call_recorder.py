"""What a module is called with inside a larger program becomes its example inputs, and sizes that differed vary."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from transformers.modeling_outputs import BaseModelOutput

import pipeline


class Part(torch.nn.Module):
    """Takes inputs of many kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(8, 8)

    def forward(
        self,
        x: torch.Tensor,
        step: torch.Tensor,
        mask: torch.Tensor | None = None,
        added: dict[str, torch.Tensor] | None = None,
        scale: float = 1.0,
        times: int = 1,
    ) -> tuple[torch.Tensor, ...]:
        """[B, N, 8] -> [B, N, 8]"""
        y = self.linear(x) * scale + step
        y = y if mask is None else y * mask[..., None]
        return (y if added is None else y + added["rows"][:, None]) * times, y.sum()


def recorded(*calls: Callable[[Part], object]) -> tuple[Part, pipeline.Calls]:
    part = Part().eval()
    with torch.no_grad(), pipeline.recorded(part) as found:
        for call in calls:
            call(part)
    return part, found


def x(*sizes: int) -> torch.Tensor:
    return torch.randn(*sizes, 8)


def test_sizes_that_differed_vary() -> None:
    def call(batch: int, length: int, times: int) -> Callable[[Part], object]:
        added = {"rows": x(batch)}
        return lambda part: part(
            x(batch, length), torch.tensor(3), mask=x(batch, length)[..., 0], added=added, times=times
        )

    part, calls = recorded(call(2, 5, 2), call(1, 5, 1), call(4, 9, 3))
    assert len(calls) == 3
    compiled = pipeline.default()(part, **calls.inputs)
    rows = {str(port) for port in compiled.program.inputs}
    assert {row.split(":")[0] for row in rows} == {"x", "step", "mask", "added_rows", "scale", "times"} - {"scale"}
    sizes = re.findall(r"s\d+=(\d+\.\.\d+\.\.\d+)", next(row for row in rows if row.startswith("x:")))
    assert sizes == ["1..2..4", "5..5..9"]
    for batch, length, times in ((1, 5, 1), (3, 7, 2), (4, 9, 3)):
        args, kwargs = (
            (x(batch, length), torch.tensor(7)),
            {"mask": x(batch, length)[..., 0], "added": {"rows": x(batch)}},
        )
        wanted, found = part(*args, **kwargs, times=times), compiled(*args, **kwargs, times=times)
        torch.testing.assert_close(found, wanted)
    with pytest.raises(pipeline.ShapeError, match="size 5 in dimension 0; compiled for 1 to 4"):
        compiled(x(5, 5), torch.tensor(7), mask=x(5, 5)[..., 0], added={"rows": x(5)}, times=1)


@pytest.mark.parametrize("first", [1, 2])
def test_one_image_and_two(first: int) -> None:
    """Of Segment Anything's encoder: torch makes a constant of the batch, where it asks whether it is 1."""
    from transformers import SamVisionConfig, SamVisionModel

    sizes = {"hidden_size": 32, "output_channels": 8, "num_hidden_layers": 2, "num_attention_heads": 4, "mlp_dim": 48}
    sizes |= {"image_size": 32, "patch_size": 4, "window_size": 3, "global_attn_indexes": [1], "num_pos_feats": 4}
    model = SamVisionModel(SamVisionConfig(**sizes)).eval()
    with torch.no_grad(), pipeline.recorded(model) as calls:
        for count in (first, 3 - first):
            model(torch.randn(count, 3, 32, 32))
    program = pipeline.capture(model, **calls.inputs)
    assert f"1..{first}..2" in str(program.shapes)
    compiled = pipeline.default().replace("build", pipeline.stages.unbuilt)(program).module("reference")
    for count in (1, 2):
        given = torch.randn(count, 3, 32, 32)
        with torch.no_grad():
            expected = model(given).last_hidden_state
        torch.testing.assert_close(compiled(given).last_hidden_state, expected, rtol=1e-4, atol=1e-4)


def test_what_did_not_differ_is_fixed() -> None:
    part, calls = recorded(lambda part: part(x(2, 5), torch.tensor(3), scale=0.5))
    assert calls.inputs["dynamic_shapes"] == {"x": None, "step": None, "scale": None}
    compiled = pipeline.default()(part, **calls.inputs)
    given = x(2, 5), torch.tensor(4)
    torch.testing.assert_close(compiled(*given, scale=0.5), part(*given, scale=0.5))


def test_the_first_call_is_the_example_as_it_was() -> None:
    """A larger program may write to what it passed, and be in any mode."""
    part, given = Part().eval(), x(2, 5)
    before = given.clone()
    with torch.inference_mode(), pipeline.recorded(part) as calls:
        written = given.clone()
        part(written, torch.tensor(3))
        written.zero_()
    assert torch.equal(calls.inputs["args"][0], before) and not calls.inputs["args"][0].is_inference()
    torch.testing.assert_close(
        pipeline.default()(part, **calls.inputs)(given, torch.tensor(3)), part(given, torch.tensor(3))
    )


def test_calls_print_what_was_passed() -> None:
    _, calls = recorded(
        lambda part: part(x(2, 5), torch.tensor(3), added={"rows": x(2)}),
        lambda part: part(x(2, 6), torch.tensor(3), added={"rows": x(2)}),
    )
    lines = [
        "Part: 2 calls",
        "  x: float32[2, 5, 8], float32[2, 6, 8]",
        "  step: int64[]",
        "  added['rows']: float32[2, 8]",
    ]
    assert str(calls).splitlines() == lines


class Anything(torch.nn.Module):
    """Takes whatever it is given by keyword, and a class of transformers."""

    def forward(self, *rows: torch.Tensor, **others: Any) -> torch.Tensor:
        """[B, N] -> [B, N]"""
        return sum(rows) + others["more"] + others["encoded"].last_hidden_state  # type: ignore[no-any-return]


def test_inputs_that_forward_does_not_name_and_classes_of_libraries() -> None:
    model = Anything()

    def call(batch: int) -> torch.Tensor:
        rows = [torch.randn(batch, 4) for _ in range(4)]
        return model(*rows[:2], more=rows[2], encoded=BaseModelOutput(last_hidden_state=rows[3]))  # type: ignore[no-any-return]

    with pipeline.recorded(model) as calls:
        call(2), call(5)
    compiled = pipeline.default()(model, **calls.inputs)
    rows = [torch.randn(3, 4) for _ in range(4)]
    given = {"more": rows[2], "encoded": BaseModelOutput(last_hidden_state=rows[3])}
    torch.testing.assert_close(compiled(*rows[:2], **given), model(*rows[:2], **given))


step = torch.tensor(3)
APART: dict[str, tuple[tuple[Callable[[Part], object], ...], str]] = {
    "nothing": ((), "Part was not called"),
    "a float": (
        (lambda p: p(x(2, 5), step, scale=0.5), lambda p: p(x(2, 5), step, scale=0.25)),
        "scale of Part is 0.5 in one call and 0.25 in another",
    ),
    "a negative number": (
        (lambda p: p(x(2, 5), step, times=-1), lambda p: p(x(2, 5), step, times=2)),
        "times of Part is -1 in one call and 2",
    ),
    "a dtype": (
        (lambda p: p(x(2, 5), step), lambda p: p(x(2, 5), step.float())),
        r"step of Part is int64\[\] in one call and float32\[\] in another",
    ),
    "a rank": (
        (lambda p: p(x(2, 5), step), lambda p: p(x(2, 5), step[None])),
        r"step of Part is int64\[\] in one call and",
    ),
    "left out": ((lambda p: p(x(2, 5), step), lambda p: p(x(2, 5), step, scale=1.0)), "some calls of Part pass scale"),
    "nothing given": (
        (lambda p: p(x(2, 5), step, mask=None), lambda p: p(x(2, 5), step, mask=x(2, 5)[..., 0])),
        "mask of Part is None in one call",
    ),
    "arrays": (
        tuple(lambda p, of=of: p(x(2, 5), step, added={"rows": x(2), "of": of}) for of in (np.ones(2), np.zeros(2))),
        r"added\['of'\] of Part is",
    ),
    "by keyword": ((lambda p: p(x(2, 5), step), lambda p: p(x(2, 5), step=step)), "differ in keyword arguments"),
}


@pytest.mark.parametrize("why", APART)
def test_calls_that_no_one_program_is_for(why: str) -> None:
    calls, message = APART[why]
    _, found = recorded(*calls)
    with pytest.raises(pipeline.CaptureError, match=message):
        found.inputs  # noqa: B018


def test_only_a_module_has_calls_and_nothing_stays_behind() -> None:
    with pytest.raises(TypeError, match=r"takes an nn\.Module, got a"), pipeline.recorded(x):  # type: ignore[arg-type]
        pass
    part = Part()
    with pytest.raises(KeyError), pipeline.recorded(part):
        raise KeyError
    assert not part._forward_pre_hooks
