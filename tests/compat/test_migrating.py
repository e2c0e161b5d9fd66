"""The guide from Torch-TensorRT: the code of each of its rows runs, each setting it names is known."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import pipeline
from pipeline import impl
from pipeline.elsewhere import ELSEWHERE
from pipeline.impl import base
from pipeline.trt import trt
from tests.docs.test_examples import ROOT, blocks

GUIDE = (ROOT / "docs" / "migrating.md").read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^###? (.*?)\n(.*?)(?=^##|\Z)", GUIDE, re.M | re.S))


def rows(section: str) -> list[tuple[str, str]]:
    """What it is called there, and our code, of each row of a section's table."""
    found = re.findall(r"^\| (.*?) \| `(.*)` \|$", SECTIONS[section], re.M)
    assert len(found) == len(re.findall(r"^\| ", SECTIONS[section], re.M)) - 1, "a row without code"
    return found


@pytest.fixture
def names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What the guide's blocks define, in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    log = logging.getLogger("pipeline")
    level = log.level
    found: dict[str, Any] = {}
    for block in blocks(GUIDE, "python"):
        exec(compile(block, "migrating.md", "exec"), found)
    yield found
    log.setLevel(level)
    torch.compiler.reset()


@pytest.mark.parametrize("section", ["Compiling and running", "Settings", "Converters"])
def test_each_row_runs(section: str, names: dict[str, Any]) -> None:
    for theirs, ours in rows(section):
        try:
            exec(compile(ours, theirs, "exec"), names)
        except Exception as error:
            error.add_note(f"{theirs}: {ours}")
            raise


def test_each_building_block_is_one() -> None:
    made: list[str] = []

    @pipeline.dynamo_tensorrt_converter(torch.ops.aten.add.Tensor, priority=pipeline.ConverterPriority.HIGH)
    def every(ctx: Any, target: Any, args: Any, kwargs: Any, name: str) -> trt.ITensor:
        known = {"ctx": ctx, "name": name, "x": args[0], "y": args[1]}
        for theirs, ours in rows("Building blocks"):
            result = eval(ours, {**known, "impl": impl, "base": base, "torch": torch, "trt": trt})
            assert isinstance(result, trt.ITensor | int), theirs
            made.append(ours)
        return impl.elementwise.add(ctx, name, "SUM", *args)

    x = torch.randn(2, 8)
    compile = pipeline.default(registry=pipeline.DYNAMO_CONVERTERS.register(every)).until("convert")
    compile(torch.export.export(_Sum(), (x, x)))
    assert len(made) > 15


class _Sum(torch.nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def test_a_mutable_module_follows_its_weights(names: dict[str, Any]) -> None:
    model, x = names["model"], names["x"]
    with torch.no_grad():
        mutable = torch.compile(model, backend=pipeline.backend(executor="reference"))
        mutable(x)
        model.load_state_dict(names["other"].state_dict())
        torch.testing.assert_close(mutable(x), model(x), rtol=1e-4, atol=1e-5)


SAME = re.search(r"## Settings\n\n(.*?) are called the same", GUIDE, re.S)
NAMED = re.findall(r"`(\w+?)(?:=[^`]*)?`", "".join(theirs for theirs, _ in rows("Settings")))


def test_settings_that_are_called_the_same() -> None:
    assert SAME is not None
    assert set(re.findall(r"`(\w+)`", SAME[1])) <= set(pipeline.CompilationSettings.names())


@pytest.mark.parametrize("name", sorted({*NAMED, *ELSEWHERE}))
def test_a_setting_of_theirs_says_how_to_go_on(name: str) -> None:
    with pytest.raises(TypeError) as caught:
        pipeline.default(**{name: True})
    assert str(caught.value) == f"{name!r} is not a compilation setting; {ELSEWHERE[name]}"
